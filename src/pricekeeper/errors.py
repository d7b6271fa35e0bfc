"""Every error that this package raises on purpose, as one small tree.

::

    PriceKeeperError
    ├── SettingsError
    ├── InvalidValueError
    ├── RequestRefusedError
    ├── InvalidConfigError
    ├── ConflictError
    ├── RequestIdReusedError
    ├── NotFoundError
    ├── NotPermittedError
    ├── InvalidClientError
    ├── OverloadedError
    ├── ClockInDoubtError
    ├── DeadlineExceededError
    ├── InvalidTokenError
    ├── SessionLimitRaceError
    ├── RateLimitExceededError
    ├── QuotaExceededError
    ├── AuthorizationDeniedError
    ├── FrozenError
    ├── KeyringError
    ├── ExportError
    ├── DeliveryError
    ├── PricingError
    │   ├── DeploymentFileError
    │   ├── UnknownModelLabelError
    │   ├── ModelMismatchError
    │   ├── UnpricedUsageError
    │   └── PriceSourceError
    └── StoreError
        ├── ConditionFailedError
        ├── TransactionCancelledError
        ├── InvalidOperationError
        ├── StoreMisconfiguredError
        │   ├── StoreReplacedError
        │   ├── StoreDamagedError
        │   ├── StoreReadOnlyError
        │   └── StoreFormatError
        ├── UnreadableItemError
        ├── StoreUnavailableError
        │   ├── StoreFullError
        │   ├── ThrottledError
        │   ├── ContendedError
        │   └── StoreClosedError
        └── OutcomeUnknownError

After `StoreUnavailableError` the write did not happen; after `OutcomeUnknownError` it may have.
Each leaf has a stable ``code``. No error knows about HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from pricekeeper.showing import usd_exact


class PriceKeeperError(Exception):
    """The root of every error that is raised on purpose."""

    code: ClassVar[str] = "INTERNAL"


class SettingsError(PriceKeeperError):
    """A setting is missing or malformed; the message names it and the fix."""

    code = "INVALID_SETTING"

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class InvalidValueError(PriceKeeperError):
    """A value breaks the rule of its kind; ``field`` names it."""

    code = "INVALID_VALUE"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class FieldError:
    """A refused field, such as ``quotas.premium``, and the reason."""

    field: str
    message: str


class RequestRefusedError(PriceKeeperError):
    """A malformed request; ``mistakes`` names each bad field."""

    code = "INVALID_REQUEST"

    def __init__(self, detail: str, mistakes: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.mistakes = mistakes

    @classmethod
    def of(cls, mistakes: Sequence[FieldError]) -> RequestRefusedError:
        return cls(", ".join(f"{one.field}: {one.message}" for one in mistakes), tuple(mistakes))


class InvalidConfigError(PriceKeeperError):
    """Settings were refused; ``errors`` names every bad field.

    ``details`` has ``valid_labels``, if a label was unknown.
    """

    code = "INVALID_CONFIG"

    def __init__(
        self, errors: Sequence[FieldError], details: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = tuple(errors)
        self.details = dict(details or {})


class ConflictError(PriceKeeperError):
    """The request contradicts something unchangeable; ``field`` names it."""

    code = "CONFLICT"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class RequestIdReusedError(PriceKeeperError):
    """The request id belongs to another usage record; this usage does not count."""

    code = "REQUEST_ID_REUSED"

    def __init__(self, request_id: str, authorization_id: str = "") -> None:
        super().__init__(f"request_id: {request_id} was used for another usage record")
        self.field = "request_id"
        self.request_id = request_id
        self.authorization_id = authorization_id


class NotFoundError(PriceKeeperError):
    """It is absent, deleted or another client's."""

    code = "NOT_FOUND"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} not found")


class NotPermittedError(PriceKeeperError):
    """The credentials are valid, but this needs others; the message names them."""

    code = "NOT_PERMITTED"


class InvalidClientError(PriceKeeperError):
    """Unknown client or wrong secret: one answer for every cause."""

    code = "INVALID_CLIENT"

    def __init__(self) -> None:
        super().__init__("the client is unknown or its secret is wrong")


class OverloadedError(PriceKeeperError):
    """A bounded queue in front of costly work is full; nothing was done."""

    code = "OVERLOADED"


