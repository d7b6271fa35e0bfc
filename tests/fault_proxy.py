"""An unreliable wire between the DynamoDB adapter and a real engine.

`FaultProxy` listens on loopback and passes requests on. What happens to a request is decided
one at a time: from a script (`next`), else by odds and a seed (`misbehave`), else nothing bad.
Everything that came by is in `seen`, with whether it reached the engine, so that a test can
count how often something was really applied.

    async with FaultProxy(engine) as proxy:
        proxy.next("UpdateItem", Fault.STALL_AFTER, Fault.NONE)

A function in a script is called, and awaited, before its request is passed on: what another
writer does at the worst moment.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any, Self, TypeAlias

import aiohttp

_SETTLING_TURNS = 8
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_NOT_PASSED_ON = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}


class Fault(Enum):
    """What the wire does to one request. ``AFTER`` and ``BEFORE`` are seen from applying it."""

    NONE = "none"
    STALL_AFTER = "applied, then silence"
    CLOSE_AFTER = "applied, then closed without a byte"
    RESET_MID_BODY = "applied, then reset in the middle of the reply"
    SHORT_BODY = "applied, then closed in the middle of the reply"
    SERVER_ERROR_AFTER = "applied, then a 500"
    CORRUPT_AFTER = "applied, then a reply with a wrong byte"
    NONSENSE_AFTER = "applied, then something that is not HTTP"
    CLOSE_BEFORE = "not applied, closed without a byte"
    SERVER_ERROR_BEFORE = "not applied, a 500"
    THROTTLE = "not applied, asked to slow down"
    CONFLICT = "not applied, another transaction was there"
    LATE = "silence, and applied when released"
    HALF = "BatchGetItem: half of the keys are left unprocessed"


@dataclass(frozen=True, slots=True)
class Canned:
    """A reply made up by the test; the request is not applied."""

    reply: Mapping[str, Any]
    status: int = 400
    headers: Mapping[str, str] = field(default_factory=dict)


Meanwhile: TypeAlias = Callable[[], Awaitable[object]]
Step: TypeAlias = Fault | Canned | Meanwhile


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came by."""

    action: str
    body: bytes
    applied: bool

    @property
    def request(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.body)
        return decoded


@dataclass(slots=True)
class _Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} X", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class FaultProxy:
    """A proxy that fails as told."""

    def __init__(self, engine: str) -> None:
        self.seen: list[Seen] = []
        self.date = ""
        """What the engine's replies say instead of their own date, if anything."""
        self._engine = engine
        self._scripts: dict[str, deque[Step]] = defaultdict(deque)
        self._odds_pct: Mapping[Fault, int] = {}
        self._random = Random(0)
        self._listener: socket.socket | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._late: list[tuple[str, dict[str, str], bytes]] = []
        self._upstream: aiohttp.ClientSession | None = None
        self._news = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return len(self._connections)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def next(self, action: str, *steps: Step) -> None:
        """What happens to the next requests of that action, in order."""
        self._scripts[action].extend(steps)

    def misbehave(self, seed: int, odds_pct: Mapping[Fault, int]) -> None:
        """From now on, let these faults happen that often in a hundred requests."""
        self._random = Random(seed)
        self._odds_pct = odds_pct

    def applied(self, action: str) -> int:
        """How many requests of that action reached the engine."""
        return sum(seen.applied for seen in self.seen if seen.action == action)

    def attempts(self, action: str) -> int:
        """How many requests of that action came by."""
        return sum(seen.action == action for seen in self.seen)

    async def came_by(self, action: str, times: int) -> None:
        """Wait until that many requests of that action were dealt with."""
        while self.attempts(action) < times:
            await self._news.wait()

    async def release(self) -> None:
        """Let the requests that were held back reach the engine now."""
        late, self._late = self._late, []
        for action, headers, body in late:
            await self._pass_on(headers, body)
            self._note(action, body, applied=True)

    async def up(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=256)
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def down(self) -> None:
        """Refuse connections, and cut those that exist."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for _ in range(_SETTLING_TURNS):  # a connection takes a few turns to become one
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(0)
        await asyncio.gather(*self._connections)

    async def __aenter__(self) -> Self:
        self._upstream = aiohttp.ClientSession(
            auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        await self.up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.down()
        assert self._upstream is not None
        await self._upstream.close()

    def _accept(self, listener: socket.socket) -> None:
        """By hand, because closing an asyncio server loses what it is about to accept."""
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            task = asyncio.ensure_future(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self._writers.add(writer)
        gone = (asyncio.IncompleteReadError, ConnectionError, aiohttp.ClientError)
        try:
            with contextlib.suppress(*gone):
                while await self._one(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; whether the connection is to be kept."""
        headers, body = await _read_request(reader)
        action = headers["x-amz-target"].rpartition(".")[2]
        fault = self._decide(action)
        if not isinstance(fault, (Fault, Canned)):
            await fault()
            fault = Fault.NONE
        if isinstance(fault, Canned):
            self._note(action, body, applied=False)
            canned = json.dumps(fault.reply).encode()
            return await _send(writer, _Reply(fault.status, dict(fault.headers), canned))
        if fault is Fault.LATE:
            self._late.append((action, headers, body))
            await reader.read()
            return False
        if fault in _MADE_UP:
            self._note(action, body, applied=False)
            status, told = _made_up(fault, action, body)
            return await _send(writer, _Reply(status, {}, json.dumps(told).encode()))
        if fault is Fault.CLOSE_BEFORE:
            self._note(action, body, applied=False)
            return False
        pass_on = self._half if fault is Fault.HALF else self._pass_on
        reply = await pass_on(headers, body)
        self._note(action, body, applied=True)
        return await _spoil(fault, reply, reader, writer)

    def _note(self, action: str, body: bytes, *, applied: bool) -> None:
        self.seen.append(Seen(action, body, applied))
        self._news.set()
        self._news = asyncio.Event()

    def _decide(self, action: str) -> Step:
        if script := self._scripts[action]:
            return script.popleft()
        drawn = self._random.randrange(100)
        for fault, pct in self._odds_pct.items():
            drawn -= pct
            if drawn < 0:
                return fault
        return Fault.NONE

    async def _pass_on(self, headers: Mapping[str, str], body: bytes) -> _Reply:
        assert self._upstream is not None
        kept = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
        async with self._upstream.post(self._engine, data=body, headers=kept) as response:
            content = await response.read()
            told = {
                name: value
                for name, value in response.headers.items()
                if name.lower() not in _NOT_PASSED_ON
            }
            if self.date:
                told["Date"] = self.date
            return _Reply(response.status, told, content)

    async def _half(self, headers: Mapping[str, str], body: bytes) -> _Reply:
        """Answer every second key and leave the others; a single key is left as well."""
        request = json.loads(body)
        left: dict[str, Any] = {}
        for table, wanted in request["RequestItems"].items():
            left[table] = {**wanted, "Keys": wanted["Keys"][::2]}
            wanted["Keys"] = wanted["Keys"][1::2]
        asked = {
            table: wanted for table, wanted in request["RequestItems"].items() if wanted["Keys"]
        }
        answer: dict[str, Any] = {"Responses": {}}
        if asked:
            request["RequestItems"] = asked
            answer = json.loads((await self._pass_on(headers, json.dumps(request).encode())).body)
        answer["UnprocessedKeys"] = left
        return _Reply(200, {}, json.dumps(answer).encode())


