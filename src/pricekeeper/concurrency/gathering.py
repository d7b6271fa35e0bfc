"""Runs coroutines at once, but in order for equal keys, or in groups of a given size."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

_Entry = TypeVar("_Entry")
_T = TypeVar("_T")


async def gather_in_turn(keys: Sequence[str], run: Callable[[int], Awaitable[_T]]) -> list[_T]:
    """Run each number at once, those with equal keys in order; results in order."""
    results: dict[int, _T] = {}

    async def run_all(numbers: Sequence[int]) -> None:
        for number in numbers:
            results[number] = await run(number)

    by_key = defaultdict[str, list[int]](list)
    for number, key in enumerate(keys):
        by_key[key].append(number)
    await asyncio.gather(*map(run_all, by_key.values()))
    return [results[number] for number in range(len(keys))]


async def gather_in_groups(
    run: Callable[[_Entry], Awaitable[_T]], entries: Sequence[_Entry], size: int
) -> list[_T]:
    """Run it for each entry, one group after the other; the first error ends it."""
    results: list[_T] = []
    for some in in_groups(entries, size):
        results += await asyncio.gather(*map(run, some))
    return results


def in_groups(entries: Sequence[_Entry], size: int) -> Iterator[Sequence[_Entry]]:
    """The entries in groups of at most that size."""
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


async def wait_or_wake(sleep: Coroutine[Any, Any, None], wake: asyncio.Event) -> None:
    """Wait for the sleep or the event; both waits have ended on return."""
    waits = [asyncio.create_task(sleep), asyncio.create_task(wake.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
