"""What a total is made of, and how it moves forward. No I/O, no clock.

A total is the sum of adopted usage (``adopted``), the closed ticks, and a **part** for each open
tick. A fold sums the records of open ticks again each time. The part of a closed tick stays in the
total and is no longer kept by itself.

The journal only grows; corrections are records, too. If a part would shrink, the reading is older
than the stored total: read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pricekeeper.metering.counters import NOTHING, Counters

Sums = Mapping[int, Counters]


class Behind(Exception):  # noqa: N818 - no error: the caller reads again
    """The reading is older than the stored total."""


class Fold(msgspec.Struct, frozen=True):
    """A total and its parts."""

    total: Counters = NOTHING
    adopted: Counters = NOTHING
    """Counted by another service (`metering.adopting`)."""
    closed: int = -1
    parts: dict[int, Counters] = {}
    rev: int = 0

    def forward(self, found: Sums, through: int, closable: int, first: int = 0) -> Fold | None:
        """The total with these sums; ``None`` if that changes nothing.

        ``found`` has every open tick from ``first`` to ``through``, read when ticks up to
        ``closable`` could get no more records. Raises `Behind` if a part would shrink.
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
        return Fold(total, self.adopted, closed, parts, self.rev + 1)

    def with_adopted(self, adopted: Counters) -> Fold | None:
        """``None`` if nothing changes."""
        joined = self.adopted.joined(adopted)
        if joined == self.adopted:
            return None
        total = self.total - self.adopted + joined
        return msgspec.structs.replace(self, total=total, adopted=joined, rev=self.rev + 1)

    def counters_with(self, found: Sums) -> Counters:
        fresh = add_up(sums for tick, sums in found.items() if tick > self.closed)
        return self.total.joined(self.total - add_up(self.parts.values()) + fresh)

    def rebuilt(self, found: Sums, closable: int) -> Fold | None:
        """The total made from every tick of its day; ``None`` if nothing changes.

        It never shrinks. ``found`` was read after this total. This reopens a tick that was closed
        too early because a clock was ahead.
        """
        parts = {tick: sums for tick, sums in found.items() if tick > closable}
        total = self.total.joined(add_up(found.values()) + self.adopted)
        made = Fold(total, self.adopted, closable, parts, self.rev)
        return None if made == self else msgspec.structs.replace(made, rev=self.rev + 1)


def add_up(sums: Iterable[Counters]) -> Counters:
    """The sum of these counters."""
    total = NOTHING
    for one in sums:
        total += one
    return total
