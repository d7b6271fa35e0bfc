"""Blocks of tokens, taken from a hot bucket in one write and spent from memory.

One item takes about a thousand writes a second on DynamoDB. An instance that prefetches takes
enough for many requests like the one at hand, and serves those to come without a write.

**The bound.** Nothing is admitted that the bucket has not granted: a block is taken like any
other request, and only what was taken is spent. But it is spent later than it was taken, by
up to ``hold_ms``, and the bucket refills meanwhile. So where promise 3 says
``capacity + rate * (t + 2 * skew)`` over any window, with prefetching it is
``capacity + rate * (t + 2 * skew + hold)``. After ``hold_ms`` what is left of a block goes back
to the bucket, as it does on close. A crash loses what was in memory, at most `BLOCKS_MAX`
blocks per bucket and kind of request, until it refills.

**Fairness.** A block is at most half of what the bucket holds at the moment, so the next
request finds some, and an idle instance keeps nothing for longer than ``hold_ms``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.errors import OverloadedError, StoreError
from pricekeeper.limiter.bucket import Debit, Denial, status
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.commands import Debited
from pricekeeper.limiter.completion import Completion
from pricekeeper.limiter.lease_accounts import UnnamedAccount
from pricekeeper.limiter.requests import CheckedRequest, Kind
from pricekeeper.limiter.worker import Workers

HOLD_MS: Final = 1_000
"""How long a token stays in memory before it is spent or goes back."""
BLOCKS_MAX: Final = 2
"""Blocks for one kind of request in memory: the newest, and the rest of the one before."""
LOW_PART: Final = 4
"""The next block is fetched while the last quarter of this one is being spent."""
KINDS_MAX: Final = 10_000
"""Kinds of request that an instance has blocks for; others are served without."""
RETURNING_MAX: Final = 64
"""Blocks that are returned at the same time; the others wait."""


class PrefetchedBlock:
    """Tokens that were taken and not yet spent."""

    __slots__ = ("expires_at_ms", "left", "low", "open", "request")

    def __init__(self, request: CheckedRequest, *, times: int, expires_at_ms: int) -> None:
        self.request = request
        """The request that it was fetched for; the next block is fetched for the same."""
        self.left = {name: count * times for name, count in request.tokens.items()}
        self.low = {name: count // LOW_PART for name, count in self.left.items()}
        """When to fetch the next one; empty once that was tried."""
        self.expires_at_ms = expires_at_ms
        """On the monotonic clock of this process."""
        self.open = True

    def spend(self, tokens: Mapping[str, int], now_ms: int) -> bool:
        """Take these out of the block, those below zero into it; returns whether it had them."""
        if not self.open or now_ms >= self.expires_at_ms:
            return False
        left = self.left
        for name, count in tokens.items():
            if left.get(name, 0) < count:
                return False
        for name, count in tokens.items():
            left[name] = left.get(name, 0) - count
        return True

    def check_low_once(self) -> bool:
        """Returns whether it is time to fetch the next block; true only once."""
        for name, count in self.low.items():
            if self.left[name] < count:
                self.low = {}
                return True
        return False


class BlockAccount(UnnamedAccount):
    """The account of a lease out of a block; tokens go back there while the block is open."""

    def __init__(
        self, workers: Workers, clock: Clock, block: PrefetchedBlock, tokens: Mapping[str, int]
    ) -> None:
        super().__init__(workers, block.request.debits, tokens)
        self._clock = clock
        self._block = block

    async def _move(self, delta: Mapping[str, int]) -> Mapping[str, int]:
        if self._block.spend(delta, self._clock.monotonic_ms()):
            return delta
        return await super()._move(delta)


class _BlockQueue:
    """The blocks for one kind of request, oldest first; requests wait while one is ``fetching``."""

    __slots__ = ("blocks", "fetching")

    def __init__(self) -> None:
        self.blocks: list[PrefetchedBlock] = []
        self.fetching: asyncio.Event | None = None


class Pool:
    """Every block that this instance has in memory."""

    def __init__(
        self, cache: BucketCache, workers: Workers, completion: Completion, *, hold_ms: int
    ) -> None:
        self._cache = cache
        self._workers = workers
        self._completion = completion
        self._hold_ms = hold_ms
        self._queues: dict[Kind, _BlockQueue] = {}
        self._returning = asyncio.Semaphore(RETURNING_MAX)
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    def spend(self, request: CheckedRequest) -> PrefetchedBlock | None:
        """Serve a request from memory if there is enough; returns the block. Never waits."""
        queue = self._queues.get(request.kind) if request.prefetch > 1 else None
        block = None if queue is None else self._spend(queue, request.tokens)
        if queue is None or block is None:
            return None
        if block is queue.blocks[-1] and block.check_low_once():
            self._completion.start(self._fetch_ahead(queue, block.request))
        self._cache.meter.granted += 1
        self._cache.meter.prefetched += 1
        return block

    async def fetch(
        self, request: CheckedRequest
    ) -> tuple[UnnamedAccount, Debited | None] | Denial:
        """Take a block for many requests like this one, and serve this one from it.

        If several come at once, one fetches and the others wait for it. Those that the block has
        no tokens left for take their own, and so does a request without ``prefetch``. ``None`` for
        `Debited` means that another one fetched it.
        """
        kind, tokens = request.kind, request.tokens
        no_room = kind not in self._queues and len(self._queues) >= KINDS_MAX
        if request.prefetch == 1 or self._closed or no_room:
            return await self._take(request)
        queue = self._queues.setdefault(kind, _BlockQueue())
        others = queue.fetching
        if others is not None:
            await others.wait()
        block = self._spend(queue, tokens)
        if block is not None:
            return self.account(block, tokens), None
        if others is not None:
            return await self._take(request)
        with self._fetching(kind, queue):
            fetched = await self._fetch(queue, request, served=1)
        if fetched is None:
            return await self._take(request)
        block, taken = fetched
        return self.account(block, tokens), taken

    def account(self, block: PrefetchedBlock, tokens: Mapping[str, int]) -> BlockAccount:
        """The account of a lease that was served from that block."""
        return BlockAccount(self._workers, self._cache.clock, block, tokens)

    async def close(self) -> None:
        """Start to give everything back. From then on nothing is fetched ahead."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        for kind, queue in tuple(self._queues.items()):
            while queue.blocks:
                self._give_back(queue.blocks.pop())
            self._tidy(kind)

    def _spend(self, queue: _BlockQueue, tokens: Mapping[str, int]) -> PrefetchedBlock | None:
        now_ms = self._cache.clock.monotonic_ms()
        for block in queue.blocks:
            if block.spend(tokens, now_ms):
                return block
        return None

    @contextmanager
    def _fetching(self, kind: Kind, queue: _BlockQueue) -> Iterator[None]:
        """While this lasts, requests that find no tokens wait for it to end."""
        queue.fetching = done = asyncio.Event()
        try:
            yield
        finally:
            queue.fetching = None
            done.set()
            self._tidy(kind)

    async def _fetch_ahead(self, queue: _BlockQueue, request: CheckedRequest) -> None:
        """Fetch the next block before this one is spent, so that nobody has to wait for it."""
        kind = request.kind
        if queue.fetching is not None or self._queues.get(kind) is not queue or self._closed:
            return
        with (
            self._fetching(kind, queue),
            suppress(StoreError, OverloadedError),
        ):  # the next request will see it
            await self._fetch(queue, request, served=0)

    async def _fetch(
        self, queue: _BlockQueue, request: CheckedRequest, *, served: int
    ) -> tuple[PrefetchedBlock, Debited] | None:
        """Take a block and put it into the queue, less what it served; ``None`` if denied."""
        times = self._affordable(request)
        if times == 1:
            return None
        taken_at_ms = self._cache.clock.monotonic_ms()
        debits = [
            debit.with_tokens({name: count * times for name, count in debit.tokens.items()})
            for debit in request.nonempty_debits
        ]
        taken = await self._workers.take(request.debits, debits)
        if isinstance(taken, Denial):
            return None
        block = PrefetchedBlock(
            request, times=times - served, expires_at_ms=taken_at_ms + self._hold_ms
        )
        self._enqueue(queue, block)
        return block, taken

    async def _take(self, request: CheckedRequest) -> tuple[UnnamedAccount, Debited] | Denial:
        taken = await self._workers.take(request.debits, request.nonempty_debits)
        if isinstance(taken, Denial):
            return taken
        return UnnamedAccount(self._workers, request.debits, request.tokens), taken

    def _affordable(self, request: CheckedRequest) -> int:
        """How many requests to take for: at most half of what the cached buckets hold."""
        now_ms = self._cache.clock.now_ms()
        times = request.prefetch
        for debit in request.nonempty_debits:
            bucket = self._cache.recall(debit.key)
            if bucket is None:
                return 1
            statuses = status(bucket, debit.limits, now_ms)
            for name, count in debit.tokens.items():
                if count:
                    times = min(times, statuses[name].remaining // (2 * count))
        return max(1, times)

    def _enqueue(self, queue: _BlockQueue, block: PrefetchedBlock) -> None:
        if self._closed:  # while we were fetching
            self._give_back(block)
            return
        queue.blocks.append(block)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep(), name="pricekeeper-prefetch")
        while len(queue.blocks) > BLOCKS_MAX:
            self._give_back(queue.blocks.pop(0))

    async def _sweep(self) -> None:
        """Give back the blocks that were held too long, until no block is held."""
        while self._queues:
            now_ms = self._cache.clock.monotonic_ms()
            held = [block for queue in self._queues.values() for block in queue.blocks]
            next_ms = min((block.expires_at_ms for block in held), default=now_ms + self._hold_ms)
            if next_ms > now_ms:
                await self._cache.clock.sleep_ms(next_ms - now_ms)
            for kind, queue in tuple(self._queues.items()):
                while queue.blocks and queue.blocks[0].expires_at_ms <= now_ms:  # oldest first
                    self._give_back(queue.blocks.pop(0))
                self._tidy(kind)

    def _give_back(self, block: PrefetchedBlock) -> None:
        """Close the block and start to return what is left of it; nobody waits for that."""
        block.open = False
        back = {name: -count for name, count in block.left.items() if count}
        if back:
            self._completion.start(self._return_tokens(block.request.debits, back))

    async def _return_tokens(self, debits: Sequence[Debit], back: Mapping[str, int]) -> None:
        async with self._returning:
            try:
                await self._workers.move(debits, back)
            except (StoreError, OverloadedError):
                self._cache.meter.refunds_lost += 1  # they refill

    def _tidy(self, kind: Kind) -> None:
        queue = self._queues.get(kind)
        if queue is not None and not queue.blocks and queue.fetching is None:
            del self._queues[kind]
