"""What uvicorn says to bytes that are no HTTP: a problem like any other."""

from __future__ import annotations

import secrets

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pricekeeper.http.problems import Problem


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with our answer to garbage."""

    def send_400_response(self, msg: str) -> None:
        request_id = secrets.token_hex(16)
        body = Problem(400, "INVALID_REQUEST", msg or "this is not HTTP").body(request_id)
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\n"
            b"content-type: application/problem+json\r\n"
            b"content-length: %d\r\n"
            b"x-request-id: %s\r\n"
            b"connection: close\r\n\r\n%s" % (len(body), request_id.encode(), body)
        )
        self.transport.close()
