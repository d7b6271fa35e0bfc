"""Every error this package raises on purpose, as one small tree.

::

    PriceKeeperError
    ├── SettingsError                  a setting is missing or malformed
    ├── InvalidValueError              an id, label or name breaks its rule
    ├── RequestRefusedError            a request can't be understood; each bad field is named
    ├── InvalidConfigError             settings of an org or app are refused, field by field
    ├── ConflictError                  what is asked for contradicts what can't be changed
    ├── RequestIdReusedError           one request id for two different usage records
    ├── NotFoundError                  absent, deleted or another's: nobody can tell which
    ├── NotPermittedError              whoever asks may do much, but not this
    ├── InvalidClientError             client and secret do not belong together
    ├── OverloadedError                too much costly work is waiting; later may work
    ├── ClockInDoubtError              wall time has leapt: nothing is issued until it is believed
    ├── DeadlineExceededError          a request took longer than it may
    ├── InvalidTokenError              a token that does not count, for whatever reason
    ├── SessionLimitRaceError          other logins of this client kept winning
    ├── RateLimitExceededError         a bucket holds too little: when to come back, or never
    ├── QuotaExceededError             every model's quota is spent until the day ends
    ├── AuthorizationDeniedError       budgets, quotas or limits have no room for a call
    ├── FrozenError                    an administrator has stopped this organisation or app
    ├── KeyringError                   the signing keys can't be read, written or trusted
    ├── ExportError                    an export can't be written where it shall go
    ├── DeliveryError                  an alert could not be delivered to a channel
    ├── PricingError
    │   ├── DeploymentFileError        the deployment file is refused, field by field
    │   ├── UnknownModelLabelError     the deployment has no model with that label
    │   ├── ModelMismatchError         the model that was called is not the label's
    │   ├── UnpricedUsageError         a kind of tokens has no price: never zero, never guessed
    │   └── PriceSourceError           a source of prices can't be read
    └── StoreError
        ├── ConditionFailedError       the condition did not hold; carries the current item
        ├── TransactionCancelledError  nothing was applied; one reason per operation
        ├── InvalidOperationError      the caller's mistake: the store's rules refuse it
        ├── StoreMisconfiguredError    a missing table or permission: retrying can't help
        │   ├── StoreReplacedError     the database file was removed or replaced while it was open
        │   ├── StoreDamagedError      the database file is damaged
        │   ├── StoreReadOnlyError     the database file can be read and not written
        │   └── StoreFormatError       the store has a format of another version
        ├── UnreadableItemError        a stored item has no meaning: its owner alone is concerned
        ├── StoreUnavailableError      not applied; trying again later may work
        │   ├── StoreFullError         there is no room left on the disk
        │   ├── ThrottledError         the store asked us to slow down, to the end
        │   ├── ContendedError         other writers kept winning, to the end
        │   └── StoreClosedError       this store object was closed
        └── OutcomeUnknownError        applied or not: nobody can tell from here

The difference between the last two branches is the one that matters: after
`StoreUnavailableError` the write did not happen, after `OutcomeUnknownError` it may have.
Each leaf has a stable ``code``. None of them knows about HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class PriceKeeperError(Exception):
    """The root: catch this to catch everything we raise on purpose."""

    code: ClassVar[str] = "INTERNAL"


class SettingsError(PriceKeeperError):
    """A setting is missing or malformed; the message names it and the fix."""

    code = "INVALID_SETTING"

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class InvalidValueError(PriceKeeperError):
    """A value breaks the rule of its kind; ``field`` names it for the caller."""

    code = "INVALID_VALUE"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that was refused, and why. ``field`` is a path such as ``quotas.premium``."""

    field: str
    message: str


