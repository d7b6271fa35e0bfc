"""A caller that speaks HTTP/2 gets an answer in HTTP/2 that says what to do."""

import json
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from http_fixtures import Api
from pricekeeper.http import protocol
from pricekeeper.http.refusals import FRAMES_BYTES_MAX, Http2Refusal
from raw_http import connected
from scraping import moves
from served import served

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
END_STREAM, END_HEADERS = 1, 4
STATUS_400 = 0x8C
"""``:status 400`` in the static table of HPACK."""
HTTP_1_1_REQUIRED = 0xD
COUNTER = 'pricekeeper_problems_total{code="HTTP_2_NOT_SUPPORTED"}'


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


OPENING = frame(SETTINGS, payload=bytes(6)) + frame(WINDOW_UPDATE, payload=b"\0\0\xff\xff")
REQUEST = frame(HEADERS, 1, b"\x83\x86\x84" + b"x" * 900, END_HEADERS)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served(tmp_path_factory.mktemp("http2")) as running:
        yield running


def frames(raw: socket.socket) -> list[Frame]:
    """The server's frames up to its GOAWAY."""
    found: list[Frame] = []
    with raw.makefile("rb") as received:
        while not found or found[-1].kind != GOAWAY:
            head = received.read(9)
            assert len(head) == 9, f"it ended after {found}"
            payload = received.read(int.from_bytes(head[:3]))
            found.append(Frame(head[3], head[4], int.from_bytes(head[5:]), payload))
    return found


def assert_refused(found: list[Frame], stream: int = 1) -> None:
    settings, headers, data, reset, goaway = found
    assert settings == (SETTINGS, 0, 0, b"")
    assert headers[:3] == (HEADERS, END_HEADERS, stream)
    assert headers.payload[0] == STATUS_400
    assert b"x-amzn-errortype" in headers.payload
    assert data[:3] == (DATA, END_STREAM, stream)
    problem = json.loads(data.payload)
    assert (problem["status"], problem["code"]) == (400, "HTTP_2_NOT_SUPPORTED")
    assert "NodeHttpHandler" in problem["detail"]
    assert problem["message"] == problem["detail"]
    assert reset == (RST_STREAM, 0, stream, bytes(4))
    assert goaway == (GOAWAY, 0, 0, struct.pack(">II", stream, HTTP_1_1_REQUIRED))


def test_the_first_request_is_answered_with_what_to_do(api: Api) -> None:
    with connected(api.url, PREFACE + OPENING + REQUEST) as raw:
        assert_refused(frames(raw))


def test_the_settings_come_before_the_request(api: Api) -> None:
    """Some clients wait for them before they send a request."""
    with connected(api.url, PREFACE) as raw:
        assert raw.recv(9) == frame(SETTINGS)
        raw.sendall(OPENING + frame(HEADERS, 5))
        assert_refused([Frame(SETTINGS, 0, 0, b""), *frames(raw)], stream=5)


def test_it_is_recognised_byte_by_byte(api: Api) -> None:
    """And in two pieces."""
    with connected(api.url, *(bytes([byte]) for byte in PREFACE + OPENING + REQUEST)) as raw:
        assert_refused(frames(raw))
    with connected(api.url, PREFACE[:10]) as raw:
        assert api.call("GET", "/healthz").status == 200  # by now the server has read the first
        raw.sendall(PREFACE[10:] + REQUEST)
        assert_refused(frames(raw))


def test_a_large_body_does_not_cost_the_caller_its_answer(api: Api) -> None:
    """The body may be under way; closing too early would lose the answer."""
    with connected(api.url, PREFACE + OPENING) as raw:
        assert raw.recv(9) == frame(SETTINGS)
        raw.sendall(REQUEST)
        select.select([raw], [], [], 20)
        for _ in range(4):
            raw.sendall(frame(DATA, 1, bytes(16_000)))
            assert api.call("GET", "/healthz").status == 200  # the server has read that
        assert_refused([Frame(SETTINGS, 0, 0, b""), *frames(raw)])


def test_only_the_beginning_of_a_connection_is_a_preface(api: Api) -> None:
    first = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected(api.url, first) as raw:
        assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
        raw.sendall(PREFACE + OPENING)
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
    with connected(api.url, b"PRI * HTTP/1.1\r\nHost: x\r\n\r\n") as raw:
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_connections_are_counted_and_logged_once(tmp_path: Path) -> None:
    """A flood of them makes one log line, which says what to do."""
    with capture_logs() as logged, served(tmp_path) as api, moves(api, {COUNTER: 3}):
        for _ in range(3):
            with connected(api.url, PREFACE + OPENING + REQUEST) as raw:
                assert_refused(frames(raw))
    (line,) = [line for line in logged if line["event"] == "http2_refused"]
    assert "NodeHttpHandler" in line["hint"]


def test_an_answered_caller_makes_room_for_the_next(tmp_path: Path) -> None:
    """Its connection waits to be closed, and is the first to go."""
    with (
        served(tmp_path, connections_max=2) as api,
        connected(api.url, PREFACE[:10]) as raw,
        connected(api.url) as second,
    ):
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert second.recv(4096).startswith(b"HTTP/1.1 200 ")  # the first piece was read
        raw.sendall(PREFACE[10:] + REQUEST)
        assert_refused(frames(raw))
        with connected(api.url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") as third:
            assert third.recv(4096).startswith(b"HTTP/1.1 200 ")
            assert raw.recv(1) == b""


def test_frames_without_a_request_are_bounded(api: Api) -> None:
    with connected(api.url, PREFACE) as raw:
        raw.sendall(frame(WINDOW_UPDATE, payload=b"\0\0\0\1") * (FRAMES_BYTES_MAX // 13 + 1))
        settings, goaway = frames(raw)
    assert settings.kind == SETTINGS
    assert goaway.payload == struct.pack(">II", 0, HTTP_1_1_REQUIRED)


def test_a_caller_that_sends_no_request_is_cut_off_in_http2(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ARRIVAL_SECS_MAX", 0.2)
    monkeypatch.setattr(protocol, "_LOOK_EVERY_SECS", 0.05)
    with connected(api.url, PREFACE + OPENING) as raw:
        settings, goaway = frames(raw)
        assert (settings.kind, goaway.kind) == (SETTINGS, GOAWAY)
        assert raw.recv(1) == b""


def test_the_answer_does_not_depend_on_how_the_frames_are_cut() -> None:
    """Each byte is looked at once, so the work is linear."""
    sent = OPENING + frame(SETTINGS, payload=bytes(300)) + REQUEST
    whole = Http2Refusal().answer(sent)
    assert whole is not None
    for size in range(1, len(sent) + 1):
        refusal = Http2Refusal()
        pieces = (sent[at : at + size] for at in range(0, len(sent), size))
        answers = [answer for answer in map(refusal.answer, pieces) if answer]
        assert [len(answer) for answer in answers[:1]] == [len(whole)]
        assert answers[0][3] == HEADERS


def test_a_stream_that_no_client_may_open_is_not_answered() -> None:
    for stream in (0, 2):
        answer = Http2Refusal().answer(frame(HEADERS, stream))
        assert answer is not None
        assert answer[3] == GOAWAY
