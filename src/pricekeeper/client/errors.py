"""The errors of the client. ``problem`` has the request id of the service's log.

::

    ServiceError                 the service answered with a problem
    ├── RejectedError            400, 409, 413...: the request is wrong; ``errors`` says where
    ├── ForbiddenError           401, 403: credentials are missing, wrong, or not for this
    │   └── ClientFrozenError    403: an administrator has frozen the organisation or the app
    ├── MissingError             404: absent, deleted, or another tenant's
    ├── RateLimitedError         429: too fast; ``violations`` lists the limits
    ├── QuotaSpentError          429: all quotas are spent until ``resets_at``
    ├── DeniedError              429: a call was denied; ``denied_by`` lists why
    └── UnavailableError         503, or no answer; try again later
        ├── UnreachableError     nothing was sent
        ├── ReplyLostError       it was sent, and may have been applied
        │   └── NoAnswerError    the deadline has passed
        ├── BreakerOpenError     it did not answer before; nothing was sent
        └── SpoolFullError       too many reports wait; nothing was sent
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from pricekeeper.errors import FieldError, PriceKeeperError, Violation, longest_wait_ms
from pricekeeper.values import parse_whole

_BODY_SHOWN_MAX = 120


class ServiceProblem(msgspec.Struct, frozen=True):
    """A problem document (RFC 9457). ``extras`` is the whole document."""

    status: int
    code: str
    detail: str
    request_id: str = ""
    retry_after_secs: int | None = None
    extras: Mapping[str, Any] = {}


class ServiceError(PriceKeeperError):
    """The service answered with a problem."""

    code = "SERVICE_ERROR"

    def __init__(self, problem: ServiceProblem) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.code = problem.code  # type: ignore[misc]  # the service's own, if it has one

    @property
    def status(self) -> int:
        """The HTTP status; 0 if there was no answer."""
        return self.problem.status

    @property
    def retry_after_secs(self) -> int | None:
        return self.problem.retry_after_secs


class RejectedError(ServiceError):
    """The request is wrong or contradicts stored state. Sending it again can't help."""

    @property
    def errors(self) -> tuple[FieldError, ...]:
        listed = self.problem.extras.get("errors", ())
        return tuple(FieldError(str(one["field"]), str(one["message"])) for one in listed)


class ForbiddenError(ServiceError):
    """The credentials are missing, wrong, or lack permission."""


class ClientFrozenError(ForbiddenError):
    """An administrator has frozen the organisation or app; usage can still be recorded."""

    @property
    def reason(self) -> str:
        return str(self.problem.extras.get("reason", ""))

    @property
    def scope(self) -> str:
        return str(self.problem.extras.get("scope", ""))

    @property
    def frozen_at(self) -> str:
        """Since when (RFC 3339)."""
        return str(self.problem.extras.get("frozen_at", ""))


class MissingError(ServiceError):
    """The resource does not exist for this caller."""


class RateLimitedError(ServiceError):
    """Too many requests or tokens. Nothing was taken."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The exceeded limits, without entity and resource."""
        return tuple(
            Violation(
                entity="",
                resource="",
                limit=str(one["limit"]),
                requested=int(one["requested"]),
                available=int(one["available"]),
                retry_after_ms=None if one.get("never") else int(one["retry_after_ms"]),
                scope=one.get("scope"),
            )
            for one in self.problem.extras.get("violations", ())
        )

    @property
    def retry_after_ms(self) -> int | None:
        """When all of them may fit; ``None`` means never."""
        return longest_wait_ms(self.violations)


class QuotaSpentError(ServiceError):
    """The quota of every model is spent until the next local midnight."""

    @property
    def resets_at(self) -> str:
        return str(self.problem.extras.get("retry_after", ""))


