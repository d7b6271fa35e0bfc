"""Bounds on all connections: how many, how much they hold, and how long answers stay unread."""

import json
import logging
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from http_fixtures import KEY, Api
from pricekeeper.http import connections, protocol
from pricekeeper.http.connections import Connections
from pricekeeper.http.exchange import Exchange
from pricekeeper.http.protocol import ProblemProtocol
from raw_http import connected, received
from scraping import scrape, until
from served import served

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
ALIVE = GET + b"\r\n"
LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
"""About 90 KB to read."""
ORG = "/api/v1/orgs/550e8400-e29b-41d4-a716-446655440000"
NO_ORG = json.dumps({"org_name": "x" * 200_000}).encode()
"""Refused when it is complete."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with served(tmp_path) as running:
        yield running


def one_answer(raw: socket.socket) -> bytes:
    """One answer, which is JSON to its end."""
    data = bytearray()
    while not data.endswith(b"}"):
        part = raw.recv(65536)
        assert part, data
        data += part
    return bytes(data)


def one_after_another(opened: ExitStack, api: Api, data: bytes) -> socket.socket:
    """A connection over which this was sent and has begun to arrive."""
    raw = opened.enter_context(connected(api.url, data))
    with connected(api.url, GET + b"Connection: close\r\n\r\n") as another:
        received(another)
    return raw


def readable(raw: socket.socket) -> bool:
    """Whether data or the end has come."""
    return bool(select.select([raw], [], [], 0)[0])


def put(length: int, sent: int = 0) -> bytes:
    """A request of an authorized client, with so much of its body."""
    head = (
        f"PUT {ORG} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    return head.encode() + NO_ORG[:sent]


def problems(api: Api, code: str) -> float:
    return scrape(api).get(f'pricekeeper_problems_total{{code="{code}"}}', 0)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines that an operator would have to look at."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# The head


def test_too_many_headers_are_refused_before_they_are_listed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser stops, and no handler gets the request."""
    listed: list[int] = []
    handed_over: list[object] = []
    refuse, hand_over = ProblemProtocol._refuse_head, ProblemProtocol._make_exchange

    def refuse_head(self: ProblemProtocol) -> None:
        listed.append(len(self.headers))
        refuse(self)

    def make_exchange(self: ProblemProtocol) -> Exchange:
        handed_over.append(self)
        return hand_over(self)

    monkeypatch.setattr(ProblemProtocol, "_refuse_head", refuse_head)
    monkeypatch.setattr(ProblemProtocol, "_make_exchange", make_exchange)
    fields = b"".join(b"X-%d: y\r\n" % number for number in range(20_000))
    with connected(api.url, GET + fields + b"\r\n") as raw:
        received(raw)
    assert listed == [protocol.FIELDS_MAX]
    assert handed_over == []
    monkeypatch.undo()
    assert problems(api, "HEADERS_TOO_LARGE") == 1


def test_a_head_that_is_too_large_is_refused_also_if_it_comes_at_once(api: Api) -> None:
    header = GET + b"X: " + b"y" * 80_000 + b"\r\n\r\n"
    path = b"GET /healthz?" + b"y" * 80_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    for head in (header, path):
        with connected(api.url, head) as raw:
            assert not received(raw).startswith(b"HTTP/1.1 200 ")
    assert problems(api, "HEADERS_TOO_LARGE") == 2


