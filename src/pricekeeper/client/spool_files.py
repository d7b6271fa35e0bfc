"""The files of the spool: their folder, their lines and their locks.

A line is a checksum, then one entry or the numbers of reported entries. A damaged line is skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

MEMORY: Final = "memory"
"""As the folder: keep entries in memory only."""
REFUSED_BYTES_MAX: Final = 4 << 20
NAMES_MAX: Final = 16
_SUFFIX: Final = ".spool"
_REFUSED: Final = "refused.log"
_LINE_BYTES_MAX: Final = 1 << 20
_OTHERS: Final = 0o077

_log = logging.getLogger("pricekeeper")


class SpoolEntry(msgspec.Struct, frozen=True):
    """One report to the service."""

    kind: Literal["capture", "usage", "void"]
    id: str
    """Of the authorization or usage record."""
    body: dict[str, Any]
    at_ms: int
    number: int = 0
    """Entries with the same id are both reported."""


class Line(msgspec.Struct, omit_defaults=True):
    """An entry, or the numbers of reported entries."""

    entry: SpoolEntry | None = None
    done: list[int] = []


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(Line).decode


def framed(line: Line) -> bytes:
    """A line as bytes."""
    data = _encode(line)
    return _checksum(data) + b" " + data + b"\n"


def find_folder(configured: str | None, url: str, client_id: str) -> Path | None:
    """The folder of a client's files, created if necessary; ``None`` if there is none.

    A folder that another user could write to or replace is not used.
    """
    if configured == MEMORY:
        return None
    service = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:12]
    for root in _roots(configured):
        folder = root / f"{client_id}@{service}"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            is_ours = _is_ours(folder) and (configured is not None or _is_ours(root))
        except OSError as error:
            _log.debug("no spool in %s: %s", root, error)
            continue
        if is_ours and os.access(folder, os.W_OK | os.X_OK):
            return folder
    _log.warning("no folder for the spool can be written: usage is kept in memory only")
    return None


def create_file(folder: Path) -> tuple[Path, int]:
    """Create a file that is locked by this process."""
    for _ in range(NAMES_MAX):
        path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            if _lock(fd):
                _sync_folder(folder)
                return path, fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # another process has already taken it over
    raise OSError(f"no file in {folder} can be locked")


def files_of(folder: Path) -> list[Path]:
    """The files of all processes."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """The file, locked; ``None`` if a live process holds it or it is missing."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    try:
        yield fd if _lock(fd) else None
    finally:
        os.close(fd)


def read_entries(fd: int, path: Path) -> list[SpoolEntry]:
    """The unreported entries of a file."""
    found: dict[int, SpoolEntry] = {}
    damaged = 0
    with open(os.dup(fd), "rb") as file:  # noqa: PTH123 - it is open already
        file.seek(0)
        for raw in iter(lambda: file.readline(_LINE_BYTES_MAX), b""):
            line = _parse(raw)
            if line is None:
                damaged += 1
            elif line.entry is not None:
                found[line.entry.number] = line.entry
            else:
                for one in line.done:
                    found.pop(one, None)
    if damaged:
        _log.warning("%s: %d lines are damaged, and left out", path, damaged)
    return list(found.values())


def read_folder(folder: Path) -> Iterator[tuple[Path, bool, list[SpoolEntry]]]:
    """Each file's path, whether a live process holds it, and its entries."""
    for path in files_of(folder):
        with locked(path) as fd:
            if fd is not None:
                yield path, False, read_entries(fd, path)
                continue
        try:
            own = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            yield path, True, read_entries(own, path)
        finally:
            os.close(own)


def append_refused(folder: Path, entry: SpoolEntry, reason: str) -> None:
    """Keep an entry that is refused for good, for a person."""
    line = _encode({"reason": reason, **msgspec.to_builtins(entry)}) + b"\n"
    path = folder / _REFUSED
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(fd).st_size < REFUSED_BYTES_MAX:
                write_all(fd, line)
        finally:
            os.close(fd)


def read_refused(folder: Path) -> list[Mapping[str, Any]]:
    """The entries that the service refused for good, with reasons."""
    try:
        lines = (folder / _REFUSED).read_bytes().splitlines()
    except OSError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
    return found


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data, in several steps if necessary."""
    while data:
        data = data[os.write(fd, data) :]


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


def _is_ours(folder: Path) -> bool:
    """Whether it is this user's folder, which is then closed to others."""
    about = folder.lstat()  # not of a link's target
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        return False
    if about.st_mode & _OTHERS:
        folder.chmod(0o700)
    return True


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    # The process that held the lock may have taken the file over and deleted it.
    return os.fstat(fd).st_nlink > 0


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _parse(raw: bytes) -> Line | None:
    checksum, _, data = raw.rstrip(b"\n").partition(b" ")
    if checksum != _checksum(data):
        return None
    try:
        return _decode_line(data)
    except msgspec.DecodeError:
        return None


def _checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)