class DeniedBy(msgspec.Struct, frozen=True):
    """One reason for a denial. Amounts are micro-dollars, for a limit tokens."""

    kind: str
    """``BUDGET``, ``QUOTA``, ``LIMIT`` or ``FROZEN``."""
    name: str
    scope: str
    """``ORG`` or ``APP``."""
    needed: int
    remaining: int
    label: str | None = None
    resets_at: str | None = None
    """When its window ends (RFC 3339)."""
    retry_after_ms: int | None = None
    never: bool = False
    """Whether waiting can't help."""


class DeniedError(ServiceError):
    """A call was denied, and nothing was taken."""

    @property
    def denied_by(self) -> tuple[DeniedBy, ...]:
        """Raising exactly these would admit the call."""
        return msgspec.convert(self.problem.extras.get("denied_by", ()), tuple[DeniedBy, ...])

    @property
    def considered(self) -> tuple[Mapping[str, Any], ...]:
        """Each considered label: ``label``, ``outcome`` and ``because``."""
        return tuple(self.problem.extras.get("considered", ()))

    @property
    def by_speed(self) -> bool:
        """Whether only rate limits deny it: retry in a moment."""
        return all(one.kind == "LIMIT" for one in self.denied_by)


class UnavailableError(ServiceError):
    """Not available now; try again later."""


class UnreachableError(UnavailableError):
    """The service could not be reached: nothing was sent."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(ServiceProblem(0, "UNREACHABLE", f"{url} can't be reached: {reason}"))


class ReplyLostError(UnavailableError):
    """The request was sent and no answer came: it may have been applied."""

    def __init__(self, url: str, reason: str) -> None:
        detail = f"{url} did not answer ({reason}); the request may have been applied"
        super().__init__(ServiceProblem(0, "REPLY_LOST", detail))


class NoAnswerError(ReplyLostError):
    """The deadline has passed."""

    def __init__(self, url: str, deadline_ms: int) -> None:
        super().__init__(url, f"within {deadline_ms} ms")


class BreakerOpenError(UnavailableError):
    """The service did not answer before and was not asked. It is probed in the background."""

    def __init__(self, url: str) -> None:
        detail = f"{url} does not answer; it is probed in the background, so try again later"
        super().__init__(ServiceProblem(0, "BREAKER_OPEN", detail))


class SpoolFullError(UnavailableError):
    """Too many reports wait for the service; no further call may begin."""

    def __init__(self, url: str) -> None:
        detail = f"the spool is full: reports of usage must reach {url} first"
        super().__init__(ServiceProblem(0, "SPOOL_FULL", detail))


_KINDS: Mapping[int, type[ServiceError]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: MissingError,
    429: RateLimitedError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def invalid_request(detail: object) -> RejectedError:
    """The error for a call that the client itself refuses."""
    return RejectedError(ServiceProblem(400, "INVALID_REQUEST", str(detail)))


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ServiceError:
    """The error for an answer, also for one that a proxy made."""
    problem = _problem(status, headers.get("Retry-After", ""), body)
    if "denied_by" in problem.extras:
        return DeniedError(problem)
    if problem.code == "QUOTA_EXCEEDED":
        return QuotaSpentError(problem)
    if problem.code == "FROZEN":
        return ClientFrozenError(problem)
    is_rejection = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    kind = _KINDS.get(status, RejectedError if is_rejection else ServiceError)
    return kind(problem)


def _problem(status: int, retry_after: str, body: bytes) -> ServiceProblem:
    secs = parse_whole(retry_after)
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        shown = body[:_BODY_SHOWN_MAX].decode("utf-8", "replace").strip()
        return ServiceProblem(
            status, f"HTTP_{status}", shown or f"HTTP {status}", retry_after_secs=secs
        )
    detail = document.get("detail") or document.get("error_description") or f"HTTP {status}"
    return ServiceProblem(
        status=status,
        code=str(document.get("code", f"HTTP_{status}")),
        detail=str(detail),
        request_id=str(document.get("request_id", "")),
        retry_after_secs=secs,
        extras=document,
    )
