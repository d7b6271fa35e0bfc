"""A head that a connection sends again and again, so that it is not parsed each time.

An app sends the same head all day; only the length of its bodies differs and, if it signs its
requests, what is signed. To parse it anew each time, field by field, costs more than to check and
price the record that follows it.

A head is taken for known if it has, line by line, what the parser itself has taken on the same
connection, but for the values of some headers; if all of its request came in one piece, and nothing
else with it; and if nothing of the connection was under way. A value that differs has to be plain
text without spaces around it, that of ``Content-Length`` has to be the length of the body, and what
is about the connection may not differ. So the parser, which is between two requests then, would
have made the same of it. What is remembered ends with the connection, which is closed a few seconds
after its last request.

Bound: `KNOWN_BYTES_MAX` for each connection, of which it keeps two copies.
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
"""Headers after which more is to be looked at than the length of the body."""
_EQUAL: Final = frozenset({b"host", b"connection", b"proxy-connection", b"keep-alive"})
"""Headers whose values may not differ."""
_VALUE: Final = re.compile(rb"[!-~]++(?: ++[!-~]++)*+")

Fields = list[tuple[bytes, bytes]]


class KnownRequest(NamedTuple):
    """A whole request with a head that is known."""

    scope: Any
    """What was made of the head, with the values of this one."""
    body: bytes
    head_bytes: int
    """What its head counts for in the bounds of what requests hold."""
    is_same: bool
    """Whether nothing of the head differs but the length of the body."""


class KnownHead:
    """What was made of a head, and the bytes by which it is known again."""

    __slots__ = ("_after", "_before", "_digits_from", "_head_bytes", "_length_at", "_lines",
                 "_scope", "_size", "_starts", "memo")  # fmt: skip

    def __init__(
        self, lines: list[bytes], starts: list[bytes], scope: Any, head_bytes: int
    ) -> None:
        """``starts`` has for each header what its line begins with before the value."""
        self._lines = lines
        self._starts = starts
        self._scope = scope
        self._head_bytes = head_bytes
        names = [name for name, _ in scope["headers"]]
        self._length_at = names.index(_LENGTH) if _LENGTH in names else None
        """Which header has the length of the body; ``None`` if there is no body."""
        if self._length_at is None:
            before, after = lines, [b"", b"", b""]
        else:
            line_at = self._length_at + 1  # behind the line of the request
            before = [*lines[:line_at], starts[self._length_at]]
            after = [b"", *lines[line_at + 1 :], b"", b""]
        self._before = _LINE_END.join(before)
        self._digits_from = len(self._before)
        self._after = _LINE_END.join(after)
        self._size = len(_LINE_END.join(lines))
        self.memo: Any = None
        """What the shell has worked out of it."""

    def request_of(self, data: bytes) -> KnownRequest | None:
        """The request that the data is, if that is a whole one with this head and nothing else."""
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
        """The same for a head with other values, line by line."""
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
        """The request, if its body is as long as it says; its head has that size."""
        digits = b"0" if self._length_at is None else headers[self._length_at][1]
        if not _is_length(digits) or int(digits) != len(body):
            return None
        scope = self._scope.copy()
        scope["headers"] = headers
        return KnownRequest(scope, body, self._head_bytes + size - self._size, is_same)


def remember_head(data: bytes, scope: Any, head_bytes: int, body_bytes: int) -> KnownHead | None:
    """What is to be remembered of a request that was the only one in that data, and whole.

    ``head_bytes`` and ``body_bytes`` are what the parser has found in it. ``None`` if the next one
    has to be parsed.
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
    """Whether that is a length as everybody writes it: some digits, and no zero in front."""
    return digits.isdigit() and len(digits) <= DIGITS_MAX and (digits[:1] != b"0" or digits == b"0")
