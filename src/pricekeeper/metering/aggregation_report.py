"""What a run of the aggregator did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pricekeeper.errors import StoreError, UnreadableItemError
from pricekeeper.metering.counters import Counters

ERRORS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class AggregationReport:
    """What a run did. It was complete if nothing ``failed``."""

    began_at_ms: int
    days: int = 0
    accounts: int = 0
    """Scope, label and day: what has a total of its own."""
    written: int = 0
    """Accounts whose total was written; those by hour and tag go with it."""
    failed: int = 0
    unreadable: int = 0
    """Accounts that can't be read. They concern nobody else: the run is complete without them."""
    errors: tuple[str, ...] = ()
    """The first few different ones."""
    lag_ms: int | None = 0
    """No change was older than that when it got into its total; 0 if there was none to find.

    ``None`` if nobody knows, because there was no complete run before."""
    since_last_ms: int | None = None
    """From the beginning of the last complete run, by anybody, to that of this one."""
    skipped: bool = False
    """Another instance had run a moment ago."""
    expired: int = 0
    """Authorizations of processes that are gone, which were charged at what they held."""
    unswept: int = 0
    """Regions in which some may be left, because they could not be read or charged."""


class TotalChange(NamedTuple):
    """A total that was made anew, and is another one now."""

    org_id: str
    partition: str
    sort_key: str
    before: Counters
    after: Counters


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What came of making the totals of a day anew."""

    day: str
    orgs: int
    """Organisations that have posted while records of that day could be."""
    changes: tuple[TotalChange, ...] = ()
    failed: int = 0
    unreadable: int = 0
    errors: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """What a run has done so far."""

    accounts: int = 0
    written: int = 0
    failed: int = 0
    unreadable: int = 0
    errors: dict[str, None] = field(default_factory=dict)
    written_at_ms: int = 0
    changes: list[TotalChange] = field(default_factory=list)
    """Of totals that were made anew."""

    def fail(self, accounts: int, error: StoreError) -> None:
        """Note accounts that could not be brought up to date."""
        if isinstance(error, UnreadableItemError):
            self.unreadable += accounts
        else:
            self.failed += accounts
        if len(self.errors) < ERRORS_MAX:
            self.errors[f"{type(error).__name__}: {error}"] = None
