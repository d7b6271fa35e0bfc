"""What the log says has become of an authorization, in a few letters. No I/O, no clock.

======================== ===========================================================
``o{until}``             it is open, and was extended until then
``u{expired}``           it expired then, and nobody has settled it
``c{sheet}.{number}``    it was captured: where its record is
``v{at}.{reason}``       it was voided then, and why
======================== ===========================================================

Times are in milliseconds, numbers in hexadecimal digits. A sheet is named by the start of its sort
key.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from pricekeeper.authorizations.authorization import Authorization, Settlement, State
from pricekeeper.authorizations.grants import settlement_of
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.journal import Record
from pricekeeper.ticks import REGION_DIGITS

_OPEN, _UNSETTLED, _CAPTURED, _VOIDED = "o", "u", "c", "v"
_HEX: Final = 16


class RecordPlace(NamedTuple):
    """Where the record of a captured authorization is."""

    prefix: str
    """What the sort key of its sheet starts with."""
    number: int

    @property
    def region(self) -> str:
        """The region in whose partition the sheet is."""
        return self.prefix[1 : 1 + REGION_DIGITS]


def extended(until_ms: int) -> str:
    """It is held for longer."""
    return f"{_OPEN}{until_ms:x}"


def unsettled(expired_at_ms: int) -> str:
    """It expired at that time, and is charged at its hold."""
    return f"{_UNSETTLED}{expired_at_ms:x}"


def captured(sheet: str, number: int) -> str:
    """Its record is on that sheet, named by the start of its sort key, under that number."""
    return f"{_CAPTURED}{sheet}.{number:x}"


def voided(at_ms: int, reason: str) -> str:
    """It was voided at that time."""
    return f"{_VOIDED}{at_ms:x}.{reason}"


def record_place(outcome: str) -> RecordPlace | None:
    """Where the record is, if that is the outcome of a captured authorization."""
    if outcome[:1] != _CAPTURED:
        return None
    prefix, _, number = outcome[1:].partition(".")
    return RecordPlace(prefix, int(number, _HEX))


def with_outcome(
    granted: Authorization, outcome: str, record: Record | None = None
) -> Authorization:
    """The authorization after that. Of one that was captured, ``record`` tells the settlement.

    Raises `UnreadableItemError` if the outcome says nothing.
    """
    if not outcome:
        return granted
    kind, rest = outcome[:1], outcome[1:]
    replace = msgspec.structs.replace
    try:
        if kind == _OPEN:
            return replace(granted, expires_at_ms=int(rest, _HEX), outcome=outcome)
        if kind == _UNSETTLED:
            expired_at_ms = int(rest, _HEX)
            return replace(
                granted, state=State.UNSETTLED, expires_at_ms=expired_at_ms, outcome=outcome
            )
        if kind == _CAPTURED:
            settlement = None if record is None else settlement_of(record)
            return replace(granted, state=State.CAPTURED, settlement=settlement, outcome=outcome)
        if kind == _VOIDED:
            at, _, reason = rest.partition(".")
            settlement = Settlement(int(at, _HEX), reason=reason)
            return replace(granted, state=State.VOIDED, settlement=settlement, outcome=outcome)
    except ValueError as error:
        raise UnreadableItemError(f"{outcome[:40]!r} is no outcome") from error
    raise UnreadableItemError(f"{outcome[:40]!r} is no outcome")
