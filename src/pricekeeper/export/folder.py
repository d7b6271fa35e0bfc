"""Exports in a folder: written aside, synced, and moved into place in one step.

Unfinished files are in a scratch folder of their own, inside of the destination, so that moving is
a rename. Its owner holds a lock on it. The operating system lets go of the lock when a process
ends, however it ends; the next export removes whatever scratch folders nobody holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from pricekeeper.errors import ExportError
from pricekeeper.export.files import WrittenFile, sha256_of
from pricekeeper.export.manifest import FileEntry

_SCRATCH: Final = ".scratch-"
_ATTEMPTS_MAX: Final = 5


class ScratchFolder:
    """A folder of one process, which ends with it."""

    def __init__(self, parent: Path) -> None:
        _remove_abandoned(parent)
        self.path, self._lock = _make_locked(parent)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


class FolderDestination:
    """A folder of this machine."""

    def __init__(self, path: str) -> None:
        """Make the folder if it is missing. Raises `ExportError` if that can't be."""
        self._root = Path(path)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._scratch = ScratchFolder(self._root)
        except OSError as error:
            raise ExportError(f"can't write to {path}: {error.strerror}") from error

    @property
    def scratch(self) -> Path:
        """Where files are written before they are moved."""
        return self._scratch.path

    async def put_file(self, path: str, written: WrittenFile) -> None:
        """Move a file of the scratch folder there."""
        await self._run(self._move, written.path, path)

    async def put_bytes(self, path: str, content: bytes) -> None:
        """Write these bytes aside, and move them there."""
        await self._run(self._write, path, content)

    async def read(self, path: str) -> bytes | None:
        """What is there."""
        with contextlib.suppress(FileNotFoundError):
            return (self._root / path).read_bytes()
        return None

    async def has(self, file: FileEntry) -> bool:
        """Whether exactly that file is there: its content is hashed."""
        path = self._root / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            return False
        return await asyncio.to_thread(sha256_of, path) == file.sha256

    async def remove(self, path: str) -> None:
        """Remove what is there."""
        (self._root / path).unlink(missing_ok=True)

    async def close(self) -> None:
        """Remove the scratch folder."""
        self._scratch.close()

    async def _run(self, function: object, *arguments: object) -> None:
        try:
            await asyncio.to_thread(function, *arguments)  # type: ignore[arg-type]
        except OSError as error:
            raise ExportError(f"can't write to {self._root}: {error.strerror}") from error

    def _write(self, path: str, content: bytes) -> None:
        aside = self.scratch / "aside"
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._move(aside, path)

    def _move(self, source: Path, path: str) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        for folder in (target.parent, target.parent.parent):  # both names must survive a crash
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _make_locked(parent: Path) -> tuple[Path, int]:
    """Make a folder and hold its lock. Somebody may take it for abandoned before it is held."""
    for _ in range(_ATTEMPTS_MAX):
        path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=parent))
        lock = os.open(path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_dir():
            return path, lock
        os.close(lock)
    raise ExportError(f"others keep removing the scratch folders in {parent}")


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):  # somebody holds it, or has removed it just now
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
