"""What the service answers instead of an authorization, as an exception of the AWS client's own.

Handlers that exist for Bedrock's errors work for ours, too: too little money is
``ServiceQuotaExceededException``, too fast is ``ThrottlingException``. Each is also the
`ServiceError` that it comes from, with all that it says. None is retried by botocore, because it
is raised before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from pricekeeper.client.errors import (
    DeniedError,
    ForbiddenError,
    QuotaSpentError,
    RateLimitedError,
    ServiceError,
    UnavailableError,
)

QUOTA: Final = "ServiceQuotaExceededException"
THROTTLING: Final = "ThrottlingException"
_STATUS: Final = {
    QUOTA: HTTPStatus.BAD_REQUEST,
    THROTTLING: HTTPStatus.TOO_MANY_REQUESTS,
    "AccessDeniedException": HTTPStatus.FORBIDDEN,
    "ServiceUnavailableException": HTTPStatus.SERVICE_UNAVAILABLE,
    "ValidationException": HTTPStatus.BAD_REQUEST,
}


def code_of(error: ServiceError) -> str:
    """Which of Bedrock's errors says the same."""
    if isinstance(error, DeniedError):
        return THROTTLING if error.by_speed else QUOTA
    if isinstance(error, RateLimitedError):
        return THROTTLING
    if isinstance(error, QuotaSpentError):
        return QUOTA
    if isinstance(error, ForbiddenError):
        return "AccessDeniedException"
    if isinstance(error, UnavailableError):
        return "ServiceUnavailableException"
    return "ValidationException"


def as_client_error(error: ServiceError, exceptions: Any, operation_name: str) -> Exception:
    """The error as an exception of the client whose ``exceptions`` these are."""
    code = code_of(error)
    kind: type[Exception] = exceptions.from_code(code)
    ours = type(error)
    response: Mapping[str, Any] = {
        "Error": {"Code": code, "Message": str(error)},
        "ResponseMetadata": {
            "HTTPStatusCode": int(_STATUS[code]),
            "RequestId": error.problem.request_id,
            "HTTPHeaders": {},
            "RetryAttempts": 0,
        },
    }

    def begin(self: Any) -> None:
        # Neither parent's own: each would hand its arguments to the other.
        message = f"An error occurred ({code}) when calling the {operation_name} operation: {error}"
        Exception.__init__(self, message)
        self.response, self.operation_name = response, operation_name
        self.problem, self.code = error.problem, error.code

    made: Exception = type(code, (kind, ours), {"__init__": begin, "__module__": __name__})()
    return made