def test_a_trailer_is_nobodys_header(api: Api) -> None:
    """A proxy in front has not checked it, so it may not authenticate anyone."""
    chunked = b"POST /auth/token HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    with connected(
        api.url,
        chunked + b"Connection: close\r\n\r\n1\r\nx\r\n0\r\nX-Request-Id: smuggled\r\n\r\n",
    ) as raw:
        answer = received(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"smuggled" not in answer


def test_another_language_is_not_spoken(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """An upgrade is ignored: the request is answered, and later data is not read."""
    upgrade = GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with connected(api.url, upgrade, ALIVE) as raw:
        answer = received(raw)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"\r\nconnection: close\r\n" in answer
    assert errors(caplog) == []


def test_a_head_may_not_come_in_any_number_of_pieces(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each of them, the parser copies the header so far."""
    monkeypatch.setattr(protocol, "HEAD_PIECES_MAX", 8)
    with connected(api.url, GET + b"X: ") as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):
            for _ in range(60_000):  # less than a head may have
                raw.sendall(b"y")
    assert problems(api, "HEADERS_TOO_LARGE") == 1


# Pipelining


@pytest.mark.parametrize("count", [protocol.PIPELINED_MAX + 1, 200])
def test_only_so_many_requests_wait_for_each_other(api: Api, count: int) -> None:
    with connected(api.url, ALIVE * count) as raw:
        if count <= protocol.PIPELINED_MAX + 1:
            raw.sendall(GET + b"Connection: close\r\n\r\n")
        answers = received(raw).count(b"HTTP/1.1 200 OK")
    assert answers <= protocol.PIPELINED_MAX + 2
    assert answers >= min(count, protocol.PIPELINED_MAX + 1)


def test_an_error_does_not_take_away_earlier_answers(api: Api) -> None:
    with connected(api.url, ALIVE * 3 + b"\x00garbage\r\n\r\n") as raw:
        assert received(raw).count(b"HTTP/1.1 200 OK") == 3


# Who does not read, and who leaves


def test_who_does_not_read_is_cut_off(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After half a minute; here, sooner. The log has no error."""
    monkeypatch.setattr(protocol, "UNREAD_SECS_MAX", 0.2)
    monkeypatch.setattr(protocol, "_LOOK_EVERY_SECS", 0.05)
    with connected(api.url, LARGE * (protocol.PIPELINED_MAX + 1), receives=4096) as raw:
        until(lambda: problems(api, "ANSWER_NOT_READ") == 1)
        assert len(received(raw)) < 17 * 80_000
    assert errors(caplog) == []


def test_who_reads_slowly_is_not_cut_off(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_SECS_MAX", 20)
    monkeypatch.setattr(protocol, "_LOOK_EVERY_SECS", 0.02)
    last = LARGE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connected(api.url, LARGE * 9 + last, receives=4096) as raw:
        assert received(raw).count(b"HTTP/1.1 200 OK") == 10
    assert problems(api, "ANSWER_NOT_READ") == 0


@pytest.mark.parametrize("politely", [True, False])
def test_who_leaves_leaves_no_traceback(
    api: Api, caplog: pytest.LogCaptureFixture, politely: bool
) -> None:
    for _ in range(10):
        with connected(api.url, LARGE * (protocol.PIPELINED_MAX + 1), receives=4096) as raw:
            assert raw.recv(1)
            if not politely:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with connected(api.url, put(400_000, 100_000)):
        pass
    assert api.call("GET", "/healthz").status == 200
    assert errors(caplog) == []


# Many connections


def test_a_newcomer_takes_the_place_of_who_waits_longest(tmp_path: Path) -> None:
    with served(tmp_path, connections_max=3) as api, ExitStack() as opened:
        silent = opened.enter_context(connected(api.url))
        half = opened.enter_context(connected(api.url, GET))
        kept = opened.enter_context(connected(api.url, ALIVE))
        assert one_answer(kept).startswith(b"HTTP/1.1 200 ")
        for gone, told in ((silent, b""), (half, b"HTTP/1.1 503 "), (kept, b"")):
            newcomer = opened.enter_context(connected(api.url, ALIVE))
            assert one_answer(newcomer).startswith(b"HTTP/1.1 200 ")
            assert received(gone)[: len(told) or 1] == told
        for _ in range(100):  # each time, one of the three makes room
            assert api.call("GET", "/healthz").status == 200


class Fake:
    """A connection that notes whether it was removed."""

    def __init__(self, all_of_them: Connections) -> None:
        self.all = all_of_them
        self.held = 0
        self.gone = False

    def make_room(self) -> None:
        self.gone = True
        self.all.held_bytes -= self.held

    def hold(self, count: int, *, whole: bool) -> "Fake":
        self.held += count
        self.all.held_bytes += count
        if not whole:
            self.all.note_part(self)
        self.all.limit_bytes(self)
        return self


def test_while_all_are_at_work_nobody_else_comes_in() -> None:
    """Accepted requests are not given up for new ones."""
    found = Connections(2, 1_000)
    first, second, third = (Fake(found) for _ in range(3))
    assert found.enter(first)
    assert found.enter(second)
    assert not found.enter(third)
    found.note_waiting(second)
    assert found.enter(third)
    assert (first.gone, second.gone, third.gone) == (False, True, False)
    assert len(found) == 2


def test_a_request_that_is_not_whole_makes_room_for_others() -> None:
    """The oldest incomplete one goes; if all are complete, the newcomer is too late."""
    found = Connections(10, 1_000)
    peers = [Fake(found) for _ in range(5)]
    for peer in peers:
        found.enter(peer)
    peers[0].hold(400, whole=True)
    peers[1].hold(300, whole=False)
    peers[2].hold(200, whole=False)
    peers[3].hold(300, whole=False)
    assert [peer.gone for peer in peers] == [False, True, False, False, False]
    peers[4].hold(600, whole=True)
    assert [peer.gone for peer in peers] == [False, True, True, True, False]
    assert found.held_bytes == 1_000
    peers[0].hold(1, whole=True)
    assert peers[0].gone


def test_fewer_open_files_are_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store needs some."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert connections.affordable_connections(500) == 500
    assert connections.affordable_connections(4_096) == 1024 - connections.FILES_RESERVED


# Many bodies


def test_bodies_that_wait_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest incomplete request goes; complete ones are answered."""
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 500_000)
    with served(tmp_path) as api, ExitStack() as opened:
        halves = [one_after_another(opened, api, put(200_000, 190_000)) for _ in "123"]
        told = received(halves[0])
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in told
        halves[2].sendall(NO_ORG[190_000:200_000])
        assert one_answer(halves[2]).startswith(b"HTTP/1.1 400 ")
        assert json.loads(told.partition(b"\r\n\r\n")[2])["code"] == "STORE_UNAVAILABLE"
        assert problems(api, "OVERLOADED") == 1  # the store itself is not overloaded
        for _ in range(20):  # answered or dropped requests hold nothing
            reply = api.call("PUT", ORG, data=NO_ORG, key=KEY)
            assert (reply.status, reply.code) == (400, "INVALID_CONFIG")


def test_where_nothing_can_make_room_the_newcomer_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 10)
    with served(tmp_path) as api, connected(api.url, ALIVE) as raw:
        assert received(raw).startswith(b"HTTP/1.1 503 ")
    assert errors(caplog) == []


def test_heads_count_with_the_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 200_000)
    with served(tmp_path) as api, ExitStack() as opened:
        halves = [one_after_another(opened, api, GET + b"X: " + b"y" * 60_000) for _ in "1234"]
        assert received(halves[0]).startswith(b"HTTP/1.1 503 ")
        for _ in range(10):  # a completed request is not counted twice
            raw = one_after_another(opened, api, GET + b"X: " + b"y" * 60_000)
            raw.sendall(b"\r\nConnection: close\r\n\r\n")
            assert received(raw).startswith(b"HTTP/1.1 200 ")
        assert [raw for raw in halves[2:] if readable(raw)] == []


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections be idle for a tenth of a second only."""
    made = HttpToolsProtocol.connection_made

    def hurried(self: HttpToolsProtocol, transport: Any) -> None:
        made(self, transport)
        self.timeout_keep_alive = 0.1  # type: ignore[assignment]

    monkeypatch.setattr(HttpToolsProtocol, "connection_made", hurried)
    monkeypatch.setattr(protocol, "_LOOK_EVERY_SECS", 0.05)


def test_a_connection_on_which_nothing_more_comes_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is one that was answered early: the rest of its body leaves it idle."""
    hurry(monkeypatch)
    with served(tmp_path) as api:
        with connected(api.url, ALIVE) as raw:
            assert one_answer(raw).startswith(b"HTTP/1.1 200 ")
            assert received(raw) == b""
        refused = put(100).replace(KEY.encode(), b"wrong")
        with connected(api.url, refused + b"x" * 50) as raw:
            assert one_answer(raw).startswith(b"HTTP/1.1 401 ")
            with suppress(OSError):  # or it has ended already
                raw.sendall(b"x" * 50)
            assert received(raw) == b""


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 5))]
)
def test_in_the_end_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """For all that peers send, leave half way, or do not read."""
    made: list[Connections] = []

    class Noted(Connections):
        def __init__(self, *bounds: int) -> None:
            super().__init__(*bounds)
            made.append(self)

    monkeypatch.setattr(connections, "Connections", Noted)
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 600_000)
    random = Random(seed)
    settings = (put(2) + b"{}", put(100_000) + b" " * 100_000)
    whole = (ALIVE, LARGE, *settings, b"GET /x HTTP/1.0\r\n\r\n")
    half = (GET, put(300_000, 200_000), b"\x00", b"\r\n", LARGE[:9], GET + b"X: y\r\n" * 200)
    with served(tmp_path, connections_max=12) as api, ExitStack() as opened:
        peers: list[ExitStack] = []
        for _ in range(150):
            data = b"".join(random.choices(whole, k=random.randrange(4)))
            peer = opened.enter_context(ExitStack())
            data += random.choice((*half, b""))
            raw = peer.enter_context(connected(api.url, data, receives=4096))
            raw.settimeout(0.01)
            if random.random() < 0.5:
                with suppress(OSError):
                    raw.recv(random.choice((1, 65536)))
            peers.append(peer)
            if random.random() < 0.7:
                peers.pop(random.randrange(len(peers))).close()
        (held,) = made
        assert 0 <= len(held) <= 12
        for peer in peers:
            peer.close()
        until(lambda: (len(held), held.held_bytes) == (0, 0), lambda: (len(held), held.held_bytes))
        assert api.call("GET", "/healthz").status == 200
    assert errors(caplog) == []
