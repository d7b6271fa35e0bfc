"""Several executions at once, of which those with equal keys follow each other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def gather_in_turn(keys: Sequence[str], run: Callable[[int], Awaitable[_T]]) -> list[_T]:
    """Run each number at once, those of one key in their order; the results are in order, too."""
    results: dict[int, _T] = {}

    async def run_all(numbers: Sequence[int]) -> None:
        for number in numbers:
            results[number] = await run(number)

    by_key = defaultdict[str, list[int]](list)
    for number, key in enumerate(keys):
        by_key[key].append(number)
    await asyncio.gather(*map(run_all, by_key.values()))
    return [results[number] for number in range(len(keys))]
