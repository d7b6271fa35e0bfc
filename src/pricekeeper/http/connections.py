"""All connections of one server: how many there may be, and how much they may hold together.

One connection is bounded by its own protocol. Many of them are bounded here, because a caller
may open as many as it likes and leave each of them half way. When there is no room, the one that
has kept us waiting longest makes room for the newcomer: an honest request arrives whole within
moments, so whoever holds a place for the sake of holding it is the first to lose it.
"""

from __future__ import annotations

import resource
from typing import Any, Final, Protocol

import structlog

from pricekeeper.settings import CONNECTIONS_DEFAULT

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Heads and bodies of requests that have not been answered yet, of all connections together."""
FILES_RESERVED: Final = 128
"""Files that the process opens besides its connections: the store, its log, the network."""
STATE: Final = "connections"
"""The name in the server's state under which every connection finds this."""
LISTENERS: Final = "listeners"
"""The same for those who listen to events, and who have to leave when the server stops."""

_log = structlog.get_logger(__name__)


class Connection(Protocol):
    """What is asked of a connection when there is no room."""

    def make_room(self) -> None:
        """Take no further request, release what is held, and close."""
        ...


class Connections:
    """The connections of one server."""

    def __init__(self, connections_max: int, held_bytes_max: int) -> None:
        self._connections_max = connections_max
        self.held_bytes_max = held_bytes_max
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}
        """Those that wait for their peer, to begin a request or to finish it; the first of
        them waits longest. A dict keeps that order, and finds each in one step."""
        self._arriving: dict[Connection, None] = {}
        """Those that hold part of a request, in the same order."""
        self.held_bytes = 0
        """What all of them hold. Connections add to it and take from it themselves."""
        self.has_logged_http2 = False
        """Whether the log says that callers speak HTTP/2; it says so once."""

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """Count a new connection; ``False`` if there is no room and nobody who can make some."""
        if len(self._open) >= self._connections_max and not self._replace_one():
            return False
        self._open.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._arriving.pop(connection, None)

    def note_waiting(self, connection: Connection) -> None:
        """Note that the connection waits for its peer from now on."""
        if connection in self._open:
            self._waiting[connection] = None

    def stop_waiting(self, connection: Connection) -> None:
        """Note that its request is whole, or that a new one begins."""
        self._waiting.pop(connection, None)
        self._arriving.pop(connection, None)

    def note_part(self, connection: Connection) -> None:
        """Note that it holds part of a request."""
        if connection in self._open:
            self._arriving[connection] = None

    def limit_bytes(self, connection: Connection) -> None:
        """Bring what is held back below its bound, after that connection has added to it.

        Those whose request is not whole yet go first. If that is not enough, the newcomer goes:
        what was accepted before is being worked on, and will be answered.
        """
        while self.held_bytes > self.held_bytes_max:  # ends: each one that goes is gone
            longest = next(iter(self._arriving), connection)
            self._remove(longest)
            if longest is connection:
                return

    def _replace_one(self) -> bool:
        longest = next(iter(self._waiting), None)
        if longest is None:
            return False
        self._remove(longest)
        return True

    def _remove(self, connection: Connection) -> None:
        # At once, not when it has closed: many may come before the loop gets round to that.
        self.leave(connection)
        connection.make_room()


def connections_of(state: dict[str, Any]) -> Connections:
    """The connections of the server whose state this is."""
    found = state.get(STATE)
    if not isinstance(found, Connections):
        found = state[STATE] = Connections(CONNECTIONS_DEFAULT, HELD_BYTES_MAX)
    return found


def affordable_connections(wanted: int) -> int:
    """As many connections as that, or as few as the limit on open files leaves room for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or wanted + FILES_RESERVED <= files:
        return wanted
    affordable = max(1, files - FILES_RESERVED)
    _log.warning("few_open_files", files=files, connections=affordable, wanted=wanted)
    return affordable
