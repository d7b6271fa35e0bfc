"""How secrets rest: HMAC-SHA-256 under a pepper that only the servers know.

A secret has 256 random bits, so nobody guesses it however fast the hash is; a slow one would
only tie up our own processors. The pepper makes a stolen table worthless by itself. It has a
version, so that it can be replaced: old versions go on verifying, and what they verify is
hashed anew. The client's name is part of what is hashed, so a hash that is copied to another
client's item opens nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from pricekeeper.errors import InvalidValueError

_SCHEME: Final = "hmac-sha256"
_STORED: Final = re.compile(rf"{_SCHEME}\$(?P<version>[^$]+)\$(?P<digest>[^$]+)")
_VERSION: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_KEY_BYTES_MIN: Final = 32
_NO_DIGEST: Final = bytes(hashlib.sha256().digest_size)
"""What a secret is compared with where there is none; no HMAC is ever equal to it."""


@dataclass(frozen=True, slots=True)
class Pepper:
    """A server-side key, and the name under which hashes remember it."""

    version: str
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise InvalidValueError("pepper", "a version is 1 to 32 of A-Z a-z 0-9 . _ -")
        if len(self.key) < _KEY_BYTES_MIN:
            raise InvalidValueError("pepper", f"a key has at least {_KEY_BYTES_MIN} bytes")


class Peppers:
    """The pepper in use, and older ones under which hashes may still rest."""

    def __init__(self, current: Pepper, *older: Pepper) -> None:
        self._current = current
        self._known = {pepper.version: pepper for pepper in (*older, current)}
        if len(self._known) != 1 + len(older):
            raise InvalidValueError("pepper", "every version has a key of its own")

    @property
    def current(self) -> Pepper:
        """The pepper in use."""
        return self._current

    @property
    def all(self) -> tuple[Pepper, ...]:
        """The pepper in use, and then the older ones."""
        older = (pepper for pepper in self._known.values() if pepper is not self._current)
        return (self._current, *older)

    def hash(self, client_id: str, secret: str) -> str:
        """What is stored of the secret: enough to recognise it, nothing to read it from."""
        digest = _digest(self._current, client_id, secret)
        return f"{_SCHEME}${self._current.version}${base64.b64encode(digest).decode()}"

    def matches(self, stored: str | None, client_id: str, secret: str) -> bool:
        """Whether this is the stored secret; the same work whatever is stored, also if nothing."""
        pepper, expected = self._parsed(stored)
        known = pepper is not None
        found = _digest(pepper or self._current, client_id, secret)
        return hmac.compare_digest(found, expected) and known

    def knows(self, stored: str) -> bool:
        """Whether the hash was made here, under a pepper that we still have."""
        return self._parsed(stored)[0] is not None

    def is_outdated(self, stored: str) -> bool:
        """Whether the secret should be hashed anew when it is next seen."""
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
