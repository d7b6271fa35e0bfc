"""Every error this package raises on purpose, as one small tree.

::

    PriceKeeperError
    ├── SettingsError                  a setting is missing or malformed
    ├── InvalidValueError              an id, label or name breaks its rule
    ├── InvalidConfigError             settings of an org or app are refused, field by field
    ├── ConflictError                  what is asked for contradicts what can't be changed
    ├── NotFoundError                  absent, deleted or another's: nobody can tell which
    ├── InvalidClientError             client and secret do not belong together
    ├── OverloadedError                too much costly work is waiting; later may work
    └── StoreError
        ├── ConditionFailedError       the condition did not hold; carries the current item
        ├── TransactionCancelledError  nothing was applied; one reason per operation
        ├── InvalidOperationError      the caller's mistake: the store's rules refuse it
        │   └── TokenReusedError       a transaction token came back with other operations
        ├── StoreMisconfiguredError    a missing table or permission: retrying can't help
        ├── StoreUnavailableError      not applied; trying again later may work
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


class NotFoundError(PriceKeeperError):
    """There is nothing there for this caller. Absent, deleted and another's answer alike."""

    code = "NOT_FOUND"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} not found")
        self.what = what


class InvalidClientError(PriceKeeperError):
    """The credentials do not open anything. Every cause gives this same answer."""

    code = "INVALID_CLIENT"

    def __init__(self) -> None:
        super().__init__("the client is unknown or its secret is wrong")


class OverloadedError(PriceKeeperError):
    """A bounded queue in front of costly work is full; nothing was done."""

    code = "OVERLOADED"


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
        told = ", ".join(reason.code for reason in reasons)
        super().__init__(f"the transaction was cancelled: [{told}]")
        self.reasons = tuple(reasons)


class InvalidOperationError(StoreError):
    """The store's rules refuse the operation whatever the data: a bug in the caller."""

    code = "INVALID_OPERATION"


class TokenReusedError(InvalidOperationError):
    """A transaction token was presented again with different operations."""

    code = "TRANSACTION_TOKEN_REUSED"


class StoreMisconfiguredError(StoreError):
    """A table, a permission or an account is not as it must be; an operator has to act."""

    code = "STORE_MISCONFIGURED"


class StoreUnavailableError(StoreError):
    """The operation was not applied, and the store could not take it now."""

    code = "STORE_UNAVAILABLE"


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
