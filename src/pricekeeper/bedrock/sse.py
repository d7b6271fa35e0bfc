"""Reads the usage of OpenAI's and Anthropic's server-sent events, as they pass.

OpenAI reports usage only on request. If only the gateway requested it, that event is removed. Usage
before the end of a stream is not its cost. A stream that begins with an error is a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from pricekeeper.bedrock.refusals import read_error
from pricekeeper.bedrock.usage import Usage, decode_object, usage_of_body, with_tier_of

EVENT_BYTES_MAX: Final = 4 << 20
"""A longer event is passed on unread."""
_BLANK_LINE: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_BLANK_LINE_BYTES_MAX: Final = 4
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_STOPPED: Final = "message_stop"
_PING: Final = re.compile(rb'\{\s*+"type"\s*+:\s*+"ping"')
"""Anthropic's keep-alive, which may come before the first event of the answer."""
_TELLING: Final = re.compile(rb"usage|\[DONE\]|message_stop")


class SseUsage:
    """The usage that a stream of events reports."""

    def __init__(self, headers: Mapping[str, str], *, hides_usage: bool) -> None:
        self._headers = headers
        self._hides_usage = hides_usage
        self._buffer = bytearray()
        self._searched = 0
        self._fields: dict[str, Any] = {}
        self._tier: Any = None
        self._has_begun = False
        """Whether an event of an answer has come: no comment, ping or refusal."""
        self._has_refused = False
        self._has_ended = False

    @property
    def is_refused(self) -> bool:
        """Whether the whole stream is a refusal, without output."""
        return self._has_refused and not self._has_begun

    def feed(self, chunk: bytes) -> bytes:
        self._buffer += chunk
        passed = b"".join(event for event in self._take_events() if not self._look(event))
        return passed if self._hides_usage else chunk

    def rest(self) -> bytes:
        """The bytes that were held back at the end of the stream."""
        left, self._buffer, self._searched = bytes(self._buffer), bytearray(), 0
        return left if self._hides_usage else b""

    def usage(self) -> Usage | None:
        if not self._has_ended:
            return None
        found = usage_of_body({"usage": self._fields, "service_tier": self._tier})
        return with_tier_of(found, self._headers)

    def _take_events(self) -> list[bytes]:
        ends = [found.end() for found in _BLANK_LINE.finditer(self._buffer, self._searched)]
        begins = [0, *ends]
        events = [bytes(self._buffer[begin:end]) for begin, end in zip(begins, ends, strict=False)]
        del self._buffer[: begins[-1]]
        if len(self._buffer) > EVENT_BYTES_MAX:
            events.append(bytes(self._buffer))
            self._buffer.clear()
        self._searched = max(0, len(self._buffer) - _BLANK_LINE_BYTES_MAX + 1)
        return events

    def _look(self, event: bytes) -> bool:
        """Note what an event reports; returns whether it reports only the usage."""
        if self._has_begun and _TELLING.search(event) is None:
            return False
        data = event.partition(_DATA)[2].strip()
        if not self._has_begun:
            self._begin(data)
        if data == _DONE:
            self._has_ended = True
            return False
        said = decode_object(data)
        return said is not None and self._note(said)

    def _begin(self, data: bytes) -> None:
        if not data or data == _DONE or _PING.match(data):
            return
        if read_error(HTTPStatus.OK, {}, data, has_objects=True).is_free:
            self._has_refused = True
        else:
            self._has_begun = True

    def _note(self, said: dict[str, Any]) -> bool:
        delta = said.get("delta")
        stops = isinstance(delta, dict) and delta.get("stop_reason") is not None
        message = said.get("message")
        inner = message if isinstance(message, dict) else said
        usage = inner.get("usage")
        if isinstance(usage, dict):
            # Anthropic reports the prompt at the beginning, the answer at the end.
            self._fields.update({name: one for name, one in usage.items() if one is not None})
            self._tier = said.get("service_tier") or self._tier
        is_all_usage = isinstance(usage, dict) and said.get("choices") == []
        if is_all_usage or stops or said.get("type") == _STOPPED:
            self._has_ended = True
        return is_all_usage and self._hides_usage
