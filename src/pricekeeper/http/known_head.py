"""Recognises a head that a connection sends repeatedly, without parsing it.

An app sends the same head all day, and parsing it costs more than pricing the record that follows.
A request is recognised only if the parser would give the same result:

- nothing else is under way, and the request came whole, in one piece of data;
- each line equals the parsed one, except for the values of some headers, in printable text without
  spaces around it;
- ``Content-Length`` is the length of the body, and headers about the connection are equal.

Bound: two copies of `KNOWN_BYTES_MAX` for each connection.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

KNOWN_BYTES_MAX: Final = 4_096
DIGITS_MAX: Final = 7
_LINE_END: Final = b"\r\n"
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
_NOT_AGAIN: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te"})
"""Always parsed."""
_EQUAL: Final = frozenset({b"host", b"connection", b"proxy-connection", b"keep-alive"})
"""Headers whose values may not differ."""
_VALUE: Final = re.compile(rb"[!-~]++(?: ++[!-~]++)*+")

Fields = list[tuple[bytes, bytes]]


class KnownRequest(NamedTuple):
    """A complete request with a known head."""

    scope: Any
    body: bytes
    head_bytes: int
    is_same: bool
    """Whether only the length of the body differs."""


class KnownHead:
    """The result of parsing a head, and the bytes that identify it."""

    __slots__ = ("_after", "_before", "_digits_from", "_head_bytes", "_length_at", "_lines",
                 "_scope", "_size", "_starts", "memo")  # fmt: skip

    def __init__(
        self, lines: list[bytes], starts: list[bytes], scope: Any, head_bytes: int
    ) -> None:
        """``starts`` is the part of each header's line before its value."""
        self._lines = lines
        self._starts = starts
        self._scope = scope
        self._head_bytes = head_bytes
        names = [name for name, _ in scope["headers"]]
        self._length_at = names.index(_LENGTH) if _LENGTH in names else None
        if self._length_at is None:
            before, after = lines, [b"", b"", b""]
        else:
            line_at = self._length_at + 1
            before = [*lines[:line_at], starts[self._length_at]]
            after = [b"", *lines[line_at + 1 :], b"", b""]
        self._before = _LINE_END.join(before)
        self._digits_from = len(self._before)
        self._after = _LINE_END.join(after)
        self._size = len(_LINE_END.join(lines))
        self.memo: Any = None
        """`serving.Target`, once known."""

    def request_of(self, data: bytes) -> KnownRequest | None:
        """The request in ``data``, if it is complete, has this head and comes alone."""
        start = stop = self._digits_from
        if self._length_at is not None:
            stop = data.find(b"\r", start, start + DIGITS_MAX + 1)
        if stop < 0 or not (data.startswith(self._before) and data.startswith(self._after, stop)):
            return self._differing(data)
        body = data[stop + len(self._after) :]
        headers: Fields = self._scope["headers"].copy()
        if self._length_at is not None:
            headers[self._length_at] = (_LENGTH, data[start:stop])
        return self._checked(headers, body, len(data) - len(body) - len(_END), is_same=True)

    def _differing(self, data: bytes) -> KnownRequest | None:
        size = data.find(_END, 0, KNOWN_BYTES_MAX)
        lines = data[: max(0, size)].split(_LINE_END)
        if len(lines) != len(self._lines) or lines[0] != self._lines[0]:
            return None
        headers: Fields = self._scope["headers"].copy()
        is_same = True
        for at, start in enumerate(self._starts):
            line = lines[at + 1]
            if line == self._lines[at + 1]:
                continue
            name, value = headers[at][0], line[len(start) :]
            if name in _EQUAL or not line.startswith(start) or _VALUE.fullmatch(value) is None:
                return None
            is_same &= at == self._length_at
            headers[at] = (name, value)
        return self._checked(headers, data[size + len(_END) :], size, is_same=is_same)

    def _checked(
        self, headers: Fields, body: bytes, size: int, *, is_same: bool
    ) -> KnownRequest | None:
        digits = b"0" if self._length_at is None else headers[self._length_at][1]
        if not _is_length(digits) or int(digits) != len(body):
            return None
        scope = self._scope.copy()
        scope["headers"] = headers
        return KnownRequest(scope, body, self._head_bytes + size - self._size, is_same)


def remember_head(data: bytes, scope: Any, head_bytes: int, body_bytes: int) -> KnownHead | None:
    """Remember a complete request that came alone; ``None`` if its head must be parsed.

    ``head_bytes`` and ``body_bytes`` are the parser's counts.
    """
    size = data.find(_END)
    headers: Fields = scope["headers"]
    if (
        not 0 < size <= KNOWN_BYTES_MAX - len(_END)
        or len(data) != size + len(_END) + body_bytes
        or not data.startswith(scope["method"].encode() + b" ")
        or any(name in _NOT_AGAIN for name, _ in headers)
    ):
        return None
    lines = data[:size].split(_LINE_END)
    starts = [
        line[: len(line) - len(value)] for line, (_, value) in zip(lines[1:], headers, strict=False)
    ]
    are_lines = len(lines) == len(headers) + 1 and all(
        line == start + value and start.lower().rstrip(b" \t") == name + b":"
        for line, start, (name, value) in zip(lines[1:], starts, headers, strict=True)
    )
    lengths = [value for name, value in headers if name == _LENGTH]
    length = lengths[0] if lengths else b"0"
    if not are_lines or len(lengths) > 1 or not _is_length(length) or int(length) != body_bytes:
        return None
    return KnownHead(lines, starts, scope, head_bytes)


def _is_length(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= DIGITS_MAX and (digits[:1] != b"0" or digits == b"0")
