"""What a total is made of, and how it moves forward. No I/O, no clock.

A total is the sum of three things: what another program counted in shards
(``shards``), the ticks that are closed, and a **part** for each tick that is open. A fold sums
the records of the open ticks anew, so that it does not matter what an earlier fold had seen. Once
a tick is closed, its part belongs to the total for good and is forgotten by itself.

Records are only ever added to the journal, corrections among them, so a later reading of a tick
holds everything that an earlier one held. If a part would go back, what was read is older than what
is stored; it has to be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pricekeeper.metering.counters import NOTHING, Counters

Sums = Mapping[int, Counters]
"""What was posted in each tick."""


class Behind(Exception):  # noqa: N818 - nothing is wrong, but it has to be read again
    """What was read is older than what is stored."""


class Fold(msgspec.Struct, frozen=True):
    """A total and what it is made of."""

    total: Counters = NOTHING
    shards: Counters = NOTHING
    closed: int = -1
    """The last tick that is closed."""
    parts: dict[int, Counters] = {}
    rev: int = 0
    """How often the total was written."""

    def forward(self, found: Sums, through: int, closable: int, first: int = 0) -> Fold | None:
        """The total with what was found; ``None`` if that changes nothing.

        ``found`` has every open tick from ``first`` to ``through``, read after ``closable`` could
        be closed. What is open and earlier is in the total already. Raises `Behind` if a part would
        go back.
        """
        read = {tick: part for tick, part in self.parts.items() if first <= tick <= through}
        for tick, part in read.items():
            if not found.get(tick, NOTHING).dominates(part):
                raise Behind
        closed = max(self.closed, min(closable, through))
        parts = {tick: sums for tick, sums in found.items() if tick > closed}
        unread = self.parts.keys() - read.keys()
        parts |= {tick: self.parts[tick] for tick in unread if tick > closed}
        fresh = add_up(sums for tick, sums in found.items() if tick > self.closed)
        total = self.total - add_up(read.values()) + fresh
        if total == self.total and parts == self.parts:
            return None
        return Fold(total, self.shards, closed, parts, self.rev + 1)

    def with_shards(self, shards: Counters) -> Fold | None:
        """The total with another sum of the shards; ``None`` if that changes nothing."""
        joined = self.shards.joined(shards)
        if joined == self.shards:
            return None
        total = self.total - self.shards + joined
        return msgspec.structs.replace(self, total=total, shards=joined, rev=self.rev + 1)

    def with_found(self, found: Sums) -> Counters:
        """The total as it would be with what was found, which may be nothing new."""
        fresh = add_up(sums for tick, sums in found.items() if tick > self.closed)
        return self.total.joined(self.total - add_up(self.parts.values()) + fresh)

    def rebuilt(self, found: Sums, shards: Counters, closable: int) -> Fold | None:
        """The total made anew from every tick of its day; it never goes back.

        ``found`` was read after this total. A tick that a clock far ahead has closed is open
        again. ``None`` if nothing changes.
        """
        parts = {tick: sums for tick, sums in found.items() if tick > closable}
        total = self.total.joined(add_up(found.values()) + shards)
        made = Fold(total, shards, closable, parts, self.rev)
        return None if made == self else msgspec.structs.replace(made, rev=self.rev + 1)


def add_up(sums: Iterable[Counters]) -> Counters:
    """All of them together."""
    total = NOTHING
    for one in sums:
        total += one
    return total
