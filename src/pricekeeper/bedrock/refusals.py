"""Which failures of a model call are known to cost nothing: those that Bedrock itself answered.

Bedrock bills what a model has done, also when nobody hears the answer: users who compared with
their bill found abandoned calls and streams on it. So a timeout, a lost connection, a cancelled
call or stream and an error of the caller's own code leave it unknown what is billed. Only a
refusal that came back as an error of Bedrock's, before any output, is surely free.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from pricekeeper.bedrock.operations import Operation

CALLS: Final = frozenset(operation.api_name for operation in Operation)
"""The operations that run a model. An error of any other operation says nothing about the call."""

REFUSAL_CODES: Final = frozenset(
    {
        "AccessDeniedException",
        "InternalServerException",
        "ModelErrorException",
        "ModelNotReadyException",
        "ModelTimeoutException",
        "ResourceNotFoundException",
        "ServiceQuotaExceededException",
        "ServiceUnavailableException",
        "ThrottlingException",
        "ValidationException",
    }
)
"""The errors in Bedrock's own model of these operations. `ModelStreamErrorException` is left out:
it comes inside a stream, after output."""

_NEVER_SENT: Final = frozenset({"ConnectTimeoutError", "ProxyConnectionError"})
"""botocore's errors of connections that were never made."""
_CONNECTING: Final = frozenset(
    {"NewConnectionError", "ClientConnectorError", "gaierror", "SSLCertVerificationError"}
)
"""The errors of urllib3, aiohttp and Python that only come up while a connection is made."""


def is_refusal(code: str, status: int) -> bool:
    """Whether an answer with that error code and HTTP status is Bedrock's own refusal."""
    if code in REFUSAL_CODES:
        return True
    # Credentials that AWS refuses have names of their own; a gateway's error has only a number.
    return status == HTTPStatus.FORBIDDEN and code.isidentifier()


def was_never_sent(error: BaseException) -> bool:
    """Whether botocore's error says that no connection was made, so that no model has run.

    Its name is not enough. aiobotocore says `EndpointConnectionError` also of a connection that was
    reset after the request was sent, and TLS can fail in the middle of an answer: then the error
    that it was made from decides.
    """
    if not _names_of(error).isdisjoint(_NEVER_SENT):
        return True
    cause = getattr(error, "kwargs", {}).get("error")
    causes = [cause, *getattr(cause, "args", ()), getattr(cause, "__cause__", None)]
    return any(not _names_of(one).isdisjoint(_CONNECTING) for one in causes)


def _names_of(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}


def is_free_refusal(error: BaseException) -> bool:
    """Whether the error is Bedrock's refusal of the one attempt that was made."""
    # botocore is loaded already if the error is one of its own, and else this costs little.
    from botocore.exceptions import ClientError, EventStreamError  # noqa: PLC0415

    if not isinstance(error, ClientError) or isinstance(error, EventStreamError):
        return False
    about = error.response.get("ResponseMetadata", {})
    # botocore repeats a call whose answer it did not get. The earlier attempts may be billed.
    if error.operation_name not in CALLS or about.get("RetryAttempts", 0):
        return False
    code = error.response.get("Error", {}).get("Code", "")
    return "HTTPStatusCode" in about and is_refusal(code, about["HTTPStatusCode"])
