"""How soon a worker sends its next transaction. No I/O, no clock.

Alone, an instance sends one after the other. Instances that share an organisation get into each
other's way: DynamoDB refuses a transaction on an item that another one is about to change, and one
that was decided on an item which has changed is decided anew. Whoever sends without a pause then
leaves the others no moment to come in. So a worker that notices others pauses after each
transaction, longer the more often it notices them, and what arrives meanwhile shares the next one.
One that has not noticed anybody looks every now and then, since whoever is always first is never
refused, and leaves a gap of half a transaction. A transaction that took long is a reason to look,
but not to pause: the store alone may be slow.

A store that answers at once has no conflicts, and needs none of this: an embedded one.

Bounds: `PAUSE_MS_MAX`.
"""

from __future__ import annotations

from random import Random
from typing import Final

PAUSE_MS_FIRST: Final = 16
PAUSE_MS_MAX: Final = 128
LOOK_EVERY: Final = 16
"""Transactions after which a worker that has noticed nobody reads what they would have changed."""
_EASE: Final = 16
"""A transaction that met nobody makes the pause shorter by this part of it."""
_AT_ONCE_MS: Final = 1
_SLOW_MS: Final = 8
"""A transaction may have met somebody if it took twice as long as the fastest, and this more."""


class Pace:
    """What a worker has noticed of others."""

    def __init__(self) -> None:
        self._pause_ms = 0
        self._fastest_ms: int | None = None
        self._sent_unseeing = 0

    @property
    def must_look(self) -> bool:
        """Whether to read what others may have changed: they were noticed lately, or it is time."""
        others = self._pause_ms > 0 or self._sent_unseeing >= LOOK_EVERY
        return others and not self._is_at_once

    def note_look(self) -> None:
        """It was read."""
        self._sent_unseeing = 0

    def note_sent(self, took_ms: int) -> None:
        """A transaction is applied, after so long."""
        self._sent_unseeing += 1
        fastest_ms = took_ms if self._fastest_ms is None else self._fastest_ms
        if took_ms > 2 * fastest_ms + _SLOW_MS:
            self._sent_unseeing = LOOK_EVERY  # others were in its way, or the store was slow
        self._pause_ms -= -(-self._pause_ms // _EASE)
        self._fastest_ms = min(took_ms, fastest_ms + 1)  # it may have become slower for good

    def note_others(self) -> None:
        """Another writer has come first, or has changed what was seen last."""
        self._pause_ms = min(PAUSE_MS_MAX, max(PAUSE_MS_FIRST, 2 * self._pause_ms))

    def pause_ms(self, random: Random, full: int) -> int:
        """How long to pause before the next one, if so many that are full wait already."""
        if self._is_at_once:
            return 0
        gap_ms = min(PAUSE_MS_MAX, (self._fastest_ms or 0) // 2)
        pause_ms = max(self._pause_ms, gap_ms) >> full
        return random.randint(pause_ms // 2, pause_ms)

    @property
    def _is_at_once(self) -> bool:
        return self._fastest_ms is None or self._fastest_ms <= _AT_ONCE_MS