class RequestRefusedError(PriceKeeperError):
    """A request that can't be understood; ``mistakes`` names each bad field."""

    code = "INVALID_REQUEST"

    def __init__(self, detail: str, mistakes: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.mistakes = mistakes

    @classmethod
    def of(cls, mistakes: Sequence[FieldError]) -> RequestRefusedError:
        """The refusal that tells of these."""
        return cls(", ".join(f"{one.field}: {one.message}" for one in mistakes), tuple(mistakes))


class InvalidConfigError(PriceKeeperError):
    """Settings were refused; ``errors`` names every bad field, not only the first.

    ``details`` helps to mend them: the ``valid_labels``, if a label was unknown.
    """

    code = "INVALID_CONFIG"

    def __init__(
        self, errors: Sequence[FieldError], details: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = tuple(errors)
        self.details = dict(details or {})


class ConflictError(PriceKeeperError):
    """The request contradicts something that can't be changed any more; ``field`` names it."""

    code = "CONFLICT"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class RequestIdReusedError(PriceKeeperError):
    """The request id belongs to another usage record, which counts; this one does not."""

    code = "REQUEST_ID_REUSED"

    def __init__(self, request_id: str, authorization_id: str = "") -> None:
        super().__init__(f"request_id: {request_id} was used for another usage record")
        self.field = "request_id"
        self.request_id = request_id
        self.authorization_id = authorization_id
        """The authorization that the id stands for; a record under it is its capture."""


class NotFoundError(PriceKeeperError):
    """It does not exist for this caller: it is absent, deleted or another client's."""

    code = "NOT_FOUND"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} not found")
        self.what = what


class NotPermittedError(PriceKeeperError):
    """The credentials are good, but what is asked for takes others; the message says which."""

    code = "NOT_PERMITTED"


class InvalidClientError(PriceKeeperError):
    """The credentials do not open anything. Every cause gives this same answer."""

    code = "INVALID_CLIENT"

    def __init__(self) -> None:
        super().__init__("the client is unknown or its secret is wrong")


class OverloadedError(PriceKeeperError):
    """A bounded queue in front of costly work is full; nothing was done."""

    code = "OVERLOADED"


class ClockInDoubtError(PriceKeeperError):
    """Wall time is not believed at this moment, so nothing that ends at a moment is issued."""

    code = "CLOCK_IN_DOUBT"

    def __init__(self, reason: str) -> None:
        super().__init__(f"this machine's clock is in doubt: {reason}")
        self.reason = reason


class DeadlineExceededError(PriceKeeperError):
    """The time for a request is up. ``may_be_applied``: nobody knows whether it was applied."""

    code = "DEADLINE_EXCEEDED"

    def __init__(self, *, may_be_applied: bool) -> None:
        super().__init__("the request took longer than it may")
        self.may_be_applied = may_be_applied


class InvalidTokenError(PriceKeeperError):
    """A token that does not count: forged, expired, revoked or of an ended session, all alike.

    The reason is for the log alone; a caller who could read it could probe. ``genuine`` says
    whether we made the token: a genuine token that counts no more is nobody's guess.
    """

    code = "INVALID_TOKEN"

    def __init__(self, *, genuine: bool = False) -> None:
        super().__init__("the token is not valid")
        self.genuine = genuine


class SessionLimitRaceError(PriceKeeperError):
    """A login lost its slot to others that came at the same moment. Nothing was applied.

    ``cancellation_reasons`` are the store's own, one per operation.
    """

    code = "SESSION_RACE"

    def __init__(self, cancellation_reasons: Sequence[CancellationReason]) -> None:
        super().__init__("other logins of this client came at the same moment; try again")
        self.cancellation_reasons = tuple(cancellation_reasons)


@dataclass(frozen=True, slots=True)
class Violation:
    """One limit that holds less than was asked for. ``retry_after_ms`` of ``None`` is never."""

    entity: str
    resource: str
    limit: str
    requested: int
    available: int
    retry_after_ms: int | None
    scope: str | None = None
    """Whose bucket it is, as the caller names it: ``APP`` or ``ORG`` in the service."""

    @property
    def never(self) -> bool:
        """Whether more was asked for than the bucket can ever hold."""
        return self.retry_after_ms is None

    @property
    def text(self) -> str:
        """The violation as a sentence."""
        after = "never" if self.retry_after_ms is None else f"in {self.retry_after_ms} ms"
        return (
            f"{self.entity} {self.resource}: {self.requested} {self.limit} asked for, "
            f"{self.available} there, enough {after}"
        )


def longest_wait_ms(violations: Sequence[Violation]) -> int | None:
    """When all of what was asked for may be there; ``None`` is never."""
    waits = [violation.retry_after_ms for violation in violations]
    return None if None in waits else max((wait for wait in waits if wait is not None), default=0)


class RateLimitExceededError(PriceKeeperError):
    """Nothing was taken: one limit at least holds less than was asked for."""

    code = "RATE_LIMIT_EXCEEDED"

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("; ".join(violation.text for violation in violations))
        self.violations = tuple(violations)

    @property
    def retry_after_ms(self) -> int | None:
        """When all of it may be there, if nobody else takes any; ``None`` is never."""
        return longest_wait_ms(self.violations)


class QuotaExceededError(PriceKeeperError):
    """No model of the ordering may be used before ``resets_at_ms``, the next local midnight.

    ``models`` says by label how much of its quota is spent, in hundredths of a percent.
    """

    code = "QUOTA_EXCEEDED"

    def __init__(self, models: Mapping[str, int], resets_at_ms: int, message: str) -> None:
        super().__init__(message)
        self.models = dict(models)
        self.resets_at_ms = resets_at_ms


class Obstacle(StrEnum):
    """What can be in the way of a call."""

    BUDGET = "BUDGET"
    QUOTA = "QUOTA"
    LIMIT = "LIMIT"
    FROZEN = "FROZEN"


@dataclass(frozen=True, slots=True)
class DeniedBy:
    """One thing that denies a call.

    What is needed and what remains are pico-dollars, for a limit tokens. One of the last two says
    when it may be otherwise: once the window ends, or after a while. Neither means never.
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
        """Whether it will never be there: more is needed than there can be."""
        return self.resets_at_ms is None and self.retry_after_ms is None

    @property
    def text(self) -> str:
        """The same as a sentence."""
        whose = "the organisation" if self.scope == "ORG" else "the app"
        if self.kind is Obstacle.FROZEN:
            return f"{whose} is frozen"
        if self.kind is Obstacle.LIMIT:
            amounts = f"{self.needed} {self.name} needed, {self.remaining} left"
            return f"{whose}'s limit for {self.label}: {amounts}"
        return (
            f"{whose}'s {self.kind.lower()} {self.name}: {self.shown_needed} micro-dollars needed, "
            f"{self.shown_remaining} left"
        )

    @property
    def shown_needed(self) -> int:
        """What is needed: tokens, or micro-dollars, rounded up."""
        return self.needed if self._is_limit else -(-self.needed // 1_000_000)

    @property
    def shown_remaining(self) -> int:
        """What remains: tokens, or micro-dollars, rounded down."""
        return self.remaining if self._is_limit else self.remaining // 1_000_000

    @property
    def _is_limit(self) -> bool:
        return self.kind is Obstacle.LIMIT


class AuthorizationDeniedError(PriceKeeperError):
    """Nothing was taken: ``denied_by`` names everything that denies the call.

    Raising exactly those admits it. ``considered`` are the labels that were looked at, each with
    the reason why it was passed over.
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
        """Whether nothing but limits is in the way."""
        return all(one.kind is Obstacle.LIMIT for one in self.denied_by)

    def retry_after_ms(self, now_ms: int) -> int | None:
        """When all of it may be otherwise; ``None`` is never."""
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
    """An administrator has frozen the client: it gets no model and no tokens until that is lifted.

    ``scope`` is ``ORG`` if its whole organisation is frozen, ``APP`` if the app alone is.
    """

    code = "FROZEN"

    def __init__(self, scope: str, reason: str, frozen_at_epoch: int) -> None:
        whose = "the organisation" if scope == "ORG" else "the app"
        super().__init__(f"{whose} is frozen: {reason}")
        self.scope = scope
        self.reason = reason
        self.frozen_at_epoch = frozen_at_epoch


class KeyringError(PriceKeeperError):
    """The signing keys can't be read, written or trusted; an operator has to act."""

    code = "KEYRING_UNUSABLE"


class ExportError(PriceKeeperError):
    """An export can't be written; the message says where to, and why."""

    code = "EXPORT_FAILED"


class DeliveryError(PriceKeeperError):
    """An alert could not be delivered to a channel; the message says why, without any secret.

    ``is_refused``: the channel is there and did not take this alert; another may be taken.
    """

    code = "DELIVERY_FAILED"

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused


class PricingError(PriceKeeperError):
    """The root of what prices, and the file that defines them, can get wrong."""

    code = "PRICING_ERROR"


class DeploymentFileError(PricingError):
    """The deployment file was refused; ``errors`` names every bad field, not only the first."""

    code = "INVALID_DEPLOYMENT_FILE"

    def __init__(self, file: str, errors: Sequence[FieldError]) -> None:
        text = "; ".join(f"{error.field}: {error.message}" for error in errors)
        super().__init__(f"{file}: {text}")
        self.file = file
        self.errors = tuple(errors)


class UnknownModelLabelError(PricingError):
    """The deployment defines no model with that label; ``valid_labels`` are those it has."""

    code = "INVALID_MODEL_LABEL"

    def __init__(self, label: str, valid_labels: Sequence[str], field: str = "model_label") -> None:
        super().__init__(f"{field}: {label!r} is not one of {', '.join(valid_labels)}")
        self.field = field
        self.label = label
        self.valid_labels = tuple(valid_labels)


class ModelMismatchError(PricingError):
    """The model that was called is not the one whose prices the label has.

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
    """No known price applies to a part of the usage: ``field`` names it, ``fix`` what helps."""

    code = "UNPRICED_USAGE"

    def __init__(self, label: str, field: str, message: str, fix: str) -> None:
        super().__init__(f"{field}: {message}; {fix}")
        self.label = label
        self.field = field
        self.message = message
        self.fix = fix


class PriceSourceError(PricingError):
    """A source of prices can't be read, or what it says can't be understood."""

    code = "PRICE_SOURCE_FAILED"

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source
        self.message = message


class StoreError(PriceKeeperError):
    """The root of what a store can answer."""

    code = "STORE_ERROR"


class ConditionFailedError(StoreError):
    """The operation's condition did not hold. Nothing was written.

    ``item`` is what the store held at that moment, ``None`` if there was nothing.
    """

    code = "CONDITION_FAILED"

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        super().__init__("the condition did not hold")
        self.item = item


class ReasonCode(StrEnum):
    """Why one operation of a cancelled transaction did, or did not, stand in the way."""

    NONE = "None"
    CONDITION_FAILED = "ConditionalCheckFailed"
    CONFLICT = "TransactionConflict"
    THROTTLED = "ThrottlingError"
    INVALID = "ValidationError"


@dataclass(frozen=True, slots=True)
class CancellationReason:
    """The part one operation played in a cancelled transaction."""

    code: ReasonCode
    item: Mapping[str, Any] | None = None
    message: str = ""


class TransactionCancelledError(StoreError):
    """A transaction was refused as a whole; ``reasons`` follow the order of its operations."""

    code = "TRANSACTION_CANCELLED"

    def __init__(self, reasons: Sequence[CancellationReason]) -> None:
        text = ", ".join(reason.code for reason in reasons)
        super().__init__(f"the transaction was cancelled: [{text}]")
        self.reasons = tuple(reasons)


class InvalidOperationError(StoreError):
    """The store's rules refuse the operation whatever the data: a bug in the caller."""

    code = "INVALID_OPERATION"


class StoreMisconfiguredError(StoreError):
    """A table, a permission or an account is not as it must be; an operator has to act."""

    code = "STORE_MISCONFIGURED"
    may_be_applied: bool = False
    """Whether the write may stand somewhere, such as in a file that was taken away."""


class StoreReplacedError(StoreMisconfiguredError):
    """The database file was removed, replaced or overwritten while it was open.

    Whether what was written last counts depends on which file the operator goes on with.
    """

    code = "STORE_REPLACED"


class StoreDamagedError(StoreMisconfiguredError):
    """The database file is damaged: it is neither read nor written any more."""

    code = "STORE_DAMAGED"


class StoreReadOnlyError(StoreMisconfiguredError):
    """The database file, or its file system, can be read and not written."""

    code = "STORE_READ_ONLY"


class StoreFormatError(StoreMisconfiguredError):
    """Another version of pricekeeper wrote the store; the message says what to do next."""

    code = "STORE_FORMAT"


class UnreadableItemError(StoreError):
    """A stored item lacks an attribute, or holds one of another type than it must have.

    The message names the item and the attribute, and never quotes a value: it may be a secret.
    A reader of many items leaves out this one and goes on with the others.
    """

    code = "ITEM_UNREADABLE"


class StoreUnavailableError(StoreError):
    """The operation was not applied, and the store could not take it now."""

    code = "STORE_UNAVAILABLE"


class StoreFullError(StoreUnavailableError):
    """There is no room left on the disk."""

    code = "STORE_FULL"


class ThrottledError(StoreUnavailableError):
    """The store kept asking us to slow down until our patience ended."""

    code = "STORE_THROTTLED"


class ContendedError(StoreUnavailableError):
    """Other writers kept winning until our patience ended."""

    code = "STORE_CONTENDED"


class StoreClosedError(StoreUnavailableError):
    """The store was closed before the operation reached it."""

    code = "STORE_CLOSED"


class OutcomeUnknownError(StoreError):
    """The operation may or may not have been applied.

    The reply was lost and sending again could have applied it twice, or sending again
    met a failed condition that the first send itself may have caused. In the second
    case ``item`` is what the store held then, so that a caller who wrote something
    unique can recognise its own write.
    """

    code = "OUTCOME_UNKNOWN"

    def __init__(self, message: str, item: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.item = item
