"""Exports to a folder: files are written aside, synced, and renamed into place.

Unfinished files are in a locked scratch folder; the next export removes a dead process's.
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
    """A folder of one process, removed with it."""

    def __init__(self, parent: Path) -> None:
        _remove_abandoned(parent)
        self.path, self._lock = _make_locked(parent)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


class FolderDestination:
    """A folder of this machine."""

    def __init__(self, path: str) -> None:
        """Create the folder if missing; raises `ExportError`."""
        self._root = Path(path)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._scratch = ScratchFolder(self._root)
        except OSError as error:
            raise ExportError(f"can't write to {path}: {error.strerror}") from error

    @property
    def scratch(self) -> Path:
        return self._scratch.path

    async def put_file(self, path: str, written: WrittenFile) -> None:
        await self._run(self._move, written.path, path)

    async def put_bytes(self, path: str, content: bytes) -> None:
        await self._run(self._write, path, content)

    async def read(self, path: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return (self._root / path).read_bytes()
        return None

    async def has(self, file: FileEntry) -> bool:
        path = self._root / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            return False
        return await asyncio.to_thread(sha256_of, path) == file.sha256

    async def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    async def close(self) -> None:
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
    """Make and lock a folder, which another process may remove meanwhile."""
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
        with contextlib.suppress(OSError):  # it is locked, or was just removed
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
