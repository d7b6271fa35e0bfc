"""Spend broken down: sums by organisation, app, label, day, hour and the value of a tag.

No I/O, no clock. Sums are exact, in pico-dollars; the total is the sum of all rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pricekeeper.errors import InvalidValueError
from pricekeeper.metering.counters import NOTHING, Counters

ORG, APP, LABEL, DAY, HOUR = "org", "app", "label", "day", "hour"
TAG_PREFIX: Final = "tag:"
NAMES: Final = (ORG, APP, LABEL, DAY, HOUR)
ROWS_MAX: Final = 10_000

_FIELD: Final = "group_by"
_FROM_DAYS: Final = frozenset({ORG, LABEL, DAY})
"""What the totals of days can tell apart."""


class Cell(NamedTuple):
    """Where something was spent. An app or hour that nobody knows is empty."""

    org_id: str
    app_id: str
    label: str
    day: str
    hour: int | None = None


class Grouping(NamedTuple):
    """By what spend is broken down, in the order that was asked for."""

    names: tuple[str, ...] = ()
    tag_key: str | None = None

    @property
    def fits_days(self) -> bool:
        """Whether the totals of days tell apart what is asked for."""
        return _FROM_DAYS.issuperset(self.names) and self.tag_key is None

    @property
    def has_hours(self) -> bool:
        """Whether hours are told apart."""
        return HOUR in self.names

    def group_of(self, cell: Cell, value: str) -> tuple[str, ...]:
        """Where a cell counts, with that value of the tag."""
        parts = {
            ORG: cell.org_id,
            APP: cell.app_id,
            LABEL: cell.label,
            DAY: cell.day,
            HOUR: "" if cell.hour is None else f"{cell.hour:07d}",
        }
        return tuple(parts.get(name, value) for name in self.names)


def parse_grouping(text: str) -> Grouping:
    """``app,day,tag:team`` as a grouping; nothing is none."""
    names = tuple(text.split(",")) if text else ()
    tags = [name.removeprefix(TAG_PREFIX) for name in names if name.startswith(TAG_PREFIX)]
    for name in names:
        if name not in NAMES and (not name.startswith(TAG_PREFIX) or name == TAG_PREFIX):
            known = ", ".join((*NAMES, "tag:KEY"))
            raise InvalidValueError(_FIELD, f"must be a list of {known}, with commas between them")
    if len(set(names)) < len(names):
        raise InvalidValueError(_FIELD, "names something a second time")
    if len(tags) > 1:
        raise InvalidValueError(_FIELD, "may name one tag only; ask once for each")
    if any("#" in tag for tag in tags):
        raise InvalidValueError(_FIELD, "names a tag with #, which can't be a tag key")
    return Grouping(names, tags[0] if tags else None)


class Row(NamedTuple):
    """One sum, and what it is of, in the order of the grouping."""

    group: tuple[str, ...]
    counters: Counters


class Breakdown:
    """Adds up what was spent, by group."""

    def __init__(self, grouping: Grouping, tag_value: str | None) -> None:
        self.grouping = grouping
        self._tag_value = tag_value
        """Of the grouping's tag, the only value that is counted; an empty one is what has none."""
        self._sums: dict[tuple[str, ...], Counters] = {}
        self._tagged: dict[tuple[str, ...], Counters] = {}
        """What of such a sum was counted under a value."""

    def add(self, cell: Cell, counters: Counters) -> None:
        """Count what was spent there, with or without a tag."""
        if self._tag_value:
            return  # what has the value is told by `add_tagged`
        self._count(self._group(cell, ""), counters)

    def add_tagged(self, cell: Cell, value: str, counters: Counters) -> None:
        """Say that so much of what was spent there had this value of the tag."""
        if not value:
            return  # as good as no tag
        if self._tag_value in {None, value}:
            self._count(self._group(cell, value), counters)
        if self._tag_value:
            return  # there is no rest
        rest = self._group(cell, "")
        self._tagged[rest] = self._tagged.get(rest, NOTHING) + counters

    def rows(self) -> list[Row]:
        """Every group in which something was spent, in order; without groups there is one row."""
        found = dict(self._sums)
        for rest, tagged in self._tagged.items():
            # Totals are read one after another: a tag's may be ahead of the hour's.
            left = (found.get(rest, NOTHING) - tagged).joined(NOTHING)
            found[rest] = left
            if left == NOTHING:
                del found[rest]
        if not self.grouping.names:
            found.setdefault((), NOTHING)
        return [Row(group, found[group]) for group in sorted(found)]

    def _group(self, cell: Cell, value: str) -> tuple[str, ...]:
        return self.grouping.group_of(cell, value)

    def _count(self, group: tuple[str, ...], counters: Counters) -> None:
        have = self._sums.get(group)
        if have is None and len(self._sums) >= ROWS_MAX:
            message = f"gives more than {ROWS_MAX:,} rows; take a shorter range or fewer groups"
            raise InvalidValueError(_FIELD, message)
        self._sums[group] = counters if have is None else have + counters
