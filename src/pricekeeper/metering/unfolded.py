"""What was posted and is not in the totals of an organisation yet. No I/O, no clock.

Whoever reads totals hands each of them over, and gets it back with what was posted since. What is
left at the end belongs to totals that nobody has written yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.facets import DAY, HOUR, TAG, Facet
from pricekeeper.metering.fold import Sums, add_up
from pricekeeper.metering.items import Partition, fold_from, total_from
from pricekeeper.storage import Item


class Left(NamedTuple):
    """What was posted for a total that there is not yet."""

    partition: Partition
    sort_key: str
    counters: Counters


class Unfolded:
    """What was posted for some totals of one organisation; each of them gets it once."""

    def __init__(
        self, org_id: str, posted: Mapping[Facet, Sums], prefix: str = "", label: str | None = None
    ) -> None:
        """Only partitions count that start with ``prefix``, and with ``label`` that label alone."""
        self.org_id = org_id
        self._left = {
            (facet.pk, facet.sk): (facet.day, sums)
            for facet, sums in posted.items()
            if facet.pk.startswith(prefix) and label in {None, _partition(facet.pk).label}
        }

    def with_posted(self, item: Item) -> Counters:
        """A total with what was posted since. Raises `UnreadableItemError` if it can't be read."""
        total = total_from(item)
        _, sums = self._left.pop((str(item["PK"]), str(item["SK"])), ("", None))
        return total.counters if sums is None else fold_from(item).with_found(sums)

    def drop(self, account: Account) -> None:
        """Forget what was posted for an account that was summed in another way."""
        self._left.pop((account.partition, f"{DAY}{account.day}"), None)

    def days_left(self, first_day: str, last_day: str) -> Iterator[Left]:
        """What is left for totals of these days, both included."""
        return self._left_in((DAY,), first_day, last_day)

    def hours_left(self, first_day: str, last_day: str, tag_key: str | None) -> Iterator[Left]:
        """What is left for totals of hours, and of values of a tag, in these days."""
        prefixes = (HOUR,) if tag_key is None else (HOUR, f"{TAG}{tag_key}#")
        return self._left_in(prefixes, first_day, last_day)

    def _left_in(self, prefixes: tuple[str, ...], first_day: str, last_day: str) -> Iterator[Left]:
        for (pk, sort_key), (day, sums) in self._left.items():
            if sort_key.startswith(prefixes) and first_day <= day <= last_day:
                yield Left(_partition(pk), sort_key, add_up(sums.values()))


def _partition(pk: str) -> Partition:
    scope_key, _, label = pk.partition("#LABEL#")
    return Partition(scope_key, label)
