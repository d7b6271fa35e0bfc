"""What the service answers instead of an authorization, as an exception of the AWS client's own.

Handlers that exist for Bedrock's errors work for ours, too: too little money is
``ServiceQuotaExceededException``, too fast is ``ThrottlingException``, frozen by an administrator
is ``AccessDeniedException``. Each is also the `ServiceError` that it comes from, with all that it
says. None is retried by botocore, because it
is raised before anything is sent.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

from pricekeeper.client.errors import (
    DeniedError,
    ForbiddenError,
    MissingError,
    QuotaSpentError,
    RateLimitedError,
    RejectedError,
    ServiceError,
)

QUOTA: Final = "ServiceQuotaExceededException"
THROTTLING: Final = "ThrottlingException"
ACCESS: Final = "AccessDeniedException"
UNAVAILABLE: Final = "ServiceUnavailableException"
_STATUS: Final = {
    QUOTA: HTTPStatus.BAD_REQUEST,
    THROTTLING: HTTPStatus.TOO_MANY_REQUESTS,
    ACCESS: HTTPStatus.FORBIDDEN,
    UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    "ResourceNotFoundException": HTTPStatus.NOT_FOUND,
    "ValidationException": HTTPStatus.BAD_REQUEST,
}
_CODES: Final[tuple[tuple[type[ServiceError], str], ...]] = (
    (RateLimitedError, THROTTLING),
    (QuotaSpentError, QUOTA),
    (ForbiddenError, ACCESS),
    (MissingError, "ResourceNotFoundException"),
    (RejectedError, "ValidationException"),
)
_KINDS_MAX: Final = 256


def code_of(error: ServiceError) -> str:
    """Which of Bedrock's errors says the same. What is nobody's fault is unavailable."""
    if isinstance(error, DeniedError):
        if any(one.kind == "FROZEN" for one in error.denied_by):
            return ACCESS
        return THROTTLING if error.by_speed else QUOTA
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNAVAILABLE)


def as_client_error(error: ServiceError, exceptions: Any, operation_name: str) -> Exception:
    """The error as an exception of the client whose ``exceptions`` these are."""
    code = code_of(error)
    theirs = exceptions.from_code(code)
    kind = _kind(code, theirs, type(error))  # type: ignore[arg-type]  # mypy: no class is hashable
    return kind(error, code, operation_name)


@lru_cache(maxsize=_KINDS_MAX)
def _kind(code: str, theirs: type[Any], ours: type[Any]) -> type[Exception]:
    """The class that is both, made once."""
    return type(code, (theirs, ours), {"__init__": _begin, "__module__": __name__})


def _begin(self: Any, error: ServiceError, code: str, operation_name: str) -> None:
    # Neither parent's own: each would hand its arguments to the other.
    message = f"An error occurred ({code}) when calling the {operation_name} operation: {error}"
    Exception.__init__(self, message)
    self.operation_name = operation_name
    self.problem, self.code = error.problem, error.code
    self.response = {
        "Error": {"Code": code, "Message": str(error)},
        "ResponseMetadata": {
            "HTTPStatusCode": int(_STATUS[code]),
            "RequestId": error.problem.request_id,
            "HTTPHeaders": {},
            "RetryAttempts": 0,
        },
    }
