"""Maps errors to statuses and problem bodies.

A test asserts that the table has every leaf of the error tree, so no new error becomes a 500.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final

import msgspec

from pricekeeper import errors
from pricekeeper.http.edge import BodyTooLargeError
from pricekeeper.usecases.asking import WrongAudienceError
from pricekeeper.usecases.denying import code_of, explain

DAY_SECS: Final = 86_400
UNKNOWN: Final = "OUTCOME_UNKNOWN"
NOT_APPLIED: Final = "NOT_APPLIED"
RETRY_SECS: Final = 1
"""After a failure of the store."""
CLOCK_RETRY_SECS: Final = 10
"""While the clock is in doubt, which may last minutes."""

_TITLES: Final = {one.value: one.phrase for one in HTTPStatus} | {413: "Content Too Large"}


class AccessDeniedError(errors.PriceKeeperError):
    """No valid credentials came. ``guess``: some came, and they were wrong."""

    code = "UNAUTHORIZED"

    def __init__(self, detail: str = "", *, guess: bool = False) -> None:
        super().__init__(detail)
        self.guess = guess


class KeyDeniedError(AccessDeniedError):
    """No valid key came."""


class BearerDeniedError(AccessDeniedError):
    """A bearer token is invalid at an OAuth endpoint or for the metrics."""


class SecretDeniedError(AccessDeniedError):
    """No client's secret came by HTTP Basic, where it is required."""


class MethodNotAllowedError(errors.PriceKeeperError):
    """The path exists, but not with this method."""

    code = "METHOD_NOT_ALLOWED"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__(f"this path takes {', '.join(allowed)}")
        self.allowed = allowed


class Problem(msgspec.Struct, frozen=True):
    """The problem of an error, before it is encoded."""

    status: int
    code: str
    detail: str
    extras: dict[str, Any] = {}
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def fields(self, request_id: str) -> dict[str, Any]:
        return {
            "type": f"urn:pricekeeper:problem:{self.code.lower().replace('_', '-')}",
            "title": _TITLES[self.status],
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
            **self.extras,
        }

    def body(self, request_id: str) -> bytes:
        return msgspec.json.encode(self.fields(request_id))


_OUR_MISTAKES: Final[tuple[type[errors.PriceKeeperError], ...]] = (
    errors.ConditionFailedError,
    errors.TransactionCancelledError,
    errors.InvalidOperationError,
    errors.SettingsError,
    errors.KeyringError,
    errors.ExportError,
    errors.DeliveryError,
    errors.DeploymentFileError,
    errors.PriceSourceError,
)
STATUS: Final[dict[type[errors.PriceKeeperError], tuple[int, str | None]]] = {
    BodyTooLargeError: (413, None),
    AccessDeniedError: (401, None),
    WrongAudienceError: (403, None),
    MethodNotAllowedError: (405, None),
    # The caller can fix these.
    errors.RequestRefusedError: (400, None),
    errors.InvalidValueError: (400, "INVALID_REQUEST"),
    errors.InvalidConfigError: (400, None),
    errors.NotFoundError: (404, None),
    errors.NotPermittedError: (403, "FORBIDDEN"),
    errors.ConflictError: (409, None),
    errors.RequestIdReusedError: (409, None),
    errors.UnknownModelLabelError: (400, None),
    errors.ModelMismatchError: (400, "INVALID_REQUEST"),
    errors.UnpricedUsageError: (400, "INVALID_REQUEST"),
    errors.QuotaExceededError: (429, None),
    errors.AuthorizationDeniedError: (429, "QUOTA_EXCEEDED"),
    errors.RateLimitExceededError: (429, None),
    errors.FrozenError: (403, None),
    errors.InvalidClientError: (401, "UNAUTHORIZED"),
    errors.InvalidTokenError: (401, "UNAUTHORIZED"),
    # Temporary.
    errors.SessionLimitRaceError: (503, None),
    errors.ClockInDoubtError: (503, None),
    errors.OverloadedError: (503, "STORE_UNAVAILABLE"),
    errors.DeadlineExceededError: (503, "STORE_UNAVAILABLE"),
    errors.StoreUnavailableError: (503, "STORE_UNAVAILABLE"),
    errors.OutcomeUnknownError: (503, "STORE_UNAVAILABLE"),
    errors.StoreMisconfiguredError: (503, "STORE_UNAVAILABLE"),
    errors.StoreReplacedError: (503, None),
    errors.StoreDamagedError: (503, None),
    errors.UnreadableItemError: (503, "STORE_UNAVAILABLE"),
    **dict.fromkeys(_OUR_MISTAKES, (500, "INTERNAL")),
}
"""Status and, where it differs from the error's own, the wire's code. Covers subclasses."""

REALM: Final = b'realm="pricekeeper"'
_BEARER: Final = b"Bearer " + REALM
_INVALID_TOKEN: Final = _BEARER + b', error="invalid_token"'
_WRONG_SCOPE: Final = _BEARER + b', error="insufficient_scope"'
_KEY: Final = b"ApiKey " + REALM
_BASIC: Final = b"Basic " + REALM

_TEMPORARY: Final = (
    errors.RateLimitExceededError,
    errors.QuotaExceededError,
    errors.AuthorizationDeniedError,
)

_SAY_NOTHING: Final = {
    401: "missing or invalid credentials: send an admin key in X-API-Key, "
    "or a token in Authorization: Bearer",
    404: "there is no such resource; check the ids in the path",
    500: "internal error; the log of the service has it under this request_id",
    503: "the service is temporarily unavailable; try again",
}
"""For errors whose own message could reveal too much to the caller."""


