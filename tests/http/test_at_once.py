"""A request without its own task gets the same as one with a task.

Over a real socket, in the test's event loop; the test holds, releases or fails commits.
"""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from exchanges import Written, exchange
from http_fixtures import usage
from in_loop_service import Service, register, serving
from metering.scripted_store import Held, ScriptedStore, fails
from minting import minted
from pricekeeper.bootstrap import services
from pricekeeper.clock import SystemClock
from pricekeeper.concurrency.deadline import DEADLINES, Deadlines
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.http.answering import CALLER_LEFT, RequestAtOnce
from pricekeeper.http.operation import Answer
from pricekeeper.http.protocol import ProblemProtocol
from pricekeeper.settings import Settings, StoreLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry.logs import configure_logging
from pricekeeper.usecases import runtime as cases
from served import settings_in

PATIENCE_SECS = 20


class Peer:
    """A client that sends bytes and reads answers, one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def read(self) -> tuple[int, dict[str, str], Any]:
        """The next answer: status, headers and body."""
        async with asyncio.timeout(PATIENCE_SECS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            pairs = [line.split(": ", 1) for line in head[1:] if line]
            headers = {name.lower(): value for name, value in pairs}
            body = await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, json.loads(body)

    async def read_end(self) -> bytes:
        """What comes until the connection ends."""
        async with asyncio.timeout(PATIENCE_SECS):
            return await self._reader.read()


@dataclass
class World:
    """A service whose commits a test holds."""

    service: Service
    wire: ScriptedStore
    path: str
    token: str
    held: list[Held] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)

    async def connect(self) -> Peer:
        host, port = self.service.url.removeprefix("http://").split(":")
        self.peers.append(Peer(*await asyncio.open_connection(host, int(port))))
        return self.peers[-1]

    def request(self, record: dict[str, Any], *headers: str, to: str = "usage") -> bytes:
        body = json.dumps(record).encode()
        lines = [
            f"POST {self.path}/{to} HTTP/1.1",
            "host: x",
            f"authorization: Bearer {self.token}",
            f"content-length: {len(body)}",
            *headers,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def hold(self) -> Held:
        """Hold the next commit."""
        self.held.append(Held())
        self.wire.script.append(self.held[-1])
        return self.held[-1]

    async def end(self) -> None:
        """Release all commits, even if the test has failed: the service waits for them."""
        for one in self.held:
            one.let_go.set()
        for peer in self.peers:
            await peer.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path, request_deadline_ms=1_000, log_level="info")


@pytest.fixture
async def world(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[World]:
    """The service after a first record, with warm caches."""
    wires: list[ScriptedStore] = []

    async def open_wired(where: StoreLocation, **more: Any) -> Store:
        wires.append(ScriptedStore(await open_store(where, **more)))
        return wires[-1]

    monkeypatch.setattr(services, "open_store", open_wired)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # other tests have their own
    configure_logging("info", for_good=False)
    async with serving(settings, SystemClock()) as service:
        account = await register(service, str(uuid.uuid4()))
        granted = await service.call("POST", "/auth/token", account.credentials)
        token = granted.json["access_token"]
        path = account.path
        first = await service.call("POST", f"{path}/usage", usage(), token=token)
        assert first.status == 202
        capsys.readouterr()
        world = World(service, wires[0], path, token)
        try:
            yield world
        finally:
            await world.end()
    structlog.reset_defaults()


def requests() -> set[asyncio.Task[Any]]:
    """The tasks that serve requests."""
    return {one for one in asyncio.all_tasks() if "run_asgi" in repr(one.get_coro())}


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def logged(capsys: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    return [line for line in written(capsys) if line["event"] == event]


async def test_no_task_waits_for_the_commit(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    held, peer = world.hold(), await world.connect()
    peer.writer.write(world.request(usage(), "x-request-id: mine"))
    await held.reached.wait()
    assert not requests()
    held.let_go.set()
    status, headers, body = await peer.read()
    assert (status, headers["x-request-id"], body["status"]) == (202, "mine", "accepted")
    await asyncio.sleep(0)
    (line,) = logged(capsys, "request")
    assert (line["request_id"], line["status"]) == ("mine", 202)
    assert line["route"] == "/api/v1/orgs/{org_id}/apps/{app_id}/usage"


async def test_a_record_counts_if_its_peer_has_left(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only its access line is logged."""
    record, held, peer = usage(), world.hold(), await world.connect()
    peer.writer.write(world.request(record))
    await held.reached.wait()
    peer.writer.transport.abort()
    healthy = await world.service.call("GET", "/healthz")  # the server has noticed that it left
    assert healthy.status == 200
    held.let_go.set()
    again = await world.service.call("POST", f"{world.path}/usage", record, token=world.token)
    assert (again.status, again.json["status"]) == (202, "duplicate")
    assert {line["event"] for line in written(capsys)} == {"request"}


