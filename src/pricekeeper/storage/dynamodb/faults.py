"""What a failure means, by DynamoDB's error names, and what it cost.

Failures that surely applied nothing (a throttle, a conflict, no connection) are retried; after a
lost reply a write may have happened.

A refused write is billed without ``ConsumedCapacity``, by AWS's rules: write units by the larger of
the present and the new item, at least one; a cancelled transaction two units for each KB of each
operation. Where an update's result is unknown, the present item counts, or else the request's
values. Items of a cancelled transaction are known only where a condition failed. Conflicts and
throttles have no documented cost.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pricekeeper.aws import CHECK_SIGNATURE, MESSAGE_LENGTH_MAX, echoes_request
from pricekeeper.errors import (
    ContendedError,
    InvalidOperationError,
    ReasonCode,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    ThrottledError,
)
from pricekeeper.storage.dynamodb.wire import Attribute, Attributes

CONDITION_FAILED: Final = "ConditionalCheckFailedException"
TRANSACTION_CANCELLED: Final = "TransactionCanceledException"
TABLE_EXISTS: Final = "ResourceInUseException"
TABLE_MISSING: Final = "ResourceNotFoundException"
INVALID_REQUEST: Final = "ValidationException"

_SERVER_ERROR: Final = 500


class Treatment(Enum):
    """What a failed attempt means; the value is its name in the metrics."""

    UNREACHABLE = "unreachable"
    THROTTLED = "throttled"
    CONFLICT = "conflict"
    LOST = "ambiguous"
    """The reply is lost or unreadable; the write may have been applied."""
    RENEW = "credentials"
    """The credentials, or the signature's time, have expired; newer ones may exist."""
    REFUSED = "refused"
    """A condition did not hold: an answer, not a failure."""
    MISCONFIGURED = "misconfigured"
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"
    """Not applied, for an unknown reason."""


_T = Treatment

TREATMENTS: Final[dict[str, Treatment]] = {
    CONDITION_FAILED: _T.REFUSED,
    TRANSACTION_CANCELLED: _T.REFUSED,  # unless its reasons say otherwise, see REASONS
    # Retry, more slowly.
    "ProvisionedThroughputExceededException": _T.THROTTLED,
    "ThrottlingException": _T.THROTTLED,
    "Throttling": _T.THROTTLED,
    "RequestLimitExceeded": _T.THROTTLED,
    "LimitExceededException": _T.THROTTLED,  # too many tables being created at once
    # Another writer was first: retry.
    "TransactionConflictException": _T.CONFLICT,
    "TransactionInProgressException": _T.CONFLICT,
    "ReplicatedWriteConflictException": _T.CONFLICT,
    # A server error, before or after the write.
    "InternalServerError": _T.LOST,
    "InternalFailure": _T.LOST,
    "ServiceUnavailable": _T.LOST,
    "ServiceUnavailableException": _T.LOST,
    "RequestTimeout": _T.LOST,
    "RequestTimeoutException": _T.LOST,
    # Credentials that may be old.
    "ExpiredTokenException": _T.RENEW,
    "ExpiredToken": _T.RENEW,
    # A table, a permission, a clock or an account is not as required.
    TABLE_MISSING: _T.MISCONFIGURED,
    TABLE_EXISTS: _T.MISCONFIGURED,  # in the middle of being created or deleted
    "TableNotFoundException": _T.MISCONFIGURED,
    "AccessDeniedException": _T.MISCONFIGURED,
    "UnrecognizedClientException": _T.MISCONFIGURED,
    "InvalidClientTokenId": _T.MISCONFIGURED,
    "MissingAuthenticationTokenException": _T.MISCONFIGURED,
    "MissingAuthenticationToken": _T.MISCONFIGURED,
    "IncompleteSignatureException": _T.MISCONFIGURED,
    "IncompleteSignature": _T.MISCONFIGURED,
    "InvalidSignatureException": _T.MISCONFIGURED,
    "SignatureDoesNotMatch": _T.MISCONFIGURED,
    "RequestExpired": _T.MISCONFIGURED,
    "RequestTimeTooSkewed": _T.MISCONFIGURED,
    "NotAuthorized": _T.MISCONFIGURED,
    "OptInRequired": _T.MISCONFIGURED,
    "SubscriptionRequiredException": _T.MISCONFIGURED,
    "KMSAccessDeniedException": _T.MISCONFIGURED,
    "InaccessibleEncryptionCredentialsException": _T.MISCONFIGURED,
    "InvalidEndpointException": _T.MISCONFIGURED,
    "UnknownOperationException": _T.MISCONFIGURED,
    # The request is invalid for any store content.
    INVALID_REQUEST: _T.INVALID,
    "SerializationException": _T.INVALID,
    "ItemCollectionSizeLimitExceededException": _T.INVALID,
    "IdempotentParameterMismatchException": _T.INVALID,
}

