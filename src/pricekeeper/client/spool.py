"""What the service must still be told, in a file that outlives the process.

Captures, usage records and voids are appended here before anything else is done with them; a
process that is killed afterwards has lost nothing. Each process has a file of its own in the
folder of its client, and holds a lock on it. A file that nobody holds belonged to a process that
is gone: whoever finds it takes its entries over. Telling one twice is harmless, because the
service counts each once.

One line is one entry or the ids of entries that were told, with a checksum before it. A line that
was cut or damaged is left out and reported. What the service refused for good is kept in a second
file, for a person to look at. None of it holds a secret or a word of a prompt.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

ENTRIES_MAX: Final = 20_000
"""How many entries wait at the most. Calls are refused earlier, so that what is under way fits."""
ENTRIES_FULL: Final = ENTRIES_MAX - 2_000
FILE_BYTES_MAX: Final = 8 << 20
"""A file that is longer, and mostly of entries that were told, is written anew."""
REFUSED_BYTES_MAX: Final = 4 << 20
MEMORY: Final = "memory"
"""As the folder: keep nothing in files."""
_SUFFIX: Final = ".spool"
_REFUSED: Final = "refused.log"
_LINE_BYTES_MAX: Final = 1 << 20

_log = logging.getLogger("pricekeeper")


class Entry(msgspec.Struct, frozen=True):
    """One thing to tell the service."""

    kind: Literal["capture", "usage", "void"]
    id: str
    """The authorization's, or the usage record's."""
    body: dict[str, Any]
    at_ms: int


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the file: an entry, or the ids of entries that need not be told any more."""

    entry: Entry | None = None
    done: list[str] = []


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(_Line).decode


class Spool:
    """The entries of one process. Safe to use from any thread."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._pending: dict[str, Entry] = {}
        self._path: Path | None = None
        self._fd = -1
        self._bytes = 0
        self._unsynced = False
        if folder is not None:
            self._open()

    @property
    def folder(self) -> Path | None:
        """Where the file is; ``None`` if all is in memory only."""
        return self._folder

    @property
    def is_full(self) -> bool:
        """Whether no further call should be begun."""
        return len(self._pending) >= ENTRIES_FULL

    def __len__(self) -> int:
        return len(self._pending)

    def append(self, entry: Entry) -> None:
        """Keep an entry. A killed process does not lose it; `sync` is for a machine that stops."""
        with self._lock:
            if len(self._pending) >= ENTRIES_MAX:
                _log.error("the spool is full: %s %s is lost", entry.kind, entry.id)
                return
            self._pending[entry.id] = entry
            self._write(_Line(entry=entry))

    def pending(self, most: int) -> list[Entry]:
        """The entries that have waited longest."""
        with self._lock:
            return [entry for entry, _ in zip(self._pending.values(), range(most), strict=False)]

    def finish(self, ids: Iterable[str]) -> None:
        """Forget entries: the service knows them."""
        with self._lock:
            done = [one for one in ids if self._pending.pop(one, None) is not None]
            if not done or self._fd < 0:
                return
            if not self._pending:
                os.ftruncate(self._fd, 0)
                self._bytes = 0
            else:
                self._write(_Line(done=done))
                if self._bytes > FILE_BYTES_MAX:
                    self._rewrite()

    def postpone(self, entry: Entry) -> None:
        """Put an entry behind the others, in memory: it is told again later."""
        with self._lock:
            if self._pending.pop(entry.id, None) is not None:
                self._pending[entry.id] = entry

    def refuse(self, entry: Entry, reason: str) -> None:
        """Keep an entry that the service will never take apart from the others."""
        _log.error("the price keeper refused %s %s: %s", entry.kind, entry.id, reason)
        if self._folder is not None:
            line = _encode({"reason": reason, **msgspec.to_builtins(entry)}) + b"\n"
            path = self._folder / _REFUSED
            with contextlib.suppress(OSError):
                if not path.exists() or path.stat().st_size < REFUSED_BYTES_MAX:
                    _append_to(path, line)
        self.finish([entry.id])

    def sync(self) -> None:
        """Have the disk keep what was appended."""
        with self._lock:
            fd = os.dup(self._fd) if self._fd >= 0 and self._unsynced else -1
            self._unsynced = False
        if fd >= 0:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def adopt(self) -> int:
        """Take over what processes that are gone have left; how many entries."""
        if self._folder is None:
            return 0
        taken = 0
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path == self._path or len(self._pending) >= ENTRIES_FULL:
                continue
            with _locked(path) as fd:
                if fd is None:
                    continue
                entries = _read(fd, path)
                for entry in entries:
                    self.append(entry)
                self.sync()
                path.unlink(missing_ok=True)
                taken += len(entries)
        return taken

    def close(self) -> None:
        """Let go of the file; it is deleted if everything was told."""
        with self._lock:
            if self._fd < 0:
                return
            if not self._pending and self._path is not None:
                self._path.unlink(missing_ok=True)
            else:
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def abandon(self) -> None:
        """Leave the file to the process that this one was forked from."""
        self._lock = threading.Lock()  # another thread may have held it when the fork happened
        if self._fd >= 0:
            os.close(self._fd)  # the lock stays: the parent has the same open file
            self._fd = -1
        self._pending.clear()

    def _open(self) -> None:
        """Begin a file of this process's own, and lock it."""
        assert self._folder is not None  # noqa: S101 - called only where there is one
        name = f"{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
        path = self._folder / name
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path = path
        except OSError as error:
            _log.warning("no spool file in %s (%s): usage is kept in memory only", path, error)
            self._folder = None
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, line: _Line) -> None:
        if self._fd < 0:
            return
        data = _framed(line)
        try:
            _write_all(self._fd, data)
        except OSError as error:
            _log.error("the spool file can't be written (%s): usage is kept in memory", error)
            return
        self._bytes += len(data)
        self._unsynced = True

    def _rewrite(self) -> None:
        """Begin a new file with the entries that wait, and drop the old one."""
        old_fd, old_path = self._fd, self._path
        self._fd, self._bytes = -1, 0
        self._open()
        for entry in self._pending.values():
            self._write(_Line(entry=entry))
        if self._fd >= 0 and old_path is not None:
            os.fsync(self._fd)
            old_path.unlink(missing_ok=True)
        os.close(old_fd)


