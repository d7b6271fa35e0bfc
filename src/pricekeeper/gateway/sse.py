"""The usage in server-sent events of OpenAI's and Anthropic's form, skimmed as they pass.

OpenAI's streams say what was used only if they are asked to, in an event of its own. If the caller
did not ask for it, the gateway does, and takes that event out again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pricekeeper.bedrock import Usage
from pricekeeper.bedrock.usage import usage_of_body

EVENT_BYTES_MAX: Final = 4 << 20
"""An event that is longer is passed on unread."""
_END: Final = b"\n\n"
_DATA: Final = b"data:"
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class SseUsage:
    """What a stream of events says was used."""

    def __init__(self, *, hides_usage: bool) -> None:
        self._hides_usage = hides_usage
        self._buffer = bytearray()
        self._fields: dict[str, Any] = {}
        self._found: Usage | None = None
        self.size = 0

    def feed(self, chunk: bytes) -> bytes:
        """Look at the next bytes; what of them is to be passed on."""
        self.size += len(chunk)
        if not self._hides_usage:
            self._buffer += chunk
            for event in self._take_events():
                self._look(event)
            return chunk
        self._buffer += chunk
        return b"".join(event + _END for event in self._take_events() if not self._look(event))

    def rest(self) -> bytes:
        """What was held back at the end of the stream."""
        left, self._buffer = bytes(self._buffer), bytearray()
        return left if self._hides_usage else b""

    def usage(self) -> Usage | None:
        """What was used; ``None`` as long as the stream has not said it."""
        return self._found

    def _take_events(self) -> list[bytes]:
        end = self._buffer.rfind(_END)
        if end < 0:
            if len(self._buffer) > EVENT_BYTES_MAX:
                self._buffer.clear()
            return []
        whole = bytes(self._buffer[:end])
        del self._buffer[: end + len(_END)]
        return whole.split(_END)

    def _look(self, event: bytes) -> bool:
        """Note what an event says; whether it says nothing but the usage."""
        if b"usage" not in event:
            return False
        at = event.find(_DATA)
        try:
            said = _decode(event[at + len(_DATA) :].strip())
        except msgspec.DecodeError:
            return False
        message = said.get("message")
        inner = message if isinstance(message, dict) else said
        usage = inner.get("usage")
        if not isinstance(usage, dict):
            return False
        # Anthropic says the prompt at the beginning, and the answer at the end.
        self._fields.update({name: one for name, one in usage.items() if one is not None})
        self._found = usage_of_body({"usage": self._fields})
        return said.get("choices") == []