_MADE_UP = {Fault.SERVER_ERROR_BEFORE, Fault.THROTTLE, Fault.CONFLICT}
_SERVER_ERROR = {"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"}


def _made_up(fault: Fault, action: str, body: bytes) -> tuple[int, dict[str, Any]]:
    if fault is Fault.SERVER_ERROR_BEFORE:
        return 500, _SERVER_ERROR
    prefix = "com.amazonaws.dynamodb.v20120810#"
    if fault is Fault.THROTTLE:
        return 400, {"__type": f"{prefix}ProvisionedThroughputExceededException"}
    if action != "TransactWriteItems":
        return 400, {"__type": f"{prefix}TransactionConflictException"}
    operations = len(json.loads(body)["TransactItems"])
    reasons = [{"Code": "None"} for _ in range(operations - 1)] + [{"Code": "TransactionConflict"}]
    return 400, {"__type": f"{prefix}TransactionCanceledException", "CancellationReasons": reasons}


async def _read_request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    pairs = (line.partition(":") for line in head.split("\r\n")[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return headers, await reader.readexactly(int(headers["content-length"]))


async def _send(writer: asyncio.StreamWriter, reply: _Reply) -> bool:
    writer.write(reply.head + reply.body)
    await writer.drain()
    return True


async def _spoil(
    fault: Fault, reply: _Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Bring the engine's reply to the client, or fail to; whether to keep the connection."""
    half = len(reply.body) // 2
    match fault:
        case Fault.NONE | Fault.HALF:
            return await _send(writer, reply)
        case Fault.SERVER_ERROR_AFTER:
            return await _send(writer, _Reply(500, {}, json.dumps(_SERVER_ERROR).encode()))
        case Fault.CORRUPT_AFTER:
            # Another number, in perfect JSON: nothing but the checksum can tell. The engine
            # does not send one with every refusal, and those are left alone.
            if "x-amz-crc32" in {name.lower() for name in reply.headers}:
                reply.body = reply.body.replace(b'"N":"', b'"N":"9') + b" "
            return await _send(writer, reply)
        case Fault.NONSENSE_AFTER:
            writer.write(b"SMTP ready, what do you want?\r\n\r\n")
            await writer.drain()
        case Fault.SHORT_BODY:
            writer.write(reply.head + reply.body[:half])
            await writer.drain()
        case Fault.RESET_MID_BODY:
            writer.write(reply.head + reply.body[:half])
            await writer.drain()
            plug: socket.socket = writer.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        case Fault.STALL_AFTER:
            await reader.read()  # until the client has had enough and leaves
        case _:
            assert fault is Fault.CLOSE_AFTER
    return False