_UNREADABLE: Final = "a stored item for this can't be read; ask the operator to look in the log"
"""The log has the key of the item, which callers must not see."""


def problem_of(error: errors.PriceKeeperError, now_ms: int) -> Problem:
    """The problem of this error, at this time."""
    status, code = status_of(type(error))
    detail = _detail(error) or _SAY_NOTHING.get(status) or str(error)
    if isinstance(error, errors.UnreadableItemError):
        detail = _UNREADABLE
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if status == 503:  # noqa: PLR2004 - it reads better as the number everybody knows
        in_doubt = isinstance(error, errors.ClockInDoubtError)
        headers = ((b"retry-after", b"%d" % (CLOCK_RETRY_SECS if in_doubt else RETRY_SECS)),)
    elif status in (401, 403) and not isinstance(error, errors.FrozenError):
        headers = ((b"www-authenticate", _challenge(error)),)
    elif isinstance(error, _TEMPORARY):
        headers = ((b"retry-after", b"%d" % _wait_secs(error, now_ms)),)
    elif isinstance(error, MethodNotAllowedError):
        headers = ((b"allow", ", ".join(error.allowed).encode()),)
    extras = _EXTRAS.get(type(error), _no_extras)(error)
    if isinstance(error, errors.AuthorizationDeniedError):
        code = code_of(error)
    return Problem(status, code or error.code, detail, extras, headers)


def _detail(error: errors.PriceKeeperError) -> str | None:
    outcome = _outcome(error).get("outcome")
    if isinstance(error, errors.StoreReplacedError):
        return "the database file was removed or replaced; restart the service"
    if isinstance(error, errors.StoreDamagedError):
        return "the database file is damaged; ask the operator to restore it"
    if outcome == UNKNOWN:
        return "this may or may not have been applied; send the same request again to find out"
    return "this took too long and was not applied; try again" if outcome == NOT_APPLIED else None


def _challenge(error: errors.PriceKeeperError) -> bytes:
    """The challenge (RFC 6750), with an ``error`` only if a token was refused."""
    if isinstance(error, (errors.InvalidTokenError, BearerDeniedError)):
        return _INVALID_TOKEN
    if isinstance(error, SecretDeniedError):
        return _BASIC
    if isinstance(error, WrongAudienceError):
        return _KEY if error.by_key else _WRONG_SCOPE
    return _KEY if isinstance(error, (KeyDeniedError, errors.NotPermittedError)) else _BEARER


def status_of(kind: type[errors.PriceKeeperError]) -> tuple[int, str | None]:
    """The entry of the error's class or its nearest ancestor."""
    for ancestor in kind.__mro__:
        if ancestor in STATUS:
            return STATUS[ancestor]
    return 500, "INTERNAL"


def _wait_secs(
    error: errors.RateLimitExceededError
    | errors.QuotaExceededError
    | errors.AuthorizationDeniedError,
    now_ms: int,
) -> int:
    """Whole seconds until a retry can succeed; a day if it never can."""
    if isinstance(error, errors.QuotaExceededError):
        return max(1, -(-(error.resets_at_ms - now_ms) // 1000))
    if isinstance(error, errors.AuthorizationDeniedError):
        wait_ms = error.retry_after_ms(now_ms)
    else:
        wait_ms = error.retry_after_ms
    return DAY_SECS if wait_ms is None else max(1, -(-wait_ms // 1000))


def _no_extras(_: Any) -> dict[str, Any]:
    return {}


def _outcome(error: Any) -> dict[str, Any]:
    """Whether a failed request may have been applied, where that is known."""
    if isinstance(error, errors.OutcomeUnknownError) or getattr(error, "may_be_applied", False):
        return {"outcome": UNKNOWN}
    applied_not = (errors.DeadlineExceededError, errors.StoreReplacedError)
    return {"outcome": NOT_APPLIED} if isinstance(error, applied_not) else {}


def _refused(error: errors.RequestRefusedError) -> dict[str, Any]:
    return {"errors": list(map(asdict, error.mistakes))} if error.mistakes else {}


def _invalid_config(error: errors.InvalidConfigError) -> dict[str, Any]:
    details = {"details": error.details} if error.details else {}
    return {"errors": list(map(asdict, error.errors)), **details}


def _field_extra(error: Any) -> dict[str, Any]:
    message = str(error).removeprefix(f"{error.field}: ")
    return {"errors": [{"field": error.field, "message": message}]}


def _unknown_label(error: errors.UnknownModelLabelError) -> dict[str, Any]:
    return {**_field_extra(error), "details": {"valid_labels": list(error.valid_labels)}}


_EXTRAS: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {
    errors.RequestRefusedError: _refused,
    errors.InvalidValueError: _field_extra,
    errors.InvalidConfigError: _invalid_config,
    errors.ConflictError: _field_extra,
    errors.RequestIdReusedError: _field_extra,
    errors.UnknownModelLabelError: _unknown_label,
    errors.ModelMismatchError: _field_extra,
    errors.UnpricedUsageError: _field_extra,
    errors.QuotaExceededError: explain,
    errors.AuthorizationDeniedError: explain,
    errors.FrozenError: explain,
    errors.RateLimitExceededError: explain,
    errors.DeadlineExceededError: _outcome,
    errors.OutcomeUnknownError: _outcome,
    errors.StoreReplacedError: _outcome,
}
