"""Counts the work of a function in calls, which no busy machine changes."""

import sys
from collections.abc import Callable


def calls(work: Callable[[], object]) -> int:
    """How many functions were called, of Python and of C."""
    made = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made
