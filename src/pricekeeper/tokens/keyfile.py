"""A keyring in a file that only its owner can read.

Processes that start together agree: the one that gets the lock first makes the file, and the
others find it. The file is always replaced as a whole, so a reader never sees a part of a keyring.
A rotation that was acknowledged survives a power cut.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pricekeeper.errors import KeyringError
from pricekeeper.tokens.keyring import Keyring, dump_keyring, new_keyring, parse_keyring

PUBLISH_AHEAD_SECS: Final = 300
"""How long a new key is published before it signs, so that those who keep a JWKS have it."""
KEYFILE_BYTES_MAX: Final = 1 << 20

_PRIVATE: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KeyFile:
    """The file at a path. Its calls block, briefly: there is a lock and an fsync."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load_or_create(self, now_epoch: int) -> Keyring:
        """The keyring in the file, made if there is none."""
        with _naming_path(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                with self._lock():
                    if not self._path.exists():
                        self._write(new_keyring(now_epoch))
        return self.load()

    def load(self) -> Keyring:
        """The keyring in the file, which must be ours alone to read."""
        with _naming_path(self._path), self._path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(KEYFILE_BYTES_MAX + 1)
        if mode & _OTHERS:
            raise KeyringError(f"{self._path} can be read by others; say chmod 600 {self._path}")
        if len(text) > KEYFILE_BYTES_MAX:
            raise KeyringError(f"{self._path} is too large to be a keyring")
        try:
            return parse_keyring(text)
        except KeyringError as error:
            raise KeyringError(f"{self._path}: {error}") from error

    def rotate(
        self, now_epoch: int, ahead_secs: int = PUBLISH_AHEAD_SECS, *, drop_old: bool = False
    ) -> Keyring:
        """Add a key that will sign from then on.

        With ``drop_old`` the old keys go at once, and with them everything they have signed
        or derived: for keys that somebody else may have seen.
        """
        with _naming_path(self._path), self._lock():
            if drop_old:
                keyring = new_keyring(now_epoch)
            else:
                keyring = self.load().rotated(now_epoch, ahead_secs)
            self._write(keyring)
        return keyring

    def mark(self) -> tuple[int, int, int] | None:
        """Something that changes when the file or its mode does; ``None`` if it is gone."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold a lock of its own, since the file itself is replaced."""
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, keyring: Keyring) -> None:
        fresh = Path(f"{self._path}.new")
        fresh.unlink(missing_ok=True)  # of a process that died here, while it had the lock
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(dump_keyring(keyring))
            file.flush()
            os.fsync(descriptor)
        fresh.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def _naming_path(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KeyringError(f"{path}: {error.strerror}") from error
