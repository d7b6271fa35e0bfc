"""Connections are accepted quickly, however long a turn of the loop is."""

import asyncio
import socket

import pytest
import uvloop

from pricekeeper.http.server import ACCEPTS_PER_TURN, accepting_sockets

CONNECTIONS = 96


async def turns_until_accepted(sockets: list[socket.socket], port: int) -> int:
    """Turns of the loop until all waiting connections are accepted."""
    loop = asyncio.get_running_loop()
    accepted: list[asyncio.BaseTransport] = []

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    servers = [await loop.create_server(Noting, sock=one, backlog=256) for one in sockets]
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    turns = 0
    while len(accepted) < CONNECTIONS:
        await asyncio.sleep(0)
        turns += 1
    for client in clients:
        client.close()
    for server in servers:
        server.close()
    for transport in accepted:
        transport.close()
    return turns


@pytest.mark.parametrize("many", [False, True])
def test_a_turn_accepts_many_connections(many: bool) -> None:
    """One socket accepts one per turn, so new connections waited for seconds.

    If that half fails one day, uvloop accepts more by itself and the copies can go.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        port: int = listening.getsockname()[1]
        sockets = accepting_sockets(listening) if many else [listening]
        turns = uvloop.run(turns_until_accepted(sockets, port))
        for one in sockets:
            one.close()
    if many:
        assert turns <= 2 * CONNECTIONS // ACCEPTS_PER_TURN
    else:
        assert turns >= CONNECTIONS