REASONS: Final[dict[str, ReasonCode]] = {
    "None": ReasonCode.NONE,
    "ConditionalCheckFailed": ReasonCode.CONDITION_FAILED,
    "TransactionConflict": ReasonCode.CONFLICT,
    "ProvisionedThroughputExceeded": ReasonCode.THROTTLED,
    "ThrottlingError": ReasonCode.THROTTLED,
    "ValidationError": ReasonCode.INVALID,
    "ItemCollectionSizeLimitExceeded": ReasonCode.INVALID,
}

_CANCELLED_BY: Final = (
    (ReasonCode.INVALID, _T.INVALID),
    (ReasonCode.CONDITION_FAILED, _T.REFUSED),
    (ReasonCode.CONFLICT, _T.CONFLICT),
    (ReasonCode.THROTTLED, _T.THROTTLED),
)
"""A cancelled transaction means the first of these that is among its reasons."""

SKEWED: Final = frozenset({"InvalidSignatureException", "RequestExpired", "RequestTimeTooSkewed"})
"""The store disagrees with the time of the signature, among other causes."""

PASSING: Final = frozenset({_T.UNREACHABLE, _T.THROTTLED, _T.CONFLICT, _T.LOST})

_ERRORS: Final[dict[Treatment, type[StoreError]]] = {
    _T.THROTTLED: ThrottledError,
    _T.CONFLICT: ContendedError,
    _T.RENEW: StoreMisconfiguredError,
    _T.MISCONFIGURED: StoreMisconfiguredError,
    _T.INVALID: InvalidOperationError,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One failed attempt."""

    treatment: Treatment
    name: str
    message: str = ""
    reply: dict[str, Any] = field(default_factory=dict, repr=False)

    def error(self, action: str) -> StoreError:
        return _ERRORS.get(self.treatment, StoreUnavailableError)(self.text(action))

    def text(self, action: str) -> str:
        return f"{action}: {self.name}: {self.message[:MESSAGE_LENGTH_MAX]}"


def fault_of(status: int, reply: dict[str, Any]) -> Fault:
    """The fault of an error reply."""
    name = str(reply.get("__type", "")).rpartition("#")[2]
    message = str(reply.get("message") or reply.get("Message") or "")
    if echoes_request(name):
        message = CHECK_SIGNATURE
        reply = {}
    if status >= _SERVER_ERROR or not name:
        return Fault(Treatment.LOST, name or f"HTTP {status}", message, reply)
    treatment = TREATMENTS.get(name, Treatment.UNAVAILABLE)
    if name == TRANSACTION_CANCELLED:
        treatment = _cancellation(reply)
    return Fault(treatment, name, message, reply)


def _cancellation(reply: dict[str, Any]) -> Treatment:
    reasons = {REASONS.get(reason.get("Code")) for reason in reply.get("CancellationReasons", ())}
    for reason, treatment in _CANCELLED_BY:
        if reason in reasons:
            return treatment
    return Treatment.UNAVAILABLE


_UNIT_BYTES: Final = 1024
_CONTAINER_BYTES: Final = 3
_TRANSACTION_FACTOR: Final = 2


def refused_write_units(request: Mapping[str, Any], fault: Fault) -> Counter[str]:
    """The cost of a refused write by table name; empty for other faults."""
    units: Counter[str] = Counter()
    if fault.name == CONDITION_FAILED:
        units[request["TableName"]] = _units(request, fault.reply.get("Item"))
    elif fault.name == TRANSACTION_CANCELLED and fault.treatment is Treatment.REFUSED:
        reasons = fault.reply["CancellationReasons"]
        for entry, reason in zip(request["TransactItems"], reasons, strict=False):
            for operation in entry.values():
                held = reason.get("Item")
                units[operation["TableName"]] += _TRANSACTION_FACTOR * _units(operation, held)
    return units


def _units(operation: Mapping[str, Any], held: Attributes | None) -> int:
    there = _item_bytes(held or {})
    written = _item_bytes(operation.get("Item", operation.get("Key", {})))
    if "UpdateExpression" in operation and not held:
        written += _item_bytes(operation.get("ExpressionAttributeValues", {}))
    return max(1, -(-max(there, written) // _UNIT_BYTES))


def _item_bytes(attributes: Attributes) -> int:
    return sum(len(name.encode()) + _bytes(value) for name, value in attributes.items())


def _bytes(attribute: Attribute) -> int:
    for kind, content in attribute.items():
        match kind:
            case "S":
                return len(content.encode())
            case "N":
                return len(content) // 2 + 1
            case "B":
                return len(b64decode(content))
            case "L":
                return _CONTAINER_BYTES + sum(1 + _bytes(member) for member in content)
            case "M":
                return _CONTAINER_BYTES + len(content) + _item_bytes(content)
            case "SS" | "NS" | "BS":
                return sum(len(member.encode()) for member in content)
            case _:
                return 1
    return 0