@pytest.mark.parametrize("fails_late", [False, True])
async def test_when_its_time_is_up_it_is_answered_once(
    world: World, capsys: pytest.CaptureFixture[str], *, fails_late: bool
) -> None:
    """It says that the record may count. The connection continues; the late result is dropped.

    Each answer belongs to its request, and each request has one access line.
    """
    record = usage(request_id=minted(time.time_ns() // 1_000_000))
    held, peer = world.hold(), await world.connect()

    async def fail_late(_: Any) -> None:
        async def fail() -> None:
            raise StoreUnavailableError("late")

        await held(fail)

    if fails_late:
        world.wire.script[-1] = fail_late
    peer.writer.write(world.request(record))
    await held.reached.wait()
    status, headers, body = await peer.read()
    assert (status, body["code"]) == (503, "STORE_UNAVAILABLE")
    assert "may or may not have been applied" in body["detail"]
    assert "retry-after" in headers
    held.let_go.set()
    peer.writer.write(world.request(record, "x-request-id: again"))
    status, headers, body = await peer.read()
    assert (status, headers["x-request-id"]) == (202, "again")
    assert body["status"] == ("accepted" if fails_late else "duplicate")
    await asyncio.sleep(0)
    assert [line["status"] for line in logged(capsys, "request")] == [503, 202]


async def test_a_commit_that_fails_is_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.wire.script.append(fails(StoreUnavailableError("down")))
    peer = await world.connect()
    peer.writer.write(world.request(usage(), "x-request-id: mine"))
    status, headers, body = await peer.read()
    assert (status, body["code"], body["request_id"]) == (503, "STORE_UNAVAILABLE", "mine")
    assert "retry-after" in headers
    await asyncio.sleep(0)
    lines = {line["event"]: line for line in written(capsys)}
    assert (lines["request"]["status"], lines["problem"]["request_id"]) == (503, "mine")


@pytest.mark.parametrize(
    "when", ["while it begins", "while it is answered", "while that is encoded"]
)
async def test_a_bug_is_told_as_one(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """500 without details; the log has the traceback and an access line."""

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("secret")

    if when == "while it begins":
        monkeypatch.setattr(world.service.inside.metering, "begin", fail)
    elif when == "while it is answered":
        monkeypatch.setattr(cases, "recorded_answer", fail)
    else:
        monkeypatch.setattr(cases, "recorded_answer", lambda *_: object())
    peer = await world.connect()
    peer.writer.write(world.request(usage(), "x-request-id: mine"))
    status, headers, body = await peer.read()
    assert (status, body["code"], headers["x-request-id"]) == (500, "INTERNAL", "mine")
    assert "secret" not in body["detail"]
    await asyncio.sleep(0)
    lines = {line["event"]: line for line in written(capsys)}
    assert (lines["request"]["status"], lines["unhandled"]["request_id"]) == (500, "mine")


async def test_pipelined_requests_are_answered_in_order(world: World) -> None:
    held, peer = world.hold(), await world.connect()
    get = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-request-id: two\r\n\r\n"
    one, three = (world.request(usage(), f"x-request-id: {name}") for name in ("one", "three"))
    peer.writer.write(one + get + three)
    await held.reached.wait()
    held.let_go.set()
    answers = [await peer.read() for _ in range(3)]
    assert [headers["x-request-id"] for _, headers, _ in answers] == ["one", "two", "three"]
    assert [status for status, _, _ in answers] == [202, 200, 202]


async def test_a_service_that_stops_answers_what_it_has_begun(
    world: World,
) -> None:
    held, peer = world.hold(), await world.connect()
    peer.writer.write(world.request(usage()))
    await held.reached.wait()
    world.service.stop()
    await asyncio.sleep(0.2)  # the server checks every tenth of a second whether to stop
    held.let_go.set()
    status, headers, body = await peer.read()
    assert (status, body["status"]) == (202, "accepted")
    assert headers["connection"] == "close"
    assert await peer.read_end() == b""


ASKED = {"model": "premium", "input_tokens": 10, "max_output_tokens": 10}


def hold_authorize(world: World, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Hold the next authorization."""
    authorizations, held = world.service.inside.authorizations, Held()
    authorize = authorizations.authorize
    world.held.append(held)

    async def wait(*asked: Any) -> Any:
        monkeypatch.setattr(authorizations, "authorize", authorize)
        answers: list[Any] = []

        async def go_on() -> None:
            answers.append(await authorize(*asked))

        await held(go_on)
        return answers[0]

    monkeypatch.setattr(authorizations, "authorize", wait)
    return held


async def test_a_handler_that_waits_has_a_task_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without other tasks of the server. It is cancelled when its time is up."""
    held, peer = hold_authorize(world, monkeypatch), await world.connect()
    peer.writer.write(world.request(ASKED, "x-request-id: mine", to="authorizations"))
    await held.reached.wait()
    assert not requests()
    status, headers, body = await peer.read()
    assert (status, headers["x-request-id"]) == (503, "mine")
    assert "may or may not have been applied" in body["detail"]
    peer.writer.write(world.request(ASKED, "x-request-id: next", to="authorizations"))
    status, headers, body = await peer.read()
    assert (status, headers["x-request-id"], body["status"]) == (201, "next", "authorized")


async def test_a_service_that_stops_waits_for_a_handler_whose_peer_has_left(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store stays open until it is done."""
    held, peer = hold_authorize(world, monkeypatch), await world.connect()
    peer.writer.write(world.request(ASKED, to="authorizations"))
    await held.reached.wait()
    peer.writer.transport.abort()
    assert (await world.service.call("GET", "/healthz")).status == 200
    capsys.readouterr()
    world.service.stop()
    await asyncio.sleep(0.3)  # the server checks every tenth of a second whether to stop
    held.let_go.set()
    lines: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_SECS):
        while not lines:
            await asyncio.sleep(0.01)
            lines = logged(capsys, "request")
    assert [line["status"] for line in lines] == [201]


@dataclass
class Begun:
    """A begun request on a transport without a peer."""

    transport: Written = field(default_factory=Written)
    noted: list[tuple[str, int]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        state = {DEADLINES: Deadlines(60_000)}
        self.exchange = exchange(self.transport, "POST", tasks=self.tasks, state=state)
        request = SimpleNamespace(scope=self.exchange.scope, exchange=self.exchange, deadline=None)
        call: Any = SimpleNamespace(request=request, request_id="r", limit_headers=())
        self.reply = RequestAtOnce(self.exchange, call, "/usage", 0, self._note)

    def _note(self, _: Any, route: str, status: int, __: int) -> None:
        self.noted.append((route, status))


async def test_a_reader_that_is_slow_is_waited_for() -> None:
    """Its answer is written once, when it reads, and then noted."""
    begun = Begun()
    begun.exchange.flow.pause_writing()
    begun.reply.send(Answer(202, {"fine": True}))
    begun.reply.send(Answer(202, {"fine": False}))
    await asyncio.sleep(0)
    assert (begun.transport.writes, begun.noted) == ([], [])
    begun.exchange.flow.resume_writing()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(begun.transport.writes) == 1
    assert begun.transport.writes[0].endswith(b'{"fine":true}')
    assert begun.noted == [("/usage", 202)]


async def test_a_handler_that_the_server_ends_is_noted() -> None:
    """It has one access line, as of a caller that left."""
    begun, never = Begun(), asyncio.Event()

    async def wait() -> Answer:
        await never.wait()
        return Answer(202)

    begun.reply.finish(wait())
    (task,) = begun.tasks
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (begun.transport.writes, begun.noted) == ([], [("/usage", CALLER_LEFT)])


@pytest.mark.parametrize(
    ("paths", "parsed"),
    [
        (["usage"] * 4, ["usage"]),
        (["usage", "a", "usage", "b", "usage", "c"], ["usage", "a", "b", "c"]),
        (["a", "usage", "usage", "usage"], ["a", "usage", "usage"]),
        (["a", "usage", "b", "usage", "c", "usage"], ["a", "usage", "b", "usage", "c"]),
    ],
)
async def test_a_head_that_comes_again_is_not_parsed(
    world: World, monkeypatch: pytest.MonkeyPatch, paths: list[str], parsed: list[str]
) -> None:
    """Heads that never repeat, such as those of captures, do not replace it."""
    original, seen = ProblemProtocol._parse, list[str]()

    def parse(protocol: ProblemProtocol, data: bytes, *, is_between: bool) -> None:
        seen.append(data.split(b" ", 2)[1].rpartition(b"/")[2].decode())
        original(protocol, data, is_between=is_between)

    monkeypatch.setattr(ProblemProtocol, "_parse", parse)
    peer = await world.connect()
    for path in paths:
        peer.writer.write(world.request(usage(), to=path))
        assert (await peer.read())[0] == (202 if path == "usage" else 404)
    assert seen == parsed
