"""Bedrock's exceptions and their HTTP statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

REFUSALS: Final[Mapping[str, int]] = {
    "AccessDeniedException": 403,
    "ExpiredTokenException": 403,
    "InternalServerException": 500,
    "ModelErrorException": 424,
    "ModelNotReadyException": 429,
    "ModelStreamErrorException": 424,
    "ModelTimeoutException": 408,
    "RequestEntityTooLargeException": 413,
    "ResourceNotFoundException": 404,
    "ServiceQuotaExceededException": 400,
    "ServiceUnavailableException": 503,
    "ThrottlingException": 429,
    "UnknownOperationException": 404,
    "UnrecognizedClientException": 403,
    "ValidationException": 400,
}
"""Of all operations, and those common to all of AWS."""

_MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "ModelErrorException": {"originalStatusCode": 500, "resourceName": "stand-in"},
    "ModelStreamErrorException": {"originalStatusCode": 500, "originalMessage": "scripted"},
}


class AwsFault(Exception):  # noqa: N818 - AWS calls them exceptions, and this is not one of ours
    """A request that Bedrock refuses; no model has run."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message

    @property
    def status(self) -> int:
        return REFUSALS[self.name]


def exception_body(name: str, message: str) -> bytes:
    """The members of an exception's shape."""
    return msgspec.json.encode({"message": message, **_MORE.get(name, {})})