class ClockInDoubtError(PriceKeeperError):
    """Wall time is in doubt, so nothing that expires is issued."""

    code = "CLOCK_IN_DOUBT"

    def __init__(self, reason: str) -> None:
        super().__init__(f"this machine's clock is in doubt: {reason}")
        self.reason = reason


class DeadlineExceededError(PriceKeeperError):
    """The request ran out of time; ``may_be_applied``: perhaps after its effect."""

    code = "DEADLINE_EXCEEDED"

    def __init__(self, *, may_be_applied: bool) -> None:
        super().__init__("the request ran out of time")
        self.may_be_applied = may_be_applied


class InvalidTokenError(PriceKeeperError):
    """The token is forged, expired, revoked or of an ended session; callers can't tell which.

    The reason is only logged, since it would help a prober. ``genuine``: we issued the token, so
    the caller did not guess it.
    """

    code = "INVALID_TOKEN"

    def __init__(self, *, genuine: bool = False) -> None:
        super().__init__("the token is not valid")
        self.genuine = genuine


class SessionLimitRaceError(PriceKeeperError):
    """A login lost its slot to simultaneous logins. Nothing was applied.

    ``cancellation_reasons`` are the store's own, one per operation.
    """

    code = "SESSION_RACE"
    retryable = True

    def __init__(self, cancellation_reasons: Sequence[CancellationReason]) -> None:
        super().__init__("other logins of this client won the race for a session; try again")
        self.cancellation_reasons = tuple(cancellation_reasons)


@dataclass(frozen=True, slots=True)
class Violation:
    """A limit that holds less than requested; ``retry_after_ms`` of ``None`` means never."""

    entity: str
    resource: str
    limit: str
    requested: int
    available: int
    retry_after_ms: int | None
    scope: str | None = None

    @property
    def never(self) -> bool:
        return self.retry_after_ms is None

    @property
    def text(self) -> str:
        after = "never" if self.retry_after_ms is None else f"in {self.retry_after_ms} ms"
        return (
            f"{self.entity} {self.resource}: {self.requested} {self.limit} requested, "
            f"{self.available} available, enough {after}"
        )


def longest_wait_ms(violations: Sequence[Violation]) -> int | None:
    """When all amounts may be available; ``None`` means never."""
    waits = [violation.retry_after_ms for violation in violations]
    return None if None in waits else max((wait for wait in waits if wait is not None), default=0)


class RateLimitExceededError(PriceKeeperError):
    """Nothing was taken: at least one limit holds less than requested."""

    code = "RATE_LIMIT_EXCEEDED"

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("; ".join(violation.text for violation in violations))
        self.violations = tuple(violations)

    @property
    def retry_after_ms(self) -> int | None:
        """When all may be available, if no other caller takes any; ``None`` means never."""
        return longest_wait_ms(self.violations)


class QuotaExceededError(PriceKeeperError):
    """No model of the ordering may be used before ``resets_at_ms``, the next local midnight.

    ``models`` maps each label to the spent part of its quota, in hundredths of a percent.
    """

    code = "QUOTA_EXCEEDED"

    def __init__(self, models: Mapping[str, int], resets_at_ms: int, message: str) -> None:
        super().__init__(message)
        self.models = dict(models)
        self.resets_at_ms = resets_at_ms


class Obstacle(StrEnum):
    """The kinds of limits that can deny a call."""

    BUDGET = "BUDGET"
    QUOTA = "QUOTA"
    LIMIT = "LIMIT"
    FROZEN = "FROZEN"


