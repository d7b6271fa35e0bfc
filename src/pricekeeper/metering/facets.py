"""Which totals a record counts in: of its account, its hour and its tags. No I/O, no clock.

All are items of DailyTotal, and move forward in the same way (`metering.fold`):

- ``{scope}#LABEL#{label}`` / ``DAY#{day}``: the account, which quotas are checked against
- ``ORG#{org}#APP#{app}#LABEL#{label}`` / ``HOUR#{day}#{hour}``: an app's spend in an hour
- the same / ``TAG#{key}#{day}#{hour}#{value}``: the part with this value of a declared tag

Hours are of UTC, so they mean the same in every zone. An organisation's day may begin within one,
so the day is part of the key, and its hours add up to it exactly.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.journal import Record, Terms
from pricekeeper.storage import Key

NO_APP: Final = "-"
"""Usage that an organisation reports with its own token; no app has this id."""
MS_PER_HOUR: Final = 3_600_000
DAY, HOUR, TAG = "DAY#", "HOUR#", "TAG#"


class Tag(NamedTuple):
    """A value of a declared tag in an hour."""

    key: str
    day: str
    hour: int
    value: str


class Facet(NamedTuple):
    """One total, and its organisation and day."""

    org_id: str
    day: str
    pk: str
    sk: str

    @property
    def key(self) -> Key:
        return Key(self.pk, self.sk)

    @property
    def account(self) -> Account | None:
        """The account, if this is a total of a day."""
        if not self.sk.startswith(DAY):
            return None
        scope_key, _, label = self.pk.partition("#LABEL#")
        return Account(scope_key, label, self.day)

    @property
    def tag(self) -> Tag | None:
        return tag_from(self.sk) if self.sk.startswith(TAG) else None


SumsByFacet: TypeAlias = dict[Facet, dict[int, Counters]]


def facet_of(account: Account) -> Facet:
    """The facet of an account's total."""
    return Facet(account.org_id, account.day, account.partition, f"{DAY}{account.day}")


def hour_of(epoch_ms: int) -> int:
    """The hour of a moment, counted since the epoch."""
    return epoch_ms // MS_PER_HOUR


def app_partition(org_id: str, app_id: str | None, label: str) -> str:
    """The partition of an app's totals by hour and tag."""
    return f"ORG#{org_id}#APP#{app_id or NO_APP}#LABEL#{label}"


def hour_sort_key(day: str, hour: int) -> str:
    """The sort key of an hour's total."""
    return f"{HOUR}{day}#{hour:07d}"


def tag_sort_key(key: str, day: str, hour: int, value: str) -> str:
    """The sort key of the total of a tag's value in an hour."""
    return f"{TAG}{key}#{day}#{hour:07d}#{value}"


def hour_from(sort_key: str) -> tuple[str, int]:
    """The day and hour of a total."""
    _, day, hour = sort_key.split("#")
    return day, int(hour)


def tag_from(sort_key: str) -> Tag:
    """Parse the sort key of a tag's total. A key has no ``#`` in it; a value may."""
    _, key, day, hour, value = sort_key.split("#", 4)
    return Tag(key, day, int(hour), value)


class Facets:
    """Makes the facets of records, once for the same terms and hour."""

    def __init__(self, org_id: str) -> None:
        self._org_id = org_id
        self._known: dict[tuple[Terms, int], tuple[Facet, ...]] = {}

    def of(self, record: Record) -> tuple[Facet, ...]:
        terms, hour = record.terms, hour_of(record.entry.happened_at_ms)
        found = self._known.get((terms, hour))
        if found is None:
            found = self._known[terms, hour] = tuple(self._make(terms, hour))
        return found

    def _make(self, terms: Terms, hour: int) -> list[Facet]:
        org_id, day = self._org_id, terms.day
        app = app_partition(org_id, terms.app_id, terms.label)
        facets = [
            Facet(org_id, day, f"{terms.scope_key}#LABEL#{terms.label}", f"{DAY}{day}"),
            Facet(org_id, day, app, hour_sort_key(day, hour)),
        ]
        tags = dict(terms.tags)
        facets += [
            Facet(org_id, day, app, tag_sort_key(key, day, hour, tags[key]))
            for key in terms.tag_keys
            if key in tags
        ]
        return facets
