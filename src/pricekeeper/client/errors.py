"""What the service answered instead, as errors that can be told apart.

::

    ServiceError                 any answer that is a problem
    ├── RejectedError            400, 409, 413...: what was sent is wrong; ``errors`` says where
    ├── ForbiddenError           401, 403: credentials are missing, wrong, or not for this
    │   └── ClientFrozenError    403: an administrator has frozen the organisation or the app
    ├── MissingError             404: absent, deleted or another's, nobody can tell which
    ├── RateLimitedError         429: too fast; ``violations`` say which limit, and until when
    ├── QuotaSpentError          429: every model's quota is spent until ``resets_at``
    ├── DeniedError              429: a call was not authorized; ``denied_by`` says by what
    └── UnavailableError         503, or no answer at all; later may work
        ├── UnreachableError     nothing was sent
        ├── ReplyLostError       it was sent, and may have been done
        │   └── NoAnswerError    it was sent, and the deadline has passed
        ├── BreakerOpenError     it has not answered before; nothing was sent
        └── SpoolFullError       too much waits to be told; nothing was sent

Each carries the ``problem`` as the service told it, with the id under which its log has more.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from pricekeeper.errors import FieldError, PriceKeeperError, Violation, longest_wait_ms

_BODY_SHOWN_MAX = 120


class ServiceProblem(msgspec.Struct, frozen=True):
    """RFC 9457 as the service speaks it. ``extras`` is the whole document."""

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
        """When the service says to come back, if it does."""
        return self.problem.retry_after_secs


class RejectedError(ServiceError):
    """What was sent is wrong or contradicts what is there; sending it again can't help."""

    @property
    def errors(self) -> tuple[FieldError, ...]:
        """Every field that was refused."""
        listed = self.problem.extras.get("errors", ())
        return tuple(FieldError(str(one["field"]), str(one["message"])) for one in listed)


class ForbiddenError(ServiceError):
    """The credentials are missing, wrong, or not for this."""


class ClientFrozenError(ForbiddenError):
    """An administrator has frozen the organisation or the app; trying again does not help.

    It gets no model and no tokens. What was used can still be recorded, and leases settled.
    """

    @property
    def reason(self) -> str:
        """Why, in the administrator's words."""
        return str(self.problem.extras.get("reason", ""))

    @property
    def scope(self) -> str:
        """``ORG`` if the whole organisation is frozen, ``APP`` if the app alone is."""
        return str(self.problem.extras.get("scope", ""))

    @property
    def frozen_at(self) -> str:
        """Since when, RFC 3339."""
        return str(self.problem.extras.get("frozen_at", ""))


class MissingError(ServiceError):
    """What was asked for does not exist for this caller."""


class RateLimitedError(ServiceError):
    """Too fast. Nothing was taken."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The limits that hold too little; entity and resource are those that were asked for."""
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
        """When all of it may be there; ``None`` is never."""
        return longest_wait_ms(self.violations)


class QuotaSpentError(ServiceError):
    """No model may be used before the next local midnight."""

    @property
    def resets_at(self) -> str:
        """That midnight, RFC 3339."""
        return str(self.problem.extras.get("retry_after", ""))


class DeniedBy(msgspec.Struct, frozen=True):
    """One thing that denies a call. Money is in micro-dollars; of a limit, tokens are meant."""

    kind: str
    """``BUDGET``, ``QUOTA``, ``LIMIT`` or ``FROZEN``."""
    name: str
    scope: str
    """``ORG`` or ``APP``."""
    needed: int
    remaining: int
    label: str | None = None
    resets_at: str | None = None
    """When its window ends, RFC 3339."""
    retry_after_ms: int | None = None
    never: bool = False
    """Whether no time will help."""


class DeniedError(ServiceError):
    """A call was not authorized, and nothing was taken."""

    @property
    def denied_by(self) -> tuple[DeniedBy, ...]:
        """All that deny it: raising exactly these admits the call."""
        return msgspec.convert(self.problem.extras.get("denied_by", ()), tuple[DeniedBy, ...])

    @property
    def considered(self) -> tuple[Mapping[str, Any], ...]:
        """The labels that were looked at: ``label``, ``outcome`` and ``because``."""
        return tuple(self.problem.extras.get("considered", ()))

    @property
    def by_speed(self) -> bool:
        """Whether nothing but limits is in the way, so that a moment helps."""
        return all(one.kind == "LIMIT" for one in self.denied_by)


class UnavailableError(ServiceError):
    """Not now; trying again later may work."""


class UnreachableError(UnavailableError):
    """The service could not be reached: nothing was sent."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(ServiceProblem(0, "UNREACHABLE", f"{url} can't be reached: {reason}"))


class ReplyLostError(UnavailableError):
    """The request was sent and no answer came: it may or may not have been done."""

    def __init__(self, url: str, reason: str) -> None:
        detail = f"{url} did not answer ({reason}); it may have been done"
        super().__init__(ServiceProblem(0, "REPLY_LOST", detail))


class NoAnswerError(ReplyLostError):
    """The deadline has passed."""

    def __init__(self, url: str, deadline_ms: int) -> None:
        super().__init__(url, f"within {deadline_ms} ms")


class BreakerOpenError(UnavailableError):
    """The service has not answered, and was not asked again: it is tried in the background."""

    def __init__(self, url: str) -> None:
        detail = f"{url} does not answer; it is tried again in the background"
        super().__init__(ServiceProblem(0, "BREAKER_OPEN", detail))


class SpoolFullError(UnavailableError):
    """So much waits to be told to the service that no further call may be begun."""

    def __init__(self, url: str) -> None:
        detail = f"the spool is full: {url} has to be told what was used first"
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
    """The error for a call that the client refuses, as the service would."""
    return RejectedError(ServiceProblem(400, "INVALID_REQUEST", str(detail)))


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ServiceError:
    """The error that an answer is; also one that some proxy on the way made up."""
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
    secs = int(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
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
