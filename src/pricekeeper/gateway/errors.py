"""What the gateway answers instead of Bedrock, in words that each client knows.

A budget that is spent is a 400, because every client takes that for final; a 429 would have some of
them try a hundred times. Too fast is a 429 with the time to wait in both headers that clients read.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from pricekeeper.errors import (
    AuthorizationDeniedError,
    ClockInDoubtError,
    FrozenError,
    InvalidClientError,
    InvalidTokenError,
    InvalidValueError,
    Obstacle,
    OverloadedError,
    PriceKeeperError,
    PricingError,
    RateLimitExceededError,
    StoreError,
)
from pricekeeper.gateway.routes import Dialect

RETRY_SECS_MAX: Final = 30
"""A client may sleep for as long as it is told, so it is never told more."""
_encode: Final = msgspec.json.Encoder().encode


class Refusal(Exception):  # noqa: N818 - it is an answer
    """An answer of the gateway's own. ``code`` is the name of an exception of AWS's."""

    def __init__(
        self, status: int, code: str, message: str, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms

    def headers(self, request_id: str) -> list[tuple[bytes, bytes]]:
        """The headers of the answer."""
        found = [
            (b"content-type", b"application/json"),
            (b"x-amzn-errortype", self.code.encode()),
            (b"x-amzn-requestid", request_id.encode()),
            (b"cache-control", b"no-store"),
        ]
        if self.status == HTTPStatus.METHOD_NOT_ALLOWED:
            found.append((b"allow", b"POST"))
        if self.retry_after_ms is not None:
            wait_ms = min(self.retry_after_ms, RETRY_SECS_MAX * 1000)
            found.append((b"retry-after", b"%d" % max(1, -(-wait_ms // 1000))))
            found.append((b"x-amz-retry-after", b"%d" % wait_ms))
        return found

    def body(self, dialect: Dialect) -> bytes:
        """The body of the answer."""
        if dialect is Dialect.OPENAI:
            error = {"message": self.message, "type": _OPENAI.get(self.status, "api_error")}
            return _encode({"error": {**error, "param": None, "code": self.code}})
        if dialect is Dialect.ANTHROPIC:
            kind = _ANTHROPIC.get(self.status, "api_error")
            return _encode({"type": "error", "error": {"type": kind, "message": self.message}})
        return _encode({"message": self.message})


_OPENAI: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_exceeded",
}
_ANTHROPIC: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def reply_lost() -> Refusal:
    """Bedrock's answer was lost. Not a 5xx: clients would make the call again, and pay again."""
    message = "Bedrock's answer was lost; the call stays charged at what was held for it"
    return Refusal(424, "ModelErrorException", message)


def unavailable(message: str) -> Refusal:
    """Nothing was sent to Bedrock, and the same call may work in a moment."""
    return Refusal(503, "ServiceUnavailableException", message, 1000)


def failed() -> Refusal:
    """A mistake of ours, before anything was held."""
    return Refusal(500, "InternalServerException", "the price keeper has failed")


def refusal_of(error: PriceKeeperError, now_ms: int) -> Refusal:
    """What to answer for an error of ours."""
    if isinstance(error, AuthorizationDeniedError):
        return _denial(error, now_ms)
    if isinstance(error, RateLimitExceededError):
        return Refusal(429, "ThrottlingException", str(error), error.retry_after_ms or 1000)
    if isinstance(error, FrozenError):
        return Refusal(403, "AccessDeniedException", str(error))
    if isinstance(error, InvalidTokenError | InvalidClientError):
        return Refusal(403, "AccessDeniedException", "the credentials are not valid")
    if isinstance(error, PricingError | InvalidValueError):
        return Refusal(400, "ValidationException", str(error))
    if isinstance(error, StoreError | OverloadedError | ClockInDoubtError):
        return unavailable("the price keeper is not available")
    return failed()


def _denial(error: AuthorizationDeniedError, now_ms: int) -> Refusal:
    frozen = [one for one in error.denied_by if one.kind is Obstacle.FROZEN]
    if frozen:
        why = "; ".join(f"{one.text}: {one.name}" for one in frozen)
        return Refusal(403, "AccessDeniedException", why)
    if error.by_speed:
        wait_ms = error.retry_after_ms(now_ms)
        if wait_ms is None:
            return Refusal(400, "ValidationException", f"{error}; it is more than the limit holds")
        return Refusal(429, "ThrottlingException", str(error), wait_ms)
    return Refusal(400, "ServiceQuotaExceededException", _explained(error, now_ms))


def _explained(error: AuthorizationDeniedError, now_ms: int) -> str:
    """The denial for a person: what is in the way, and until when."""
    waits: Sequence[int] = [
        one.resets_at_ms for one in error.denied_by if one.resets_at_ms is not None
    ]
    if any(one.never for one in error.denied_by):
        return f"{error}; it is more than the whole budget"
    if not waits:
        return f"{error}; other calls hold it at the moment"
    minutes = -(-max(0, max(waits) - now_ms) // 60_000)
    return f"{error}; it begins anew in {minutes // 60} h {minutes % 60} min"
