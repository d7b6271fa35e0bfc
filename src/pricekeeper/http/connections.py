"""Bounds the connections of a server and the bytes they hold.

When there is no room, the connection that has waited longest for its peer is closed: honest
requests arrive within moments.
"""

from __future__ import annotations

import resource
from typing import Any, Final, Protocol

import structlog

from pricekeeper.settings import CONNECTIONS_DEFAULT

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all unanswered requests."""
FILES_RESERVED: Final = 128
"""For the store, its log and the network."""
STATE: Final = "connections"
LISTENERS: Final = "listeners"

_log = structlog.get_logger(__name__)


class Connection(Protocol):
    """What `Connections` asks of a connection."""

    def make_room(self) -> None:
        """Take no further request, release held bytes, and close."""
        ...


class Connections:
    """The open connections, those that wait for their peer, and the bytes they hold."""

    def __init__(self, connections_max: int, held_bytes_max: int) -> None:
        self._connections_max = connections_max
        self.held_bytes_max = held_bytes_max
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}
        """Longest wait first. A dict finds each in one step."""
        self._arriving: dict[Connection, None] = {}
        """Those of them that hold part of a request."""
        self.held_bytes = 0
        """Changed by the connections themselves."""
        self.has_logged_http2 = False

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """``False`` if there is no room and no connection can be closed."""
        if len(self._open) >= self._connections_max and not self._replace_one():
            return False
        self._open.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._arriving.pop(connection, None)

    def note_waiting(self, connection: Connection) -> None:
        if connection in self._open:
            self._waiting[connection] = None

    def stop_waiting(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        self._arriving.pop(connection, None)

    def note_part(self, connection: Connection) -> None:
        if connection in self._open:
            self._arriving[connection] = None

    def limit_bytes(self, connection: Connection) -> None:
        """Bring held bytes below their bound, after ``connection`` added to them.

        Connections with an incomplete request go first, then ``connection``. Accepted requests
        stay.
        """
        while self.held_bytes > self.held_bytes_max:
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
        # Now, not when it has closed: many more may come before.
        self.leave(connection)
        connection.make_room()


def connections_of(state: dict[str, Any]) -> Connections:
    """The connections of the server with this state."""
    found = state.get(STATE)
    if not isinstance(found, Connections):
        found = state[STATE] = Connections(CONNECTIONS_DEFAULT, HELD_BYTES_MAX)
    return found


def affordable_connections(wanted: int) -> int:
    """As many connections as wanted, or as the limit on open files allows."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or wanted + FILES_RESERVED <= files:
        return wanted
    affordable = max(1, files - FILES_RESERVED)
    _log.warning("few_open_files", files=files, connections=affordable, wanted=wanted)
    return affordable
