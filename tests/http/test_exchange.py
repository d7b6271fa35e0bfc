"""An answer goes out in one write, and no header brings a line of its own."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from pricekeeper.http.exchange import Exchange


class Written(asyncio.Transport):
    """Remembers what was written, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


def exchange(transport: Written, method: str = "GET", *, keep_alive: bool = True) -> Exchange:
    log = logging.getLogger("test")
    scope: Any = {"method": method}
    flow = FlowControl(transport)
    done = asyncio.Event()
    return Exchange(
        scope,
        transport,
        flow,
        log,
        log,
        access_log=False,
        default_headers=[],
        message_event=done,
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )


async def answer(one: Exchange, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await one.send({"type": "http.response.start", "status": 200, "headers": headers})
    await one.send({"type": "http.response.body", "body": body, "more_body": False})


async def test_head_and_body_are_one_write() -> None:
    transport = Written()
    await answer(exchange(transport), [(b"content-length", b"2")], b"ok")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]
    assert not transport.closed


async def test_the_answer_to_head_has_no_body() -> None:
    transport = Written()
    await answer(exchange(transport, "HEAD"), [(b"content-length", b"2")], b"ok")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"]


@pytest.mark.parametrize("said", [True, False])
async def test_the_last_answer_of_a_connection_says_so_once_and_closes(said: bool) -> None:
    transport = Written()
    headers = [(b"connection", b"close")] if said else []
    await answer(exchange(transport, keep_alive=said), headers, b"")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"]
    assert transport.closed


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
async def test_a_header_can_not_bring_a_line_of_its_own(value: bytes) -> None:
    transport = Written()
    with pytest.raises(RuntimeError, match="more than one line"):
        await answer(exchange(transport), [(b"x-request-id", value)], b"")
    assert transport.writes == []


async def test_nothing_is_sent_twice_or_in_parts() -> None:
    one = exchange(Written())
    await answer(one, [], b"")
    with pytest.raises(RuntimeError, match="does not come here"):
        await answer(one, [], b"")
    other = exchange(Written())
    await other.send({"type": "http.response.start", "status": 200, "headers": []})
    with pytest.raises(RuntimeError, match="whole"):
        await other.send({"type": "http.response.body", "body": b"", "more_body": True})
