"""A head that a connection sends again and again, so that it is not parsed each time.

An app sends the same head all day; only the length of its bodies differs. To parse it anew each
time, field by field, costs more than to check and price the record that follows it.

A head is taken for known if it has, byte for byte, what the parser itself has taken on the same
connection, but for the digits of ``Content-Length``; if all of its request came in one piece, and
nothing else with it; and if nothing of the connection was under way. So the parser, which is
between two requests then, would have made the same of it. What is remembered ends with the
connection, which is closed a few seconds after its last request.

Bound: `KNOWN_BYTES_MAX` for each connection.
"""

from __future__ import annotations

from typing import Any, Final

KNOWN_BYTES_MAX: Final = 2_048
DIGITS_MAX: Final = 7
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_LENGTH_NAME: Final = b"content-length"
_NOT_AGAIN: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te"})
"""Headers after which more is to be looked at than the length of the body."""


class KnownHead:
    """What was made of a head, and the bytes by which it is known again."""

    __slots__ = ("_after", "_before", "_digits_from", "_length_at", "_scope", "head_bytes", "memo")

    def __init__(self, before: bytes, after: bytes | None, scope: Any, head_bytes: int) -> None:
        self._before = before
        self._digits_from = len(before)
        self._after = after
        """What follows the digits of its length; ``None`` if it has none, and no body."""
        self._scope = scope
        names = [name for name, _ in scope["headers"]]
        self._length_at = names.index(_LENGTH_NAME) if after is not None else None
        self.head_bytes = head_bytes
        """What it counts for in the bounds of what requests hold."""
        self.memo: Any = None
        """What the shell has worked out of it."""

    def request_of(self, data: bytes) -> tuple[Any, bytes] | None:
        """The scope and the body, if the data is a whole request with this head and nothing else.

        The scope has what was made of the head, with the length of this body.
        """
        if not data.startswith(self._before):
            return None
        start, after = self._digits_from, self._after
        if after is None or self._length_at is None:
            return (self._scope.copy(), b"") if len(data) == start else None
        stop = data.find(b"\r", start, start + DIGITS_MAX + 1)
        if stop < 0 or not data.startswith(after, stop):
            return None
        digits, body = data[start:stop], data[stop + len(after) :]
        if not _is_length(digits) or int(digits) != len(body):
            return None
        scope = self._scope.copy()
        scope["headers"] = headers = scope["headers"].copy()
        headers[self._length_at] = (_LENGTH_NAME, digits)
        return scope, body


def remember_head(data: bytes, scope: Any, head_bytes: int, body_bytes: int) -> KnownHead | None:
    """What is to be remembered of a request that was the only one in that data, and whole.

    ``head_bytes`` and ``body_bytes`` are what the parser has found in it. ``None`` if the next one
    has to be parsed.
    """
    end = data.find(_END) + len(_END)
    headers = scope["headers"]
    if (
        not 0 < end <= KNOWN_BYTES_MAX
        or len(data) != end + body_bytes
        or not data.startswith(scope["method"].encode() + b" ")
        or any(name in _NOT_AGAIN for name, _ in headers)
    ):
        return None
    lengths = [value for name, value in headers if name == _LENGTH_NAME]
    head = data[:end]
    lowered = head.lower()
    if not lengths:
        plain = not body_bytes and _LENGTH not in lowered
        return KnownHead(head, None, scope, head_bytes) if plain else None
    at = lowered.find(_LENGTH) + len(_LENGTH)
    stop = head.find(b"\r", at)
    digits = head[at:stop].lstrip(b" \t")
    if lowered.count(_LENGTH) != 1 or lengths != [digits] or not _is_length(digits):
        return None
    if int(digits) != body_bytes:
        return None
    return KnownHead(head[: stop - len(digits)], head[stop:], scope, head_bytes)


def _is_length(digits: bytes) -> bool:
    """Whether that is a length as everybody writes it: digits, and no zero in front."""
    return digits.isdigit() and (digits[:1] != b"0" or digits == b"0")