def find_folder(configured: str | None, url: str, client_id: str) -> Path | None:
    """The folder of a client's files, made if it can be; ``None`` if none can be written.

    Without a setting it is tried below the user's state folder, and then the temporary one.
    """
    if configured == MEMORY:
        return None
    service = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:12]
    name = f"{client_id}@{service}"
    for root in _roots(configured):
        folder = root / name
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            about = folder.lstat()
        except OSError as error:
            _log.debug("no spool in %s: %s", root, error)
            continue
        if about.st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    _log.warning("no folder for the spool can be written: usage is kept in memory only")
    return None


def read_folder(folder: Path) -> Iterator[tuple[Path, bool, list[Entry]]]:
    """Each file, whether a live process holds it, and the entries that wait in it."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with _locked(path) as fd:
            if fd is not None:
                yield path, False, _read(fd, path)
                continue
        try:
            own = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            yield path, True, _read(own, path)
        finally:
            os.close(own)


def read_refused(folder: Path) -> list[Mapping[str, Any]]:
    """What the service has refused for good, with its reasons."""
    try:
        lines = (folder / _REFUSED).read_bytes().splitlines()
    except OSError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
    return found


def _roots(configured: str | None) -> list[Path]:
    if configured:
        return [Path(configured)]
    roots = []
    state = os.environ.get("XDG_STATE_HOME")
    with contextlib.suppress(RuntimeError):  # there may be no home
        roots.append(
            (Path(state) if state else Path.home() / ".local" / "state") / "pricekeeper" / "spool"
        )
    return [*roots, Path(tempfile.gettempdir()) / f"pricekeeper-spool-{os.getuid()}"]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The file, locked; ``None`` if a live process holds it, or it is gone."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            yield None
            return
        # Whoever held the lock before may have taken the file over: then it has no name any more.
        yield fd if os.fstat(fd).st_nlink else None
    finally:
        os.close(fd)


def _read(fd: int, path: Path) -> list[Entry]:
    """The entries of a file that were not told."""
    found: dict[str, Entry] = {}
    damaged = 0
    with open(os.dup(fd), "rb") as file:  # noqa: PTH123 - it is open already
        file.seek(0)
        for raw in iter(lambda: file.readline(_LINE_BYTES_MAX), b""):
            line = _parse(raw)
            if line is None:
                damaged += 1
            elif line.entry is not None:
                found[line.entry.id] = line.entry
            else:
                for one in line.done:
                    found.pop(one, None)
    if damaged:
        _log.warning("%s: %d lines are damaged, and left out", path, damaged)
    return list(found.values())


def _parse(raw: bytes) -> _Line | None:
    checksum, _, data = raw.rstrip(b"\n").partition(b" ")
    if not raw.endswith(b"\n") or checksum != _checksum(data):
        return None
    try:
        return _decode_line(data)
    except msgspec.DecodeError:
        return None


def _framed(line: _Line) -> bytes:
    data = _encode(line)
    return _checksum(data) + b" " + data + b"\n"


def _checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def _append_to(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _write_all(fd, data)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
