"""The access log: a JSON line per request, written once per turn of the event loop.

A line that goes through the ordinary logging costs as much as the rest of a quick request. These
have a fixed shape, so they are gathered, encoded directly, and written together; they go through
the same redacting sink as every other line.
"""

from __future__ import annotations

import msgspec

from pricekeeper.telemetry.logs import GatheredLines, timestamp


class _Line(msgspec.Struct):
    event: str
    level: str
    timestamp: str
    request_id: str
    method: str
    route: str
    status: int
    elapsed_us: int


class AccessLog:
    """Gathers lines and writes them at the end of the loop's turn."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._encode = msgspec.json.Encoder().encode
        self._lines = GatheredLines()

    def note(self, method: str, route: str, status: int, elapsed_us: int, request_id: str) -> None:
        """Write a line, soon."""
        if not self._enabled:
            return
        line = _Line("request", "info", timestamp(), request_id, method, route, status, elapsed_us)
        self._lines.add(self._encode(line))
