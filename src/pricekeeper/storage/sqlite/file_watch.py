"""Checks that the database file is still the opened one, and that only SQLite changes it.

Writes to a removed or replaced file are lost when the process ends. So after each commit, before
callers get their answers:

- The file and its log must have the device and inode of the opened ones.
- Only checkpoints may change the file's bytes. A copy over the name moves the modification time
  without more frames written back. Another process's checkpoint is waited for, up to
  `CHECKPOINT_MS_MAX`. If it committed in between, nothing is concluded: it may have reset the log.

A failure, also a damaged file, is final: everything is refused until a restart.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import apsw
import structlog

from pricekeeper.concurrency import error_copy
from pricekeeper.errors import StoreDamagedError, StoreMisconfiguredError, StoreReplacedError
from pricekeeper.telemetry import StoreMeter

CHECKPOINT_MS_MAX: Final = 10_000
LOOK_AGAIN_MS: Final = 20

_log = structlog.get_logger(__name__)


_Identity: TypeAlias = tuple[int, int]


class _Written(NamedTuple):
    """The state of the file and its log, as one connection sees them."""

    modified_ns: int
    bytes: int
    log_frames: int
    frames_written_back: int
    own_frames: int
    others_version: int


class FileWatch:
    """Watches the files of one store. The writer thread verifies; any thread may look."""

    def __init__(
        self,
        path: str,
        connection: apsw.Connection,
        meter: StoreMeter,
        *,
        checkpoint_ms_max: int = CHECKPOINT_MS_MAX,
    ) -> None:
        self._path = str(Path(path).absolute())
        self._log_path = connection.filename_wal
        self._index_path = f"{connection.filename}-shm"
        self._connection = connection
        self._meter = meter
        self._checkpoint_ms_max = checkpoint_ms_max
        self._finding = threading.Lock()
        self.failure: StoreMisconfiguredError | None = None
        self.overwritten = False
        """Whether another program wrote to the file, so that the log does not fit it."""
        self._opened = _identity_of(self._path)
        self._log = _identity_of(self._log_path)
        self._index = _identity_of(self._index_path)
        found = _stat(self._path)
        if found is None or _identity(found) != self._opened or _has_moved(connection):
            raise StoreMisconfiguredError(f"{path} was replaced while it was being opened")
        others_version: int = connection.execute("PRAGMA data_version").get
        self._written = self._read_written(found, others_version)

    def refuse_if_unusable(self, *, may_be_applied: bool = False) -> None:
        if self.failure is not None:
            error = error_copy(self.failure)
            error.may_be_applied = may_be_applied
            raise error

    def look(self) -> os.stat_result | None:
        """Compare the names with the opened files; returns the file's stat if they match."""
        if self.failure is not None:
            return None
        found = _stat(self._path)
        if found is None or _identity(found) != self._opened:
            self._fail_and_keep_log()
            return None
        log, index = _identity_of(self._log_path), _identity_of(self._index_path)
        if self._log is None:  # SQLite makes them when they are first needed
            self._log, self._index = log, index
        if log == self._log and index == self._index:
            return found
        self._fail_as_replaced(
            f"the log of {self._path} was removed or replaced while the service ran; "
            "restart it with SIGTERM, which saves what the log held"
        )
        return None

    def verify(self, others_version: int) -> int:
        """Look, and check that only SQLite has changed the file since the last time.

        ``others_version`` is the data version that the commit has seen. Returns the log's length in
        frames.
        """
        found = self.look()
        if found is None:
            return 0
        known = self._written
        if (found.st_mtime_ns, found.st_size) != known[:2]:
            self.accept()
            self._wait_for_checkpoint(known)
        else:
            self._written = self._read_written(found, others_version)
        return self._written.log_frames

    def accept(self) -> None:
        found = _stat(self._path)
        if found is not None:  # else the next look says so
            others_version: int = self._connection.execute("PRAGMA data_version").get
            self._written = self._read_written(found, others_version)

    def _wait_for_checkpoint(self, known: _Written) -> None:
        patience_ms = self._checkpoint_ms_max
        while self.look() is not None and not _is_explained(known, self._written):
            if patience_ms <= 0:
                self.overwritten = True
                self._fail_as_replaced(
                    f"{self._path} was overwritten while the service ran; stop it, remove "
                    f"{self._log_path} and {self._index_path}, restore the file again, "
                    "and restart the service"
                )
                return
            time.sleep(LOOK_AGAIN_MS / 1000)
            patience_ms -= LOOK_AGAIN_MS
            self.accept()

    def note_damage(self, error: apsw.Error) -> None:
        self._fail(
            StoreDamagedError(
                f"{self._path} is damaged ({error}); stop the service, look at it with "
                "pricekeeper doctor, restore a backup, and restart the service"
            ),
            "damaged",
        )

    def _fail_and_keep_log(self) -> None:
        """Fail, and keep the old log from being replayed into the new file."""
        kept = [
            moved
            for name, opened in ((self._log_path, self._log), (self._index_path, self._index))
            if opened is not None and (moved := _move_aside(name, opened))
        ]
        kept_note = f"; the log of the old file is kept in {kept[0]}" if kept else ""
        self._fail_as_replaced(
            f"{self._path} was removed or replaced while the service ran; restart it to "
            f"use the present file{kept_note}"
        )

    def _fail_as_replaced(self, reason: str) -> None:
        self._fail(StoreReplacedError(reason), "replaced")

    def _fail(self, failure: StoreMisconfiguredError, kind: str) -> None:
        with self._finding:
            if self.failure is not None:
                return
            self.failure = failure
        self._meter.faults[kind] += 1
        _log.error("store_unusable", code=failure.code, reason=str(failure))

    def _read_written(self, found: os.stat_result, others_version: int) -> _Written:
        connection = self._connection
        own_frames, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)
        log_frames, written_back = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return _Written(
            found.st_mtime_ns, found.st_size, log_frames, written_back, own_frames, others_version
        )


def _is_explained(known: _Written, now: _Written) -> bool:
    if now.others_version != known.others_version:
        return True
    begun_anew = now.log_frames < known.log_frames + now.own_frames - known.own_frames
    if begun_anew:  # which takes a log that is written back as a whole
        return known.frames_written_back < known.log_frames or now.frames_written_back > 0
    return now.frames_written_back > known.frames_written_back


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a Path takes as long again as the call itself
    except OSError:
        return None


def _identity_of(path: str) -> _Identity | None:
    found = _stat(path)
    return None if found is None else _identity(found)


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino


def _has_moved(connection: apsw.Connection) -> bool:
    """Whether the name belongs to another file now, by SQLite's own file layer."""
    moved = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    return bool(moved.value)


def _move_aside(path: str, opened: _Identity) -> str | None:
    if _identity_of(path) != opened:
        return None
    moved = f"{path}.of-replaced-{opened[1]}"
    try:
        os.rename(path, moved)  # noqa: PTH104 - as above
    except OSError:
        return None
    return moved
