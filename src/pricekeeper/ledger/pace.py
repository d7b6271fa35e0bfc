"""How soon a worker writes its next sheet. No I/O, no clock.

Alone, a process writes one sheet after the other. Processes that share an organisation race for
each number. If whoever has won sends again at once, the others, who have to learn first what it
wrote, never come in. So a worker that has written leaves as much time as the others need for as
many sheets as they wrote since its last one, and whoever has lost tries again at once: they take
turns. What arrives meanwhile shares the next sheet. One that has met nobody leaves a gap of half a
sheet's time, in which others can come first and so be noticed.

A store that answers at once needs none of this: an embedded one.

Bounds: `PAUSE_MS_MAX`.
"""

from __future__ import annotations

from random import Random
from typing import Final

PAUSE_MS_MAX: Final = 64
_AT_ONCE_MS: Final = 1


class Pace:
    """What a worker has noticed of others."""

    def __init__(self) -> None:
        self._others = 0
        """How many sheets others write for one of ours, lately at the most."""
        self._fastest_ms: int | None = None

    @property
    def must_look(self) -> bool:
        """Whether others were noticed lately, so that what is known of the log may be old."""
        return self._others > 0 and not self._is_at_once

    def note_sent(self, took_ms: int, others: int) -> None:
        """A sheet is written, after so long; others have written so many since the one before."""
        fastest_ms = took_ms if self._fastest_ms is None else self._fastest_ms
        self._others = max(others, self._others - 1)
        self._fastest_ms = min(took_ms, fastest_ms + 1)  # it may have become slower for good

    def pause_ms(self, random: Random, full: int) -> int:
        """How long to pause before the next one, if so many that are full wait already."""
        if self._is_at_once or self._fastest_ms is None:
            return 0
        pause_ms = self._fastest_ms // 2 + self._others * self._fastest_ms
        pause_ms = min(PAUSE_MS_MAX, pause_ms) >> full
        return random.randint(pause_ms // 2, pause_ms)

    @property
    def _is_at_once(self) -> bool:
        return self._fastest_ms is None or self._fastest_ms <= _AT_ONCE_MS
