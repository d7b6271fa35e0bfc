"""Many entries, some at a time: so much is under way at once, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

_Entry = TypeVar("_Entry")
_T = TypeVar("_T")


def in_groups(entries: Sequence[_Entry], size: int) -> Iterator[Sequence[_Entry]]:
    """The entries in their order, so many at a time."""
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


async def gather_in_groups(
    run: Callable[[_Entry], Awaitable[_T]], entries: Sequence[_Entry], size: int
) -> list[_T]:
    """Run it for each entry, a group at once; the results are in order. The first error ends it."""
    results: list[_T] = []
    for some in in_groups(entries, size):
        results += await asyncio.gather(*map(run, some))
    return results
