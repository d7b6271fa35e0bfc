"""An answer goes out in one write, and no header brings a line of its own."""

import pytest

from exchanges import Written, exchange
from pricekeeper.gateway.caller import ABORT
from pricekeeper.http.exchange import Exchange


async def answer(one: Exchange, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await one.send({"type": "http.response.start", "status": 200, "headers": headers})
    await one.send({"type": "http.response.body", "body": body, "more_body": False})


@pytest.mark.parametrize(("method", "body"), [("GET", b"ok"), ("HEAD", b"")])
async def test_head_and_body_are_one_write(method: str, body: bytes) -> None:
    """The answer to HEAD has no body."""
    transport = Written()
    await answer(exchange(transport, method), [(b"content-length", b"2")], b"ok")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + body]
    assert not transport.closed


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


async def test_nothing_is_sent_twice() -> None:
    one = exchange(Written())
    await answer(one, [], b"")
    with pytest.raises(RuntimeError, match="does not come here"):
        await answer(one, [], b"")


async def begin_parts(one: Exchange, *parts: bytes) -> None:
    await one.send({"type": "http.response.start", "status": 200, "headers": []})
    for part in parts:
        await one.send({"type": "http.response.body", "body": part, "more_body": True})


async def test_parts_are_chunks_each_written_when_it_comes() -> None:
    """An empty part writes only the head: an empty chunk would be the last one."""
    transport = Written()
    one = exchange(transport)
    await begin_parts(one, b"", b"first", b"", b"x" * 16)
    assert transport.writes == [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"5\r\nfirst\r\n",
        b"10\r\n" + b"x" * 16 + b"\r\n",
    ]
    await one.send({"type": "http.response.body", "body": b"last"})
    assert b"".join(transport.writes[3:]) == b"4\r\nlast\r\n0\r\n\r\n"
    assert not transport.closed


async def test_http_1_0_has_no_chunks() -> None:
    transport = Written()
    one = exchange(transport, keep_alive=False, version="1.0")
    await begin_parts(one, b"", b"first")
    await one.send({"type": "http.response.body", "body": b"last"})
    assert b"".join(transport.writes) == (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nfirstlast")
    assert transport.closed


@pytest.mark.parametrize(("version", "ended"), [("1.1", "closed"), ("1.0", "aborted")])
async def test_an_answer_that_breaks_off_has_no_end(version: str, ended: str) -> None:
    """Chunks lack their last one; without chunks, an orderly close would look like the end."""
    transport = Written()
    one = exchange(transport, version=version)
    await begin_parts(one, b"first")
    await one.send({"type": ABORT})
    assert [name for name in ("closed", "aborted") if getattr(transport, name)] == [ended]
    await one.send({"type": "http.response.body", "body": b"last"})
    assert b"last" not in b"".join(transport.writes)
    assert b"0\r\n\r\n" not in b"".join(transport.writes)


async def test_an_answer_that_is_whole_is_written_at_once() -> None:
    """If its reader is slow, it must be sent, which waits."""
    sent, written = Written(), Written()
    headers = [(b"x-one", b"1")]
    await answer(exchange(sent), headers, b"body")
    one = exchange(written)
    assert one.write_whole(200, headers, b"body")
    assert written.writes == sent.writes
    assert one.response_complete
    assert not one.write_whole(200, headers, b"body")

    slow = exchange(written)
    slow.flow.pause_writing()
    assert not slow.write_whole(200, headers, b"body")
    gone = exchange(written)
    gone.give_up()
    assert gone.write_whole(200, headers, b"body")
    assert len(written.writes) == 1


async def test_a_body_is_taken_when_all_of_it_is_here() -> None:
    """Otherwise it is received in parts, after a 100-continue if the caller waits for one."""
    one = exchange(Written(), "POST")
    one.body += b"half"
    assert one.take_body() is None
    one.body += b" and half"
    one.more_body = False
    one.waiting_for_100_continue = True
    assert one.take_body() is None
    one.waiting_for_100_continue = False
    assert one.take_body() == b"half and half"
    one.give_up()
    assert one.take_body() is None


async def test_whoever_watches_is_told_once_that_the_caller_has_left() -> None:
    """Before its answer is complete, or at once if it has left already."""
    left: list[str] = []
    watched = exchange(Written())
    watched.watch(lambda: left.append("later"))
    assert left == []
    watched.give_up()
    assert left == ["later"]
    gone = exchange(Written())
    gone.give_up()
    gone.watch(lambda: left.append("before"))
    assert left == ["later", "before"]
    answered = exchange(Written())
    answered.watch(lambda: left.append("never"))
    await answer(answered, [], b"")
    answered.give_up()
    assert left == ["later", "before"]
