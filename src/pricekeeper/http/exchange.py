"""One request and its answer, written whole.

uvicorn writes the head of an answer and its body apart, and checks each header with two regular
expressions. Every answer of ours is whole when it is sent, so head and body go out in one write,
and one count of line ends finds a header that would bring a line of its own.
"""

from __future__ import annotations

from typing import Final

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_CLOSE: Final = (b"connection", b"close")


class Exchange(RequestResponseCycle):
    """uvicorn's cycle of a request, for answers that are not streamed."""

    _head = b""

    async def send(self, message: ASGISendEvent) -> None:
        """Take the start of an answer, and then its body, and write both."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            headers = [*self.default_headers, *message["headers"]]
            if _CLOSE in headers:
                self.keep_alive = False
            elif not self.keep_alive:
                headers.append(_CLOSE)
            lines = [b"%b: %b\r\n" % header for header in headers]
            head = b"".join(lines)
            if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
                raise RuntimeError("a header has more than one line")
            self._head = b"%b%b\r\n" % (STATUS_LINE[message["status"]], head)
            self.response_started = True
            self.waiting_for_100_continue = False
        elif message["type"] == "http.response.body" and not self.response_complete:
            if message.get("more_body", False):
                raise RuntimeError("an answer is sent whole")
            body = b"" if self.scope["method"] == "HEAD" else message["body"]
            self.transport.write(self._head + body)
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
        else:
            raise RuntimeError(f"{message['type']} does not come here")
