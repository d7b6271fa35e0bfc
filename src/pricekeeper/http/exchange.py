"""One request and its answer, written whole, or in parts as they come.

uvicorn writes the head of an answer and its body apart, and checks each header with two regular
expressions. Nearly every answer of ours is whole when it is sent, so head and body go out in one
write, and one count of line ends finds a header that would bring a line of its own. The gateway's
streams go out in chunks, each when it comes.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from pricekeeper.gateway.connection import ABORT

_CLOSE: Final = (b"connection", b"close")
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Exchange(RequestResponseCycle):
    """uvicorn's cycle of a request."""

    _head = b""
    _in_parts = False
    _in_chunks = False

    async def send(self, message: Any) -> None:
        """Take the start of an answer, and then its body, and write them."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._begin(message)
        elif message["type"] == "http.response.body" and not self.response_complete:
            if self._in_parts or message.get("more_body", False):
                self._write_part(message["body"])
                if message.get("more_body", False):
                    return
                if self._in_chunks:
                    self.transport.write(_LAST_CHUNK)
            else:
                body = b"" if self.scope["method"] == "HEAD" else message["body"]
                self.transport.write(self._head + body)
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
        elif message["type"] == ABORT:
            self._break_off()
        else:
            raise RuntimeError(f"{message['type']} does not come here")

    def _begin(self, message: Any) -> None:
        """Make the head; it is written with the first of the body."""
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

    def _write_part(self, part: bytes) -> None:
        """Write what has come of an answer whose length nobody knows."""
        if not self._in_parts:
            self._in_parts = True
            # HTTP/1.0 has no chunks; there the end of the connection is the end of the answer.
            self._in_chunks = self.scope["http_version"] != "1.0"
            if self._in_chunks:
                self._head = self._head[:-2] + b"transfer-encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%b\r\n" % (len(part), part) if part and self._in_chunks else part
        if self._head or chunk:
            self.transport.write(self._head + chunk)
        self._head = b""

    def _break_off(self) -> None:
        """End an answer so that its reader knows that something is missing."""
        self.disconnected = True
        if self._in_chunks:
            self.transport.close()  # after what was written; the last chunk never comes
        else:
            self.transport.abort()
