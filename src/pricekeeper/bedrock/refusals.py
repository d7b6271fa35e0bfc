"""Tells which failed model calls are free: those that Bedrock refused before a model ran.

Bedrock bills what a model has done, even if the answer is lost. After a timeout, a lost connection
or a cancelled call the cost is unknown. An error reply is read in this order:

1. Usage in the body or the headers is charged, for any status.
2. A name of Bedrock's own (`REFUSAL_CODES`), or an error object on the paths of OpenAI and
   Anthropic, is a refusal.
3. A status 4xx or 3xx is a refusal, except `_MAY_HAVE_RUN`.
4. Any other reply is unknown: a 5xx without a name comes from a proxy that may have given up on a
   running model.

As the first event of a stream, an error with such a name is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from pricekeeper.bedrock.families import Operation
from pricekeeper.bedrock.usage import Usage, decode_object, states_usage, usage_of_invoke

CALLS: Final = frozenset(operation.api_name for operation in Operation)
"""Errors of other operations say nothing about a call."""

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
"""Bedrock's errors, except `ModelStreamErrorException`, which follows output in a stream."""
_OF_EVERY_AWS_SERVICE: Final = frozenset({"InternalFailure", "ServiceUnavailable"})
"""The 5xx errors of all AWS services."""
_WITHOUT_A_MODEL: Final = range(HTTPStatus.MULTIPLE_CHOICES, HTTPStatus.INTERNAL_SERVER_ERROR)
_MAY_HAVE_RUN: Final = frozenset(
    {HTTPStatus.SEE_OTHER, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.FAILED_DEPENDENCY}
)
"""Without a name of Bedrock's these prove nothing: 303 means processed, some proxies answer 408 for
a slow server, and 424 is a model that failed."""

_NEVER_SENT: Final = frozenset({"ConnectTimeoutError", "ProxyConnectionError"})
"""botocore's errors of connections that were never made."""
_CONNECTING: Final = frozenset(
    {"NewConnectionError", "ClientConnectorError", "gaierror", "SSLCertVerificationError"}
)
"""Errors of urllib3, aiohttp and Python that only occur while a connection is made."""


class ErrorReply(NamedTuple):
    """What an error reply says about the cost of its call."""

    is_free: bool
    usage: Usage | None
    """``None`` on a call that is not free: the cost is unknown."""


def read_error(
    status: int, headers: Mapping[str, str], data: bytes, *, has_objects: bool = False
) -> ErrorReply:
    """Judge an error reply; ``headers`` have lower-case names.

    ``has_objects``: errors on this path are error objects, as OpenAI and Anthropic have.
    """
    body = decode_object(data) or {}
    holders = (body, _error_of(body))
    for holder in holders:
        usage = usage_of_invoke(holder, headers)
        if usage is not None:
            return ErrorReply(is_free=False, usage=usage)
    if any(states_usage(holder, headers) for holder in holders):
        return ErrorReply(is_free=False, usage=None)
    is_named = has_objects and has_error_object(body)
    return ErrorReply(is_named or is_refusal(_code_of(headers, body), status), usage=None)


def is_refusal(code: str, status: int) -> bool:
    """Whether an error with this code and status, and without usage, is a refusal."""
    if code in REFUSAL_CODES or code in _OF_EVERY_AWS_SERVICE:
        return True
    return status in _WITHOUT_A_MODEL and status not in _MAY_HAVE_RUN


def has_error_object(body: Mapping[str, Any]) -> bool:
    """Whether a body or a stream event is an error in OpenAI's and Anthropic's form."""
    return isinstance(_error_of(body).get("message"), str)


def _error_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    error = body.get("error")
    return error if isinstance(error, dict) else {}


def _code_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    for found in (headers.get("x-amzn-errortype"), body.get("code"), body.get("__type")):
        if isinstance(found, str):
            return found.partition(":")[0].rpartition("#")[2]
    return ""


def was_never_sent(error: BaseException) -> bool:
    """Whether botocore's error says that no connection was made.

    Its name is not enough: aiobotocore raises `EndpointConnectionError` also after a request was
    sent, and TLS can fail in the middle of an answer. Then its cause decides.
    """
    if not _names_of(error).isdisjoint(_NEVER_SENT):
        return True
    cause = getattr(error, "kwargs", {}).get("error")
    causes = [cause, *getattr(cause, "args", ()), getattr(cause, "__cause__", None)]
    return any(not _names_of(one).isdisjoint(_CONNECTING) for one in causes)


def _names_of(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}


def is_free_refusal(error: BaseException) -> bool:
    """Whether the error is Bedrock's refusal of the only attempt."""
    # Cheap: if the error is botocore's, botocore is loaded already.
    from botocore.exceptions import ClientError, EventStreamError  # noqa: PLC0415

    if not isinstance(error, ClientError) or isinstance(error, EventStreamError):
        return False
    about = error.response.get("ResponseMetadata", {})
    # botocore repeats calls without an answer; the earlier attempts may be billed.
    if error.operation_name not in CALLS or about.get("RetryAttempts", 0):
        return False
    code = error.response.get("Error", {}).get("Code", "")
    return "HTTPStatusCode" in about and is_refusal(code, about["HTTPStatusCode"])
