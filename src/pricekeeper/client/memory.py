"""What is known of the service while it can't be reached, shared by an app's processes.

The file beside the spool is replaced whole, so readers need no lock. Writers of the allowance lock
another file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from pricekeeper.client.snapshot import Allowance, Snapshot
from pricekeeper.client.spool_files import locked, write_all

BYTES_MAX: Final = 1 << 20
_FILE: Final = "blind.json"
_LOCK: Final = "blind.lock"

_log = logging.getLogger("pricekeeper")


class Known(msgspec.Struct, frozen=True):
    """What is known without the service."""

    snapshot: Snapshot | None = None
    is_refused: bool = False
    """Whether the service last allowed nothing."""
    allowance: Allowance = Allowance()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Known).decode


class Memory:
    """The file of an app."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._own = Known()
        self._is_behind = folder is None
        """Whether the file can't be written."""

    def read(self) -> Known:
        if self._folder is None or self._is_behind:
            return self._own
        path = self._folder / _FILE
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return self._own
        with open(fd, "rb") as file:  # noqa: PTH123 - it is open already
            data = file.read(BYTES_MAX)
        try:
            return _decode(data)
        except msgspec.DecodeError as error:
            _log.warning("%s can't be read, and is left out: %s", path, error)
            return self._own

    def write(self, known: Known) -> None:
        """Replace the file, while it is `locked`. A killed process leaves the old file."""
        self._own = known
        if self._folder is None:
            return
        new = self._folder / f"{_FILE}.new"
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                write_all(fd, _encode(known))
            finally:
                os.close(fd)
            new.replace(self._folder / _FILE)
        except OSError as error:
            _log.warning("%s can't be written: %s", new, error)
            self._is_behind = True
        else:
            self._is_behind = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Lock the file; ``False`` if another process holds the lock."""
        if self._folder is None:
            yield True
            return
        path = self._folder / _LOCK
        with contextlib.suppress(OSError):  # it exists, or can't be locked
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        with locked(path) as fd:
            yield fd is not None
