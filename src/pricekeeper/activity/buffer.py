"""Combines the events since the last write of the feed, by organisation. No I/O, no clock.

Noting costs a microsecond and no store call; lines of single records are made only if a feed is
watched. Bounds: `ORGS_MAX` organisations; for each of them `ROWS_MAX` apps and labels, `LINES_MAX`
lines of each kind with `LINES_BYTES_MAX` bytes, and `FEW_MAX` denials, flips and alerts. Without
room, events are marked as incomplete, so that pages read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import add
from typing import Final, TypeAlias, TypeVar

from pricekeeper.activity.event import (
    AlertNotice,
    AuthorizationChanges,
    AuthorizationLine,
    AuthorizationRow,
    Counted,
    CountedSpend,
    Denial,
    DeniedCalls,
    Event,
    Flip,
    GroupKey,
    SpendRow,
    encode,
)
from pricekeeper.wire.activity import AuthorizationStatus

ORGS_MAX: Final = 10_000
ROWS_MAX: Final = 100
LINES_MAX: Final = 20
LINES_BYTES_MAX: Final = 8 * 1024
FEW_MAX: Final = 20
OPEN: Final = "open"
UNSETTLED: Final = "unsettled"
_STATUSES: Final = {OPEN: 0, "captured": 1, "voided": 2, UNSETTLED: 3}

Pair: TypeAlias = tuple[str | None, str]
Amounts: TypeAlias = tuple[int, int, int, int, int, int, int]
"""The amounts of a `SpendRow`, in its order."""
_Few = TypeVar("_Few", Flip, AlertNotice)
_Line = TypeVar("_Line", Counted, AuthorizationLine)


class OrgNews:
    """The events of one organisation."""

    __slots__ = ("_alerts", "_changes", "_counted", "_denied", "_flips", "_lines", "_records",
                 "_spend", "is_complete")  # fmt: skip

    def __init__(self) -> None:
        self._spend: dict[Pair, list[int]] = {}
        self._records: deque[Callable[[], Counted]] = deque(maxlen=LINES_MAX)
        self._counted = 0
        self._changes: dict[Pair, list[int]] = {}
        self._lines: deque[Callable[[], AuthorizationLine]] = deque(maxlen=LINES_MAX)
        self._denied: dict[GroupKey, tuple[Denial, int]] = {}
        self._flips: list[Flip] = []
        self._alerts: list[AlertNotice] = []
        self.is_complete = True

    def note_counted(self, pair: Pair, amounts: Amounts, make: Callable[[], Counted]) -> None:
        self._counted += 1
        self._records.append(make)
        sums = self._spend.get(pair) or self._row(self._spend, pair, len(amounts))
        if sums is not None:
            sums[:] = map(add, sums, amounts)

    def note_authorization(
        self,
        pair: Pair,
        status: AuthorizationStatus,
        held_usd_picos: int,
        make: Callable[[], AuthorizationLine],
    ) -> None:
        self._lines.append(make)
        sums = self._changes.get(pair) or self._row(self._changes, pair, len(_STATUSES) + 2)
        if sums is not None:
            sums[_STATUSES[status]] += 1
            if status == OPEN:
                sums[4] += held_usd_picos
            elif status == UNSETTLED:
                sums[5] += held_usd_picos

    def note_denial(self, denial: Denial) -> None:
        known = self._denied.get(denial.key)
        if known is not None:
            self._denied[denial.key] = known[0], known[1] + 1
        elif len(self._denied) < FEW_MAX:
            self._denied[denial.key] = denial, 1
        else:
            self.is_complete = False

    def note_flip(self, flip: Flip) -> None:
        self._add(self._flips, flip)

    def note_alert(self, alert: AlertNotice) -> None:
        self._add(self._alerts, alert)

    def events(self, org_id: str, at_ms: int) -> tuple[Event, ...]:
        """First events that change decisions, then counts."""
        found: list[Event] = [*self._flips, *self._alerts]
        found += [
            DeniedCalls(org_id, at_ms, one.app_id, one.kind, one.model, one.code, count, one.why)
            for one, count in self._denied.values()
        ]
        if self._changes:
            rows = tuple(AuthorizationRow(*pair, *sums) for pair, sums in self._changes.items())
            changed = sum(sum(sums[:4]) for sums in self._changes.values())
            lines = _last_of(self._lines)
            found.append(AuthorizationChanges(org_id, at_ms, rows, lines, changed - len(lines)))
        if self._spend:
            spent = tuple(SpendRow(*pair, *sums) for pair, sums in self._spend.items())
            records = _last_of(self._records)
            found.append(CountedSpend(org_id, at_ms, spent, records, self._counted - len(records)))
        return tuple(found)

    def _add(self, few: list[_Few], one: _Few) -> None:
        if len(few) < FEW_MAX:
            few.append(one)
        else:
            self.is_complete = False

    def _row(self, rows: dict[Pair, list[int]], pair: Pair, width: int) -> list[int] | None:
        if len(rows) >= ROWS_MAX:
            self.is_complete = False
            return None
        rows[pair] = sums = [0] * width
        return sums


def _last_of(lines: Iterable[Callable[[], _Line]]) -> tuple[_Line, ...]:
    found: list[_Line] = []
    room = LINES_BYTES_MAX
    for make in reversed(tuple(lines)):
        line = make()
        room -= len(encode(line))
        if room < 0:
            break
        found.append(line)
    return tuple(reversed(found))


Taken: TypeAlias = tuple[dict[str, OrgNews], bool]


class EventBuffer:
    """The events of one process since they were last taken."""

    def __init__(self) -> None:
        self._orgs: dict[str, OrgNews] = {}
        self.is_complete = True

    def of(self, org_id: str) -> OrgNews | None:
        """The events of an organisation; ``None`` if there is no room."""
        news = self._orgs.get(org_id)
        if news is None:
            if len(self._orgs) >= ORGS_MAX:
                self.is_complete = False
                return None
            news = self._orgs[org_id] = OrgNews()
        return news

    def take(self) -> Taken:
        taken = self._orgs, self.is_complete
        self._orgs, self.is_complete = {}, True
        return taken
