"""Bounds on what a peer may send before a request is complete, and leave unread after it."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_fixtures import ENVIRONMENT, KEY, Api
from pricekeeper.http import protocol
from raw_http import connected, received
from served import served
from serving import running_server

PIECE = 16 * 1024
SENT_MAX = 8 * 1024 * 1024
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
PUT = (
    b"PUT /api/v1/orgs/550e8400-e29b-41d4-a716-446655440000 HTTP/1.1\r\nHost: x\r\n"
    b"X-Api-Key: %s\r\nContent-Type: application/json\r\n" % KEY.encode()
)
CHUNKED = b"POST /auth/token HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server for all tests: the store plays no part."""
    with served(tmp_path_factory.mktemp("protocol")) as api:
        yield api


def flooded(raw: socket.socket, start: bytes, piece: bytes) -> int:
    """Send it repeatedly until the server closes; returns how many bytes it took."""
    raw.sendall(start)
    sent = 0
    try:
        while sent < SENT_MAX:
            raw.sendall(piece)
            sent += len(piece)
    except OSError:
        return sent
    return sent


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (HEAD, b"X-1: y\r\n" * (PIECE // 8)),
        (HEAD + b"X-1: ", b"y" * PIECE),
        (b"GET /", b"y" * PIECE),
        (CHUNKED + b"0\r\n", b"X-1: y\r\n" * (PIECE // 8)),
        (CHUNKED + b"0\r\nX-1: ", b"y" * PIECE),
        (CHUNKED + b"1;", b"y" * PIECE),
        (CHUNKED, b"1;" + b"y" * PIECE + b"\r\nx\r\n"),
    ],
    ids=[
        *("headers", "a header", "a path", "trailers", "a trailer"),
        *("a chunk's extension", "many chunks' extensions"),
    ],
)
def test_what_gathers_without_end_is_cut_off(api: Api, start: bytes, piece: bytes) -> None:
    with connected(api.url) as raw:
        assert flooded(raw, start, piece) < SENT_MAX
    assert api.call("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400),
        (b"GET /bedrock/x HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n", 200),
    ],
)
def test_a_request_says_once_which_host_it_is_for(api: Api, head: bytes, status: int) -> None:
    """RFC 9112 requires it; HTTP/1.0 did not."""
    with connected(api.url, head + b"Connection: close\r\n\r\n") as raw:
        answer = received(raw)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    if status == 400:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "INVALID_REQUEST"


def test_too_many_headers_are_told(api: Api) -> None:
    few = b"".join(b"X-%d: y\r\n" % n for n in range(protocol.FIELDS_MAX - 2))
    with connected(api.url, HEAD + few + b"Connection: close\r\n\r\n") as raw:
        assert received(raw).startswith(b"HTTP/1.1 200")
    with connected(api.url, HEAD + few + b"X: y\r\nY: y\r\nZ: y\r\n") as raw:
        head, _, body = received(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431")
    assert json.loads(body)["code"] == "HEADERS_TOO_LARGE"


def test_a_body_in_small_chunks_is_no_flood(api: Api) -> None:
    """However many bytes its chunk lines have."""
    body = b'{"org_name":"' + b"x" * 90_000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n\r\n"
    head = PUT + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(api.url, head + chunks) as raw:
        assert b"org_name" in received(raw).partition(b"HTTP/1.1 400")[2]


@pytest.mark.parametrize(
    ("before", "half"),
    [
        (b"", b""),
        (b"", b"GET /healthz HT"),
        (b"", HEAD),
        (b"", CHUNKED),
        (HEAD + b"\r\n", HEAD),
        (HEAD + b"\r\n", CHUNKED),
        (b"", HEAD + b"\r\n" + HEAD),
        (b"", HEAD + b"\r\n" + CHUNKED),
    ],
    ids=[
        *("nothing", "half a line", "half a head", "half a body", "second head", "second body"),
        *("second head with the first", "second body with the first"),
    ],
)
def test_who_never_finishes_a_request_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes, half: bytes
) -> None:
    """After half a minute; here, sooner. Complete requests are not affected."""
    monkeypatch.setattr(protocol, "ARRIVAL_SECS_MAX", 0.2)
    monkeypatch.setattr(protocol, "_LOOK_EVERY_SECS", 0.05)
    with (
        served(tmp_path) as api,
        connected(api.url, HEAD + b"\r\n") as kept,
        connected(api.url) as raw,
    ):
        if before:
            raw.sendall(before)
            assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        raw.sendall(half)
        told = received(raw)
        assert told.count(b"HTTP/1.1 408") == 1
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        kept.sendall(HEAD + b"\r\n")
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")


def test_half_a_request_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """It was not accepted, so its client can send it again."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server, connected(server.url) as raw:
        raw.sendall(CHUNKED)
        with connected(server.url) as other:  # answered: so the half has come as well
            other.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert received(other).startswith(b"HTTP/1.1 200")
        server.process.terminate()
        server.process.wait(timeout=15)  # half of what a graceful end may take
        assert received(raw) == b""
        assert "Traceback" not in server.output()
