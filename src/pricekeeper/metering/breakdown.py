"""Groups spend by organisation, app, label, day, hour and the value of a tag.

No I/O, no clock. Sums are exact, in pico-dollars.
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


class Cell(NamedTuple):
    """Where money was spent. An unknown app or hour is empty."""

    org_id: str
    app_id: str
    label: str
    day: str
    hour: int | None = None


class Grouping(NamedTuple):
    """The wanted groups, in the order of the request."""

    names: tuple[str, ...] = ()
    tag_key: str | None = None

    @property
    def fits_days(self) -> bool:
        return _FROM_DAYS.issuperset(self.names) and self.tag_key is None

    @property
    def has_hours(self) -> bool:
        return HOUR in self.names

    def group_of(self, cell: Cell, value: str) -> tuple[str, ...]:
        parts = {
            ORG: cell.org_id,
            APP: cell.app_id,
            LABEL: cell.label,
            DAY: cell.day,
            HOUR: "" if cell.hour is None else f"{cell.hour:07d}",
        }
        return tuple(parts.get(name, value) for name in self.names)


def parse_grouping(text: str) -> Grouping:
    """Parse ``app,day,tag:team``; an empty text is no grouping."""
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
    """One sum, and its group."""

    group: tuple[str, ...]
    counters: Counters


class Breakdown:
    """Sums spend by group."""

    def __init__(self, grouping: Grouping, tag_value: str | None) -> None:
        self.grouping = grouping
        self._tag_value = tag_value
        """The only value of the tag to count; empty for spend without the tag."""
        self._sums: dict[tuple[str, ...], Counters] = {}
        self._tagged: dict[tuple[str, ...], Counters] = {}

    def add(self, cell: Cell, counters: Counters) -> None:
        if self._tag_value:
            return  # `add_tagged` adds what has the value
        self._count(self.grouping.group_of(cell, ""), counters)

    def add_tagged(self, cell: Cell, value: str, counters: Counters) -> None:
        if not value:
            return  # as good as no tag
        if self._tag_value in {None, value}:
            self._count(self.grouping.group_of(cell, value), counters)
        if self._tag_value:
            return  # there is no rest
        rest = self.grouping.group_of(cell, "")
        self._tagged[rest] = self._tagged.get(rest, NOTHING) + counters

    def rows(self) -> list[Row]:
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

    def _count(self, group: tuple[str, ...], counters: Counters) -> None:
        have = self._sums.get(group)
        if have is None and len(self._sums) >= ROWS_MAX:
            message = f"gives more than {ROWS_MAX:,} rows; take a shorter range or fewer groups"
            raise InvalidValueError(_FIELD, message)
        self._sums[group] = counters if have is None else have + counters
