"""One worker of several does what has to be done once for all of them.

It is the one that holds a lock on a file in the folder that the workers share. The operating system
lets go of the lock when a worker ends, however it ends, and another one takes it at its next try.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class Election:
    """Whether this worker is the one; without a folder it is alone, and is."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._path = None if folder is None else folder / f"{name}.lock"
        self._descriptor: int | None = None

    def try_to_take_lock(self) -> bool:
        """Try to take the lock, or say that it is held already."""
        if self._path is None or self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
