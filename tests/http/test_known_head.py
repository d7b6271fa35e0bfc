"""A known head is recognised exactly if the parser would give the same result."""

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.http.known_head import KNOWN_BYTES_MAX, KnownHead, remember_head

POST = (
    b"POST /usage?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nAuthorization: Bearer t\r\n\r\n"
)
GET = b"GET /selection HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n\r\n"


class Parsed:
    """The parser's result for some bytes."""

    def __init__(self, data: bytes) -> None:
        self.heads: list[tuple[bytes, bytes, list[tuple[bytes, bytes]]]] = []
        self.body, self.head_bytes, self.whole = b"", 0, 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers, self._url = [], b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.heads.append((self._parser.get_method(), self._url, self._headers))
        self.is_kept = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole += 1


def remembered(data: bytes) -> KnownHead | None:
    """The remembered head of a request that came alone in the data."""
    parsed = Parsed(data)
    ((method, _, headers),) = parsed.heads
    scope = {"method": method.decode(), "headers": headers}
    return remember_head(data, scope, counted(headers), len(parsed.body))


def counted(headers: list[tuple[bytes, bytes]]) -> int:
    """The bytes of the headers, as a connection counts them."""
    return sum(len(name) + len(value) for name, value in headers)


def body_of(first: bytes, data: bytes) -> bytes | None:
    """The body of a request whose head is known from another one; ``None`` if it is parsed."""
    head = remembered(first)
    assert head is not None
    request = head.request_of(data)
    if request is None:
        return None
    headers = Parsed(data).heads[0][2]
    assert request.scope["headers"] == headers
    assert request.head_bytes == counted(headers)
    assert request.is_same == (without_length(headers) == without_length(Parsed(first).heads[0][2]))
    return request.body


def without_length(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [one for one in headers if one[0] != b"content-length"]


@pytest.mark.parametrize("length", [0, 1, 9, 10, 123, 9_999_999])
def test_the_same_head_is_known_whatever_the_length_of_the_body(length: int) -> None:
    body = b"x" * length
    assert body_of(POST % 2 + b"{}", POST % length + body) == body


@pytest.mark.parametrize("length", [0, 2, 10])
def test_values_may_differ(length: int) -> None:
    """As signatures do; the body as well."""
    head = (POST % length).replace(b"Bearer t", b"AWS4 Credential=a/b, Signature=0123")
    assert body_of(POST % 2 + b"{}", head + b"x" * length) == b"x" * length
    assert body_of(POST % 2 + b"{}", head + b"x" * (length + 1)) is None
    other = GET.replace(b"Bearer t", b"u")
    assert body_of(GET, other) == b""
    assert body_of(GET, other + b"x") is None


@pytest.mark.parametrize("name", [b"Connection", b"Proxy-Connection", b"Keep-Alive"])
def test_what_is_about_the_connection_may_not_differ(name: bytes) -> None:
    first = GET.replace(b"Authorization: Bearer t", name + b": keep-alive")
    assert body_of(first, first) == b""
    assert body_of(first, first.replace(b"keep-alive", b"close")) is None


def test_a_head_without_a_body_is_known() -> None:
    assert body_of(GET, GET) == b""
    assert body_of(GET, GET + b"x") is None
    assert body_of(GET, GET[:-1]) is None


SMALL = POST % 2 + b"{}"


@pytest.mark.parametrize(
    "data",
    [
        POST % 3 + b"{}",
        POST % 1 + b"{}",
        POST % 2 + b"{}" + GET,
        SMALL.replace(b"Bearer t", b"Bearer \xe9"),
        SMALL.replace(b"Bearer t", b"Bearer t "),
        SMALL.replace(b"Bearer t", b"Bearer\tt"),
        SMALL.replace(b"Bearer t", b"Bearer t\r\n u"),
        SMALL.replace(b" Bearer t", b"  Bearer u"),
        SMALL.replace(b" Bearer t", b" "),
        SMALL.replace(b"Authorization", b"authorization"),
        SMALL.replace(b"Authorization", b"Transfer-Encoding"),
        SMALL.replace(b"Host: x", b"Host: y"),
        SMALL.replace(b"/usage", b"/other"),
        SMALL.replace(b"Host: x\r\n", b"Host: x\r\nHost: y\r\n"),
        SMALL.replace(b"Length: 2", b"Length: 02"),
        SMALL.replace(b"Length: 2", b"Length: +2"),
        SMALL.replace(b"Length: 2", b"Length: 2 "),
        SMALL.replace(b"Length: 2", b"Length: 2, 2"),
        SMALL.replace(b"Length: 2", b"Length: "),
        SMALL.replace(b"Length: 2", "Length: ²".encode("latin-1")),
        POST % 10_000_000,
        b"",
        b"\r\n" + POST % 2 + b"{}",
    ],
    ids=range(23),
)
def test_any_other_data_is_parsed(data: bytes) -> None:
    """Half a request, more than one, another head, or an unusual length."""
    assert body_of(POST % 2 + b"{}", data) is None


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        b"\r\n" + GET,
        GET.replace(b"Host: x", b"Host: x\r\nX: " + b"y" * KNOWN_BYTES_MAX),
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\t01\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1 \r\n\r\nx",
    ],
    ids=["chunks", "expecting", "an empty line before it", "long", "a zero in front", "a space"],
)
def test_a_head_that_says_more_than_a_length_is_not_remembered(head: bytes) -> None:
    assert remembered(head) is None


_edits = st.tuples(
    st.integers(0, len(POST) + 12),
    st.integers(0, 3),
    st.sampled_from(
        [b"", b"\r", b"\n", b"\r\n", b" ", b"0", b"1", b"2", b":", b"\0", b"x", b"\r\n\r\n"]
    ),
)


@given(st.integers(0, 120), st.lists(_edits, max_size=3))
def test_what_is_known_is_what_the_parser_finds(length: int, edits: list[Any]) -> None:
    """For any mutation of the bytes."""
    data = POST % length + b"x" * length
    for start, count, put in edits:
        data = data[:start] + put + data[start + count :]
    first = POST % 2 + b"{}"
    body = body_of(first, data)
    if body is None:
        return
    ((method, url, headers),) = Parsed(first).heads
    parsed = Parsed(data)
    ((found_method, found_url, found_headers),) = parsed.heads
    assert (found_method, found_url, parsed.whole, parsed.body) == (method, url, 1, body)
    assert parsed.is_kept
    assert [name for name, _ in found_headers] == [name for name, _ in headers]
