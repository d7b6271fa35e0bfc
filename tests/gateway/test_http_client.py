"""HTTP as the gateway speaks it to Bedrock: what is sent, what comes back, and what is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import pytest

from free_port import free_port
from pricekeeper.gateway.http_client import (
    HEAD_BYTES_MAX,
    PIECE_BYTES,
    UNREAD_BYTES_MAX,
    HttpClient,
    HttpReply,
    NotSentError,
    ReplyBrokenError,
    Waits,
)

LONG = Waits(connect=10, silence=60, unused=60)
HEADERS = {"host": "h", "content-type": "application/json"}
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"content-length: 2\r\n\r\nhi"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@dataclass
class Peer:
    """One connection as the server has it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next request, whole."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def closed(self) -> bool:
        """Wait until the client has closed it."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


Serve = Callable[[Peer], Awaitable[None]]


@dataclass
class Server:
    """A server that does what a test says with each of its connections."""

    client: HttpClient
    peers: list[Peer] = field(default_factory=list)


@asynccontextmanager
async def serving(serve: Serve, waits: Waits = LONG) -> AsyncIterator[Server]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        made.peers.append(peer)
        try:
            await serve(peer)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass  # the client has closed it
        finally:
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    made = Server(HttpClient(f"http://127.0.0.1:{port}", waits))
    async with asyncio.timeout(20):
        try:
            yield made
        finally:
            await made.client.close()
            listening.close()
            await listening.wait_closed()


async def ask(server: Server, body: bytes = b"{}", path: str = "/") -> HttpReply:
    """The reply to one request, which has begun."""
    return await (await server.client.post(path, HEADERS, body)).head()


async def read_all(reply: HttpReply) -> bytes:
    parts = []
    with closing(reply):
        while part := await reply.read():
            parts.append(part)
    return b"".join(parts)


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was so")


def answering(*answers: bytes) -> Serve:
    """Answer the requests of a connection with these, one by one, and then close it."""

    async def serve(peer: Peer) -> None:
        for answer in answers:
            await peer.request()
            peer.write(answer)

    return serve


async def test_a_request_is_one_piece_of_http() -> None:
    seen: list[bytes] = []

    async def serve(peer: Peer) -> None:
        seen.append(await peer.request())
        peer.write(WHOLE)

    async with serving(serve) as server:
        reply = await ask(server, b'{"a":1}', "/model/a%3Ab/converse")
        assert await read_all(reply) == b"hi"
    (request,) = seen
    assert request == (
        b"POST /model/a%3Ab/converse HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        b'content-length: 7\r\n\r\n{"a":1}'
    )


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (WHOLE, b"hi"),
        (OK + b"content-length: 0\r\n\r\n", b""),
        (CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
        (CHUNKED + b"1\r\na\r\n0\r\nx-trailer: 1\r\n\r\n", b"a"),
        (OK + b"\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + WHOLE, b"hi"),
    ],
)
async def test_a_reply_is_read_to_its_end(answer: bytes, body: bytes) -> None:
    """However it says where that is; what only announces it is no reply."""
    async with serving(answering(answer)) as server:
        reply = await ask(server)
        assert reply.status == 200
        assert await read_all(reply) == body
        assert b"x-trailer" not in dict(reply.raw_headers)


async def test_headers_are_as_they_came_with_names_in_lower_case() -> None:
    answer = OK + b"X-One: 1\r\nx-one: 2\r\nSet: \xe9\r\ncontent-length: 0\r\n\r\n"
    async with serving(answering(answer)) as server:
        reply = await ask(server)
        await read_all(reply)
    assert reply.raw_headers == [
        (b"x-one", b"1"), (b"x-one", b"2"), (b"set", b"\xe9"), (b"content-length", b"0")
    ]  # fmt: skip
    assert reply.headers == {"x-one": "1", "set": "é", "content-length": "0"}


async def test_parts_are_there_as_they_come() -> None:
    go_on = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.write(CHUNKED)
        for part in (b"one", b"two"):
            await go_on.wait()
            go_on.clear()
            peer.write(b"3\r\n%b\r\n" % part)
        peer.write(b"0\r\n\r\n")

    async with serving(serve) as server:
        reply = await ask(server)
        go_on.set()
        assert await reply.read() == b"one"
        go_on.set()
        assert await reply.read() == b"two"
        assert await reply.read() == b""
        assert await reply.read() == b""


async def test_what_came_before_nonsense_can_be_read() -> None:
    async with serving(answering(CHUNKED + b"3\r\none\r\n3\r\ntwo\r\nnonsense\r\n")) as server:
        reply = await ask(server)
        assert await reply.read() == b"onetwo"
        with pytest.raises(ReplyBrokenError, match="no answer"):
            await reply.read()


async def test_a_connection_is_used_again_and_one_that_is_to_close_is_not() -> None:
    closing = OK + b"connection: close\r\ncontent-length: 0\r\n\r\n"
    async with serving(answering(WHOLE, WHOLE, closing)) as server:
        for connections in (1, 1, 1, 2, 2):
            await read_all(await ask(server))
            assert len(server.peers) == connections


async def test_a_connection_that_was_closed_meanwhile_is_not_used() -> None:
    async with serving(answering(WHOLE)) as server:
        await read_all(await ask(server))
        await turns_until(lambda: not server.client._all)  # the end has been seen
        assert await read_all(await ask(server)) == b"hi"
    assert len(server.peers) == 2


async def test_whoever_does_not_read_to_the_end_closes_the_connection() -> None:
    closed: list[bool] = []

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.write(CHUNKED + b"1\r\na\r\n")
        closed.append(await peer.closed())

    async with serving(serve) as server:
        with closing(await ask(server)) as reply:
            assert await reply.read() == b"a"
        await turns_until(lambda: bool(closed))
    assert closed == [True]


async def test_without_a_server_nothing_was_sent() -> None:
    client = HttpClient(f"http://127.0.0.1:{free_port()}", LONG)
    for _ in range(3):  # no place is lost either
        with pytest.raises(NotSentError):
            await client.post("/", HEADERS, b"{}")
    with pytest.raises(NotSentError):
        await HttpClient("http://no-such-host.invalid", LONG).post("/", HEADERS, b"{}")


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
async def test_a_header_can_not_bring_another_one(value: str) -> None:
    async with serving(answering(WHOLE)) as server:
        with pytest.raises(NotSentError):
            await server.client.post("/", {**HEADERS, "accept": value}, b"{}")
        assert server.peers == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        OK,
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 101 Other\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        OK + b"x: %b\r\n\r\n" % (b"a" * HEAD_BYTES_MAX),
    ],
)
async def test_what_has_no_head_is_broken(answer: bytes) -> None:
    async with serving(answering(answer)) as server:
        with pytest.raises(ReplyBrokenError):
            await ask(server)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"content-length: 9\r\n\r\nhi",
        CHUNKED + b"2\r\nhi\r\n",
        CHUNKED + b"2\r\nhi\r\nnonsense",
    ],
)
async def test_what_has_no_end_is_broken(answer: bytes) -> None:
    """What came is there to be read; then it says so."""
    async with serving(answering(answer)) as server:
        reply = await ask(server)
        assert await reply.read() == b"hi"
        for _ in range(2):
            with pytest.raises(ReplyBrokenError):
                await reply.read()


@pytest.mark.parametrize("apart", [False, True])
async def test_an_answer_too_many_is_nobodys(apart: bool) -> None:
    """It must never be taken for the answer to the next request."""
    again = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        if not apart:
            peer.write(WHOLE + OK + b"content-length: 5\r\n\r\nstray")
        else:
            peer.write(WHOLE)
            await peer.writer.drain()
            await again.wait()
            peer.write(OK + b"content-length: 5\r\n\r\nstray")
        await peer.closed()

    async with serving(serve) as server:
        assert await read_all(await ask(server)) == b"hi"
        again.set()
        await turns_until(lambda: not server.client._all)
        again.clear()
        assert await read_all(await ask(server)) == b"hi"
    assert len(server.peers) == 2


async def test_silence_ends_a_reply_before_and_in_it() -> None:
    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.write(answers.pop())
        await peer.closed()

    answers = [b"", CHUNKED + b"1\r\na\r\n"]
    async with serving(serve, LONG._replace(silence=0.05)) as server:
        reply = await ask(server)
        assert await reply.read() == b"a"
        with pytest.raises(TimeoutError):
            await reply.read()
        with pytest.raises(TimeoutError):
            await ask(server)


async def test_a_connection_that_nobody_uses_is_closed() -> None:
    closed = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.write(WHOLE)
        await peer.closed()
        closed.set()

    async with serving(serve, LONG._replace(unused=0.05)) as server:
        await read_all(await ask(server))
        await closed.wait()


async def test_what_nobody_reads_waits_with_the_server_and_is_no_silence() -> None:
    size = 64 * UNREAD_BYTES_MAX
    sent: list[int] = []

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.write(OK + b"content-length: %d\r\n\r\n" % size)
        for _ in range(64):
            peer.write(b"x" * UNREAD_BYTES_MAX)
            await peer.writer.drain()
            sent.append(UNREAD_BYTES_MAX)

    async with serving(serve, LONG._replace(silence=5)) as server:
        reply = await ask(server)
        await turns_until(lambda: reply.size > UNREAD_BYTES_MAX)
        began = asyncio.get_running_loop().time()
        server.client._look()
        for connection in server.client._all:
            assert not connection.is_due(began + 60, server.client._waits)
        assert reply.size < size / 8
        assert sum(sent) < size
        assert len(await read_all(reply)) == size


async def test_a_long_body_goes_out_whole() -> None:
    body = bytes(range(256)) * (5 * PIECE_BYTES // 256) + b"end"
    seen: list[bytes] = []

    async def serve(peer: Peer) -> None:
        for _ in range(2):
            seen.append((await peer.request()).partition(b"\r\n\r\n")[2])
            peer.write(WHOLE)

    async with serving(serve) as server:
        for _ in range(2):
            assert await read_all(await ask(server, body)) == b"hi"
        assert len(server.peers) == 1
    assert seen == [body, body]


async def test_whoever_answers_before_the_end_of_a_body_gets_no_more_of_it() -> None:
    """What is left of the body would be taken for the next request."""

    async def serve(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await peer.writer.drain()
        await peer.closed()

    async with serving(serve) as server:
        reply = await ask(server, bytes(64 * PIECE_BYTES))
        assert (reply.status, await read_all(reply)) == (413, b"")
        await turns_until(lambda: not server.client._all)


async def test_whoever_leaves_closes_its_connection() -> None:
    closed: list[bool] = []

    async def serve(peer: Peer) -> None:
        await peer.request()
        if len(closed) < 3:
            closed.append(await peer.closed())
        else:
            peer.write(WHOLE)

    async with serving(serve) as server:
        for number in range(3):
            call = asyncio.create_task(ask(server))
            await turns_until(lambda: len(server.peers) > number)  # noqa: B023 - awaited at once
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
        assert await read_all(await ask(server)) == b"hi"
    assert closed == [True] * 3
