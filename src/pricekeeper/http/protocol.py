"""uvicorn's protocol, with bounds on what comes before a request is whole.

A body is bounded where it is read. What is not a body, the request line, headers, chunk lines and
trailers, is gathered by the parser for as long as it comes, and a caller who sends half a request
may take any time over the other half. Here both end, with a problem like any other.
"""

from __future__ import annotations

import asyncio
import secrets
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pricekeeper.http.problems import Problem

HEAD_BYTES_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 100
"""Headers, and trailers with them."""
ARRIVAL_SECS_MAX: Final = 30
"""From the first byte of a request to the last."""
_LOOK_EVERY_SECS: Final = 5


class ProblemProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._arriving_since: float | None = None
        """When the request that is not here yet began; nothing, between requests."""
        self._gathered_bytes = 0
        """What the parser has taken since the last request, or the last part of a body."""
        self._body_came = False
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and look now and then whether it gets anywhere."""
        super().connection_made(transport)
        self._arriving_since = self.loop.time()
        self._watch = self.loop.call_later(_LOOK_EVERY_SECS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; refuse what gathers without ever being whole."""
        if self._arriving_since is None:
            self._arriving_since = self.loop.time()
        self._body_came = False
        super().data_received(data)
        if self._arriving_since is None or self._body_came:
            self._gathered_bytes = 0
        else:
            self._gathered_bytes += len(data)
        if self._gathered_bytes > HEAD_BYTES_MAX or len(self.headers or ()) > FIELDS_MAX:
            self._refuse(431, "HEADERS_TOO_LARGE", "the request line or its headers are too large")

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._arriving_since = None
        super().on_message_complete()

    def shutdown(self) -> None:
        """End between requests; one that is not whole yet was never accepted."""
        if self._arriving_since is not None:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer to bytes that are no HTTP."""
        self._refuse(400, "INVALID_REQUEST", msg or "this is not HTTP")

    def _look(self) -> None:
        since = self._arriving_since
        if since is not None and self.loop.time() - since >= ARRIVAL_SECS_MAX:
            self._refuse(408, "REQUEST_TIMEOUT", "the request took too long to arrive")
        else:
            self._watch = self.loop.call_later(_LOOK_EVERY_SECS, self._look)

    def _refuse(self, status: int, code: str, detail: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:  # else half an answer may be out
            request_id = secrets.token_hex(16)
            body = Problem(status, code, detail).body(request_id)
            self.transport.write(
                b"HTTP/1.1 %d %s\r\n"
                b"content-type: application/problem+json\r\n"
                b"content-length: %d\r\n"
                b"x-request-id: %s\r\n"
                b"connection: close\r\n\r\n%s"
                % (
                    status,
                    HTTPStatus(status).phrase.encode(),
                    len(body),
                    request_id.encode(),
                    body,
                )
            )
        self.transport.close()
