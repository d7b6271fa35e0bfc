"""One deadline for each request, through everything that is done for it.

When it comes, whatever the request waits for is cancelled: reads, retries and their pauses, its
place in a queue. Work that is shared with other requests goes on without it: a commit, a sum, a
write of a lease. The answer is 503, and it says whether the request may have been applied all the
same. The time in which a body arrives does not count, because it is not ours to shorten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from pricekeeper.errors import DeadlineExceededError


class Deadline:
    """Use as ``async with``; raises `DeadlineExceededError` where the time is up."""

    __slots__ = ("_timeout", "may_be_applied")

    def __init__(self, deadline_ms: int) -> None:
        self._timeout = asyncio.timeout(deadline_ms / 1000)
        self.may_be_applied = False
        """Whether the request has got to where it changes something."""

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise DeadlineExceededError(may_be_applied=self.may_be_applied) from None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of this block."""
        due, loop = self._timeout.when(), asyncio.get_running_loop()
        if due is None or self._timeout.expired():
            yield
            return
        left = due - loop.time()
        self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._timeout.reschedule(loop.time() + left)
