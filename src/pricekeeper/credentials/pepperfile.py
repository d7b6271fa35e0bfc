"""The peppers as text, and in a file that only its owner can read, made on first use.

Each is ``VERSION:BASE64``, with blanks or line ends between them, and the newest is the last one.
To replace it, add one with a new version: hashes under the older ones go on verifying and are
renewed as their clients come by. Lose the file, and every secret has to be issued anew.
"""

from __future__ import annotations

import base64
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final

from pricekeeper.credentials.hashing import Pepper, Peppers
from pricekeeper.errors import InvalidValueError, SettingsError

FILE: Final = "pepper"
_KEY_BYTES: Final = 32
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def load_or_create_peppers(path: Path) -> Peppers:
    """The peppers in the file; processes that start together agree on one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        if path.stat().st_mode & _OTHERS:
            raise SettingsError(str(path), f"can be read by others; say chmod 600 {path}")
        text = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(str(path), f"can't be read or written: {error}") from error
    return parse_peppers(str(path), text)


def parse_peppers(setting: str, text: str) -> Peppers:
    """The peppers in a text; the error for a wrong one names the setting and shows no key."""
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
    """The text of a pepper that nobody has seen before."""
    return f"v1:{base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}"


def _create(path: Path) -> None:
    """Write the whole file elsewhere and link it to its name, unless another was first."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # readable by its owner alone
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
