"""The access log: a JSON line per request, written once per turn of the event loop.

A line that goes through the ordinary logging costs as much as the rest of a quick request. These
have a fixed shape, so they are gathered, encoded directly, and written together; they go through
the same redacting sink as every other line.
"""

from __future__ import annotations

import asyncio

import msgspec

from pricekeeper.telemetry.logs import timestamp, write_lines


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
        self._encode_lines = msgspec.json.Encoder().encode_lines
        self._gathered: list[_Line] = []
        self._timestamp = ""
        """Of this turn of the loop, in which time stands still."""

    def note(self, method: str, route: str, status: int, elapsed_us: int, request_id: str) -> None:
        """Write a line, soon."""
        if not self._enabled:
            return
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._write)
            self._timestamp = timestamp()
        line = _Line(
            "request", "info", self._timestamp, request_id, method, route, status, elapsed_us
        )
        self._gathered.append(line)

    def _write(self) -> None:
        gathered, self._gathered = self._gathered, []
        write_lines([self._encode_lines(gathered)[:-1]])
