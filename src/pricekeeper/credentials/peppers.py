"""Hashes secrets with HMAC-SHA-256 under a pepper, and reads peppers from texts and files.

A secret has 256 random bits, so a slow hash would only cost us. The pepper makes a stolen table
worthless; its version keeps older hashes valid until the next login renews them. The hash includes
the client's name, so a copy on another item is worthless.

A text has ``VERSION:BASE64`` for each pepper, the newest last. The file is created at the first
start, readable only by its owner. If it is lost, all secrets must be issued again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pricekeeper.errors import InvalidValueError, SettingsError

PEPPER_FILE: Final = "pepper"
_SCHEME: Final = "hmac-sha256"
_STORED: Final = re.compile(rf"{_SCHEME}\$(?P<version>[^$]+)\$(?P<digest>[^$]+)")
_VERSION: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_KEY_BYTES_MIN: Final = 32
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_NO_DIGEST: Final = bytes(hashlib.sha256().digest_size)
"""Compared if no secret is stored, so that it takes the same time; no HMAC equals it."""


@dataclass(frozen=True, slots=True)
class Pepper:
    """A server-side key, and its name in hashes."""

    version: str
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise InvalidValueError("pepper", "a version is 1 to 32 of A-Z a-z 0-9 . _ -")
        if len(self.key) < _KEY_BYTES_MIN:
            raise InvalidValueError("pepper", f"a key has at least {_KEY_BYTES_MIN} bytes")


class Peppers:
    """The present pepper, and older ones of existing hashes."""

    def __init__(self, current: Pepper, *older: Pepper) -> None:
        self._current = current
        self._known = {pepper.version: pepper for pepper in (*older, current)}
        if len(self._known) != 1 + len(older):
            raise InvalidValueError("pepper", "every version has a key of its own")

    @property
    def current(self) -> Pepper:
        return self._current

    @property
    def all(self) -> tuple[Pepper, ...]:
        older = (pepper for pepper in self._known.values() if pepper is not self._current)
        return (self._current, *older)

    def hash(self, client_id: str, secret: str) -> str:
        digest = _digest(self._current, client_id, secret)
        return f"{_SCHEME}${self._current.version}${base64.b64encode(digest).decode()}"

    def matches(self, stored: str | None, client_id: str, secret: str) -> bool:
        """Compare a secret with its hash, with the same work for every hash and for none."""
        pepper, expected = self._parsed(stored)
        known = pepper is not None
        found = _digest(pepper or self._current, client_id, secret)
        return hmac.compare_digest(found, expected) and known

    def knows(self, stored: str) -> bool:
        return self._parsed(stored)[0] is not None

    def is_outdated(self, stored: str) -> bool:
        return self._parsed(stored)[0] is not self._current

    def _parsed(self, stored: str | None) -> tuple[Pepper | None, bytes]:
        if stored is None or (parts := _STORED.fullmatch(stored)) is None:
            return None, _NO_DIGEST
        try:
            digest = base64.b64decode(parts["digest"], validate=True)
        except binascii.Error:
            return None, _NO_DIGEST
        return self._known.get(parts["version"]), digest


def _digest(pepper: Pepper, client_id: str, secret: str) -> bytes:
    message = f"{client_id}\0{secret}".encode("utf-8", "surrogatepass")
    return hmac.digest(pepper.key, message, "sha256")


def load_or_create_peppers(path: Path) -> Peppers:
    """Read the file, or create it; processes that start together agree on one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        if path.stat().st_mode & _OTHERS:
            raise SettingsError(str(path), f"can be read by others; run chmod 600 {path}")
        text = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(str(path), f"can't be read or written: {error}") from error
    return parse_peppers(str(path), text)


def parse_peppers(setting: str, text: str) -> Peppers:
    """Parse a text; an error names the setting and shows no key."""
    lines = text.split()
    if not lines:
        raise SettingsError(setting, "holds no pepper; restore it from your backup")
    try:
        *older, newest = (_pepper(line) for line in lines)
        return Peppers(newest, *older)
    except (ValueError, InvalidValueError) as error:
        message = f"a line is VERSION:BASE64, 32 bytes or more: {error}"
        raise SettingsError(setting, message) from error


def new_pepper() -> str:
    """Make the text of a new random pepper."""
    return f"v1:{base64.b64encode(secrets.token_bytes(_KEY_BYTES_MIN)).decode()}"


def _create(path: Path) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # readable only by its owner
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{new_pepper()}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(name, path)
        except FileExistsError:
            return
    finally:
        Path(name).unlink()


def _pepper(line: str) -> Pepper:
    version, _, key = line.partition(":")
    return Pepper(version, base64.b64decode(key, validate=True))
