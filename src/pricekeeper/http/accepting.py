"""Accepting connections as quickly as they come.

libuv, below uvloop, accepts one connection from a listening socket in one turn of the event loop.
Under load a turn takes some milliseconds, so that a few hundred connections a second were accepted,
and a new one, a health check for example, waited for seconds behind those of a flood. The same
socket under several descriptors is looked at that many times in a turn.
"""

from __future__ import annotations

import socket
from typing import Final

ACCEPTS_PER_TURN: Final = 16


def accepting_sockets(listening: socket.socket) -> list[socket.socket]:
    """The socket, and copies of its descriptor, for a server to accept from all of them."""
    return [listening, *(listening.dup() for _ in range(ACCEPTS_PER_TURN - 1))]
