"""Reports that the service must still get, in a file that outlives the process.

Each process locks its own file; another takes over the entries of a file without a lock. Reporting
twice is harmless: the service counts once.

Entries refused for good go into a second file. No entry contains a secret or prompt text.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from pricekeeper.client.spool_files import (
    Line,
    SpoolEntry,
    append_refused,
    create_file,
    files_of,
    find_folder,
    framed,
    locked,
    read_entries,
    read_folder,
    read_refused,
    write_all,
)

__all__ = ["Spool", "SpoolEntry", "find_folder", "read_folder", "read_refused"]

ENTRIES_MAX: Final = 20_000
"""Entries that may wait. Calls are refused earlier, so that calls under way fit."""
ENTRIES_FULL: Final = ENTRIES_MAX - 2_000
FILE_BYTES_MAX: Final = 8 << 20
"""A longer file of mostly reported entries is rewritten."""

_log = logging.getLogger("pricekeeper")


class Spool:
    """The entries of one process, for any thread."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        """``None``: in memory only."""
        # Reentrant: a finalizer may append while its thread holds the lock.
        self._lock = threading.RLock()
        self._pending: dict[int, SpoolEntry] = {}
        self.last_number = 0
        self._path: Path | None = None
        self._fd = -1
        self._bytes = self._bytes_at_first = 0
        self._is_unsynced = False
        self._is_behind = False
        """Whether some entries could not be written to the file."""
        self._is_closed = False
        if folder is not None and not self._begin_file():
            self.folder = None

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= ENTRIES_FULL

    def __len__(self) -> int:
        return len(self._pending)

    def append(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Keep an entry and number it; ``None`` if there is no room. It survives the process."""
        with self._lock:
            if len(self._pending) >= ENTRIES_MAX:
                _log.error("the spool is full: %s %s is lost", entry.kind, entry.id)
                return None
            if self._is_closed:  # earlier entries are in a file that belongs to another process now
                self._pending.clear()
                self._is_closed = False
            self.last_number += 1
            kept = msgspec.structs.replace(entry, number=self.last_number)
            data = framed(Line(entry=kept))  # raises for what is no JSON, before it is kept
            self._pending[kept.number] = kept
            self._write(data)
            return kept

    def pending(self, most: int) -> list[SpoolEntry]:
        with self._lock:
            return list(islice(self._pending.values(), most))

    def finish(self, entries: Iterable[SpoolEntry]) -> None:
        with self._lock:
            numbers = (one.number for one in entries)
            done = [one for one in numbers if self._pending.pop(one, None) is not None]
            if not done or self._fd < 0:
                return
            if not self._pending:
                self._empty_file()
                return
            self._write(framed(Line(done=done)))
            if self._bytes > max(FILE_BYTES_MAX, 2 * self._bytes_at_first):
                self._begin_file()

    def postpone(self, entry: SpoolEntry) -> None:
        """Move an entry behind the others, in memory."""
        with self._lock:
            if self._pending.pop(entry.number, None) is not None:
                self._pending[entry.number] = entry

    def refuse(self, entry: SpoolEntry, reason: str) -> None:
        """Set an entry aside that is refused for good."""
        _log.error("the price keeper refused %s %s: %s", entry.kind, entry.id, reason)
        if self.folder is not None:
            append_refused(self.folder, entry, reason)
        self.finish([entry])

    def sync(self) -> None:
        """Write appended entries to the disk."""
        with self._lock:
            fd = os.dup(self._fd) if self._fd >= 0 and self._is_unsynced else -1
            self._is_unsynced = False
        if fd < 0:
            return
        try:
            os.fsync(fd)
        except OSError as error:
            self._is_unsynced = True
            _log.error("the spool file can't be written to disk: %s", error)
        finally:
            os.close(fd)

    def adopt(self) -> int:
        """Take over entries of ended processes; returns how many."""
        if self.folder is None:
            return 0
        taken = 0
        for path in files_of(self.folder):
            if path == self._path:
                continue
            with locked(path) as fd:
                entries = [] if fd is None else read_entries(fd, path)
                if fd is None or not self._has_room(len(entries)):
                    continue
                for entry in entries:
                    self.append(entry)
                self.sync()
                if not self._is_behind:
                    path.unlink(missing_ok=True)
                taken += len(entries)
        return taken

    def close(self) -> None:
        """Release the file, and delete it if no entry waits."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            in_memory = bool(self._pending) and (self._fd < 0 or self._is_behind)
            if in_memory and (self.folder is None or not self._begin_file()):
                _log.error("%d entries were kept in memory only, and are lost", len(self))
            if self._fd < 0:
                return
            with contextlib.suppress(OSError):
                if not self._pending and self._path is not None:
                    self._path.unlink(missing_ok=True)
                else:
                    os.fsync(self._fd)
            os.close(self._fd)
            self._fd, self._path = -1, None

    def abandon(self) -> None:
        """After a fork: leave the file to the parent."""
        self._lock = threading.RLock()  # another thread may have held it when the fork happened
        if self._fd >= 0:
            os.close(self._fd)  # the lock stays: the parent has the same open file
        self._fd, self._path, self._is_behind = -1, None, False
        self._pending.clear()

    def _has_room(self, entries: int) -> bool:
        """Whether that many fit and calls can still begin; an empty spool takes any number."""
        if self._is_behind:
            return False
        waiting = len(self._pending)
        return waiting + entries < ENTRIES_FULL or (not waiting and entries <= ENTRIES_MAX)

    def _write(self, data: bytes) -> None:
        """Append to the file. If that fails, begin a new one with all entries."""
        if self.folder is None:
            return
        if self._fd < 0 or self._is_behind:
            self._begin_file()
            return
        try:
            write_all(self._fd, data)
        except OSError as error:
            self._is_behind = True
            _log.error("the spool file can't be written (%s): usage is kept in memory", error)
            return
        self._bytes += len(data)
        self._is_unsynced = True

    def _empty_file(self) -> None:
        try:
            os.ftruncate(self._fd, 0)
        except OSError as error:  # reporting its entries again is harmless
            _log.error("the spool file can't be emptied: %s", error)
            return
        self._bytes = self._bytes_at_first = 0
        self._is_behind = False

    def _begin_file(self) -> bool:
        """Write all entries to a new file, drop the old one; returns whether that worked."""
        assert self.folder is not None  # noqa: S101 - called only where there is one
        data = b"".join(framed(Line(entry=one)) for one in self._pending.values())
        try:
            path, fd = create_file(self.folder)
        except OSError as error:
            self._report_unwritable(error)
            return False
        try:
            write_all(fd, data)
            os.fsync(fd)
        except OSError as error:
            os.close(fd)
            path.unlink(missing_ok=True)
            self._report_unwritable(error)
            return False
        old_fd, old_path = self._fd, self._path
        self._fd, self._path = fd, path
        self._bytes = self._bytes_at_first = len(data)
        self._is_behind = False
        if old_fd >= 0 and old_path is not None:
            old_path.unlink(missing_ok=True)
            os.close(old_fd)
        return True

    def _report_unwritable(self, error: OSError) -> None:
        if self._fd < 0 and not self._is_behind:
            _log.warning("no spool file in %s (%s): usage is in memory only", self.folder, error)
            self._is_behind = True
