"""The garbage collector of a process that serves: no long pauses between requests.

A full collection looks at every container object there is. Most of them are modules, types and
functions that live as long as the process; with them it took up to 60 ms, in which the event loop
stands still, and under load collections took a sixth of the processor. So what is there at the
start is left out for good, and young objects are looked at less often: nearly all of them are
freed by their reference counts anyway.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 20, 20)
"""New objects before the youngest are looked at (a millisecond), and how often with older ones."""


def collect_garbage_less_often() -> None:
    """Also leave out what exists now for good. Call it once, when all is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
