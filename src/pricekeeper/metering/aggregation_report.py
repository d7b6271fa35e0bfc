"""What a run of the aggregator did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pricekeeper.errors import StoreError, UnreadableItemError
from pricekeeper.metering.counters import Counters

ERRORS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class AggregationReport:
    """Result of a run. The run was complete if nothing ``failed``."""

    began_at_ms: int
    accounts: int = 0
    written: int = 0
    """Totals of days only."""
    failed: int = 0
    unreadable: int = 0
    errors: tuple[str, ...] = ()
    lag_ms: int | None = 0
    """How old a change was at most in its total; ``None`` before any complete run."""
    since_last_ms: int | None = None
    """Since the last complete run of any instance began."""
    skipped: bool = False
    expired: int = 0
    """Authorizations of dead processes, charged at their holds."""
    unswept: int = 0


class TotalChange(NamedTuple):
    """A total that a rebuild changed."""

    org_id: str
    partition: str
    sort_key: str
    before: Counters
    after: Counters


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Result of rebuilding the totals of a day."""

    day: str
    orgs: int
    """Organisations that posted while records of that day could be posted."""
    changes: tuple[TotalChange, ...] = ()
    failed: int = 0
    unreadable: int = 0
    errors: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """Counts what a run does."""

    accounts: int = 0
    written: int = 0
    failed: int = 0
    unreadable: int = 0
    errors: dict[str, None] = field(default_factory=dict)
    written_at_ms: int = 0
    changes: list[TotalChange] = field(default_factory=list)

    def fail(self, accounts: int, error: StoreError) -> None:
        if isinstance(error, UnreadableItemError):
            self.unreadable += accounts
        else:
            self.failed += accounts
        if len(self.errors) < ERRORS_MAX:
            self.errors[f"{type(error).__name__}: {error}"] = None
