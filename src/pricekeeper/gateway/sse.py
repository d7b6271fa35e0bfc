"""The usage in server-sent events of OpenAI's and Anthropic's form, skimmed as they pass.

OpenAI's streams say what was used only if they are asked to, in an event of its own. If the caller
did not ask for it, the gateway does, and takes that event out again. What a stream says before its
end is not what it costs: Anthropic's begins with the tokens of the prompt and one of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.bedrock import Usage
from pricekeeper.bedrock.usage import NOT_JSON, usage_of_body, with_tier_of

EVENT_BYTES_MAX: Final = 4 << 20
"""An event that is longer is passed on unread."""
_BLANK_LINE: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_BLANK_LINE_BYTES_MAX: Final = 4
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_STOPPED: Final = "message_stop"
_TELLING: Final = re.compile(rb"usage|\[DONE\]|message_stop")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class SseUsage:
    """What a stream of events says was used."""

    def __init__(self, headers: Mapping[str, str], *, hides_usage: bool) -> None:
        self._headers = headers
        self._hides_usage = hides_usage
        self._buffer = bytearray()
        self._searched = 0
        """How much of the buffer has no blank line in it."""
        self._fields: dict[str, Any] = {}
        self._tier: Any = None
        self._has_ended = False
        """Whether the stream has said all that it says of its usage."""

    def feed(self, chunk: bytes) -> bytes:
        """Look at the next bytes; what of them is to be passed on."""
        self._buffer += chunk
        passed = b"".join(event for event in self._take_events() if not self._look(event))
        return passed if self._hides_usage else chunk

    def rest(self) -> bytes:
        """What was held back at the end of the stream."""
        left, self._buffer, self._searched = bytes(self._buffer), bytearray(), 0
        return left if self._hides_usage else b""

    def usage(self) -> Usage | None:
        """What was used; ``None`` as long as the stream has not said it."""
        if not self._has_ended:
            return None
        found = usage_of_body({"usage": self._fields, "service_tier": self._tier})
        return with_tier_of(found, self._headers)

    def _take_events(self) -> list[bytes]:
        """The events that are whole, each with the blank line that ends it."""
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
        """Note what an event says; whether it says nothing but the usage."""
        if _TELLING.search(event) is None:
            return False
        data = event[event.find(_DATA) + len(_DATA) :].strip()
        if data == _DONE:
            self._has_ended = True
            return False
        try:
            said = _decode(data)
        except NOT_JSON:
            return False
        return self._note(said)

    def _note(self, said: dict[str, Any]) -> bool:
        delta = said.get("delta")
        stops = isinstance(delta, dict) and delta.get("stop_reason") is not None
        message = said.get("message")
        inner = message if isinstance(message, dict) else said
        usage = inner.get("usage")
        if isinstance(usage, dict):
            # Anthropic says the prompt at the beginning, and the answer at the end.
            self._fields.update({name: one for name, one in usage.items() if one is not None})
            self._tier = said.get("service_tier") or self._tier
        is_all_usage = isinstance(usage, dict) and said.get("choices") == []
        if is_all_usage or stops or said.get("type") == _STOPPED:
            self._has_ended = True
        return is_all_usage and self._hides_usage