@dataclass(frozen=True, slots=True)
class DeniedBy:
    """One limit that denies a call.

    ``needed`` and ``remaining`` are pico-dollars, or tokens for a rate limit. One of the last two
    fields says when to retry: the window's end, or a wait. Neither means never.
    """

    kind: Obstacle
    name: str
    scope: str
    label: str | None
    needed: int
    remaining: int
    resets_at_ms: int | None = None
    retry_after_ms: int | None = None

    @property
    def never(self) -> bool:
        return self.resets_at_ms is None and self.retry_after_ms is None

    @property
    def text(self) -> str:
        whose = "the organisation" if self.scope == "ORG" else "the app"
        if self.kind is Obstacle.FROZEN:
            return f"{whose} is frozen"
        if self.kind is Obstacle.LIMIT:
            amounts = f"{self.needed} {self.name} needed, {self.remaining} left"
            return f"{whose}'s limit for {self.label}: {amounts}"
        room = f"{usd_exact(abs(self.shown_remaining))} {'left' if self.remaining >= 0 else 'over'}"
        return (
            f"{whose}'s {self.kind.lower()} {self.name}: this call may cost "
            f"{usd_exact(self.shown_needed)}, {room}"
        )

    @property
    def shown_needed(self) -> int:
        """Tokens, or micro-dollars rounded up."""
        return self.needed if self._is_limit else -(-self.needed // 1_000_000)

    @property
    def shown_remaining(self) -> int:
        """Tokens, or micro-dollars rounded down."""
        return self.remaining if self._is_limit else self.remaining // 1_000_000

    @property
    def _is_limit(self) -> bool:
        return self.kind is Obstacle.LIMIT


class AuthorizationDeniedError(PriceKeeperError):
    """Nothing was taken: ``denied_by`` names every limit to raise.

    ``considered`` has the labels that were tried, and why each was skipped.
    """

    code = "AUTHORIZATION_DENIED"

    def __init__(
        self, denied_by: Sequence[DeniedBy], considered: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__("; ".join(one.text for one in denied_by))
        self.denied_by = tuple(denied_by)
        self.considered = tuple(considered)

    @property
    def by_speed(self) -> bool:
        return all(one.kind is Obstacle.LIMIT for one in self.denied_by)

    def retry_after_ms(self, now_ms: int) -> int | None:
        """When every limit may allow the call; ``None`` means never."""
        waits = []
        for one in self.denied_by:
            if one.retry_after_ms is not None:
                waits.append(one.retry_after_ms)
            elif one.resets_at_ms is not None:
                waits.append(max(0, one.resets_at_ms - now_ms))
            else:
                return None
        return max(waits, default=0)


class FrozenError(PriceKeeperError):
    """An administrator froze the client: no model and no tokens until unfrozen.

    ``scope`` is ``ORG`` or ``APP``.
    """

    code = "FROZEN"

    def __init__(self, scope: str, reason: str, frozen_at_epoch: int) -> None:
        whose = "the organisation" if scope == "ORG" else "the app"
        super().__init__(f"{whose} is frozen: {reason}")
        self.scope = scope
        self.reason = reason
        self.frozen_at_epoch = frozen_at_epoch


class KeyringError(PriceKeeperError):
    """The signing keys can't be read, written or trusted; an operator must act."""

    code = "KEYRING_UNUSABLE"


class ExportError(PriceKeeperError):
    """An export can't be written; the message names the target and the reason."""

    code = "EXPORT_FAILED"


class DeliveryError(PriceKeeperError):
    """An alert was not delivered; the message gives the reason, without any secret.

    ``is_refused``: the channel refused this alert; it may accept another.
    """

    code = "DELIVERY_FAILED"

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused


class PricingError(PriceKeeperError):
    """The root of errors in prices and in the file that defines them."""

    code = "PRICING_ERROR"


class DeploymentFileError(PricingError):
    """The deployment file was refused; ``errors`` names every bad field."""

    code = "INVALID_DEPLOYMENT_FILE"

    def __init__(self, file: str, errors: Sequence[FieldError]) -> None:
        text = "; ".join(f"{error.field}: {error.message}" for error in errors)
        super().__init__(f"{file}: {text}")
        self.file = file
        self.errors = tuple(errors)


class UnknownModelLabelError(PricingError):
    """The deployment has no model with that label; ``valid_labels`` lists those it has."""

    code = "INVALID_MODEL_LABEL"

    def __init__(self, label: str, valid_labels: Sequence[str], field: str = "model_label") -> None:
        super().__init__(f"{field}: {label!r} is not one of {', '.join(valid_labels)}")
        self.field = field
        self.label = label
        self.valid_labels = tuple(valid_labels)


class ModelMismatchError(PricingError):
    """The called model is not the label's, so its prices do not apply.

    ``expected`` is the deployment's model id, ``reported`` the caller's.
    """

    code = "MODEL_MISMATCH"

    def __init__(self, label: str, expected: str, reported: str, message: str) -> None:
        super().__init__(f"bedrock_model_id: {message}")
        self.field = "bedrock_model_id"
        self.label = label
        self.expected = expected
        self.reported = reported
        self.message = message


class UnpricedUsageError(PricingError):
    """A part of the usage has no known price: ``field`` names it, ``fix`` what helps."""

    code = "UNPRICED_USAGE"

    def __init__(self, label: str, field: str, message: str, fix: str) -> None:
        super().__init__(f"{field}: {message}; {fix}")
        self.label = label
        self.field = field
        self.message = message
        self.fix = fix


class PriceSourceError(PricingError):
    """A source of prices can't be read or understood."""

    code = "PRICE_SOURCE_FAILED"

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")


class StoreError(PriceKeeperError):
    """The root of all errors of a store."""

    code = "STORE_ERROR"


class ConditionFailedError(StoreError):
    """The operation's condition did not hold. Nothing was written.

    ``item`` is what the store held then.
    """

    code = "CONDITION_FAILED"

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        super().__init__("the condition did not hold")
        self.item = item


class ReasonCode(StrEnum):
    """Why an operation of a cancelled transaction failed, if it did."""

    NONE = "None"
    CONDITION_FAILED = "ConditionalCheckFailed"
    CONFLICT = "TransactionConflict"
    THROTTLED = "ThrottlingError"
    INVALID = "ValidationError"


@dataclass(frozen=True, slots=True)
class CancellationReason:
    """The result of one operation of a cancelled transaction."""

    code: ReasonCode
    item: Mapping[str, Any] | None = None
    message: str = ""


class TransactionCancelledError(StoreError):
    """A transaction was refused as a whole; ``reasons`` follow its operations."""

    code = "TRANSACTION_CANCELLED"

    def __init__(self, reasons: Sequence[CancellationReason]) -> None:
        text = ", ".join(reason.code for reason in reasons)
        super().__init__(f"the transaction was cancelled: [{text}]")
        self.reasons = tuple(reasons)


class InvalidOperationError(StoreError):
    """The store's rules refuse the operation: a bug in the caller."""

    code = "INVALID_OPERATION"


class StoreMisconfiguredError(StoreError):
    """A table, a permission or an account is not as required; an operator must act."""

    code = "STORE_MISCONFIGURED"
    may_be_applied: bool = False
    """Whether the write may exist somewhere, such as in a removed file."""


class StoreReplacedError(StoreMisconfiguredError):
    """The database file was removed, replaced or overwritten while open.

    Whether the last writes count depends on the file that the operator keeps.
    """

    code = "STORE_REPLACED"


class StoreDamagedError(StoreMisconfiguredError):
    """The database file is damaged: it is no longer read or written."""

    code = "STORE_DAMAGED"


class StoreReadOnlyError(StoreMisconfiguredError):
    """The database file or its file system is read-only."""

    code = "STORE_READ_ONLY"


class StoreFormatError(StoreMisconfiguredError):
    """Another version of pricekeeper wrote the store; the message says what to do next."""

    code = "STORE_FORMAT"


class UnreadableItemError(StoreError):
    """A stored item lacks an attribute, or one has the wrong type.

    The message names both, but no value: it may be a secret.
    """

    code = "ITEM_UNREADABLE"


class StoreUnavailableError(StoreError):
    """The store could not take the operation now. It was not applied."""

    code = "STORE_UNAVAILABLE"


class StoreFullError(StoreUnavailableError):
    """The disk is full."""

    code = "STORE_FULL"


class ThrottledError(StoreUnavailableError):
    """The store throttled the operation until the retries ran out."""

    code = "STORE_THROTTLED"


class ContendedError(StoreUnavailableError):
    """Other writers won until the retries ran out."""

    code = "STORE_CONTENDED"


class StoreClosedError(StoreUnavailableError):
    """The store was closed before the operation reached it."""

    code = "STORE_CLOSED"


class OutcomeUnknownError(StoreError):
    """The operation may or may not have been applied.

    The reply was lost, or a retry met a failed condition that the first attempt may have caused.
    Then ``item`` is what the store held, so that a caller can recognise its own write.
    """

    code = "OUTCOME_UNKNOWN"

    def __init__(self, message: str, item: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.item = item
