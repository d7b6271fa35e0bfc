"""Tells the service what waits in the spool: in batches, in the background, until it knows.

What came while a batch was under way goes with the next one. A service that does not answer is
asked again after pauses that double; an entry that it refuses for good is set aside.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pricekeeper.client.errors import (
    ForbiddenError,
    MissingError,
    RateLimitedError,
    RejectedError,
    ServiceError,
    UnavailableError,
)
from pricekeeper.client.spool import Entry, Spool
from pricekeeper.clock import Clock
from pricekeeper.concurrency import full_jitter_ms

BATCH_MAX: Final = 100
VOIDS_AT_ONCE: Final = 8
PAUSE_MS: Final = 200
PAUSE_MS_MAX: Final = 30_000
ADOPT_EVERY_MS: Final = 60_000
"""How often files of processes that are gone are looked for."""
VOID_UNKNOWN_MS: Final = 120_000
"""For how long an authorization that the service does not know is voided again: the request for it
may still be on its way."""
LATER: Final = frozenset(
    {"STORE_UNAVAILABLE", "RATE_LIMIT_EXCEEDED", "CLOCK_IN_DOUBT", "SESSION_RACE"}
)
"""The codes of entries that may be told later."""

_log = logging.getLogger("pricekeeper")


class Reports(Protocol):
    """What is needed of `client.api.Api`."""

    async def capture_many(self, captures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Capture several authorizations."""
        ...

    async def record_many(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Count several usage records."""
        ...

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None:
        """Give back what an authorization holds."""
        ...


class Teller:
    """The background work on one spool. Lives on one event loop."""

    def __init__(
        self, spool: Spool, reports: Reports, clock: Clock, on_answer: Callable[[], None]
    ) -> None:
        self._spool = spool
        self._reports = reports
        self._clock = clock
        self._on_answer = on_answer
        self._wake = asyncio.Event()
        self._told = asyncio.Condition()
        self._failures = 0
        self._answers: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._adopt_at_ms = 0

    def wake(self) -> None:
        """Begin now: there is something to tell."""
        self._wake.set()

    def expect(self, entry_id: str) -> asyncio.Future[Mapping[str, Any]]:
        """The service's answer to an entry that is about to be told."""
        expected: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[entry_id] = expected
        expected.add_done_callback(lambda _: self._answers.pop(entry_id, None))
        return expected

    async def flush(self) -> None:
        """Wait until nothing is left to tell."""
        async with self._told:
            self.wake()
            await self._told.wait_for(lambda: not len(self._spool))

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            self._wake.clear()
            await self._adopt()
            if not len(self._spool):
                await self._pause(ADOPT_EVERY_MS)
                continue
            try:
                later = await self._tell(self._spool.pending(BATCH_MAX))
            except ServiceError as error:
                await self._wait_for(error)
                continue
            self._failures = 0
            self._on_answer()
            async with self._told:
                self._told.notify_all()
            if later and len(self._spool) <= later:  # nothing but entries that were put off
                await self._clock.sleep_ms(1_000)

    async def _adopt(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._adopt_at_ms:
            return
        self._adopt_at_ms = now_ms + ADOPT_EVERY_MS
        taken = await _in_thread(self._spool.adopt)
        if taken:
            _log.info("%d entries of a process that is gone were taken over", taken)

    async def _pause(self, longest_ms: int) -> None:
        """Wait until somebody calls, or that time has passed."""
        waiting = [
            asyncio.create_task(self._wake.wait()),
            asyncio.create_task(self._clock.sleep_ms(longest_ms)),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait_for(self, error: ServiceError) -> None:
        self._failures += 1
        if self._failures == 1 or isinstance(error, ForbiddenError):
            waiting = len(self._spool)
            _log.warning("%d entries wait to be told to the price keeper: %s", waiting, error)
        failures = self._failures if isinstance(error, UnavailableError | RateLimitedError) else 16
        pause_ms = full_jitter_ms(
            failures, first_ms=PAUSE_MS, longest_ms=PAUSE_MS_MAX, randbelow=secrets.randbelow
        )
        await self._clock.sleep_ms(PAUSE_MS + pause_ms)

    async def _tell(self, batch: Sequence[Entry]) -> int:
        """Tell some entries; how many must be told later. Raises if nothing got through."""
        await _in_thread(self._spool.sync)
        by_kind: dict[str, list[Entry]] = {"capture": [], "usage": [], "void": []}
        for entry in batch:
            by_kind[entry.kind].append(entry)
        later = 0
        if captures := by_kind["capture"]:
            bodies = [{"authorization_id": one.id, **one.body} for one in captures]
            later += await self._settle(captures, self._reports.capture_many(bodies))
        if records := by_kind["usage"]:
            bodies = [{"request_id": one.id, **one.body} for one in records]
            later += await self._settle(records, self._reports.record_many(bodies))
        voids = by_kind["void"]
        for start in range(0, len(voids), VOIDS_AT_ONCE):
            some = voids[start : start + VOIDS_AT_ONCE]
            later += sum(await asyncio.gather(*(self._void(one) for one in some)))
        return later

    async def _settle(self, entries: Sequence[Entry], answer: Any) -> int:
        """Act on the answer to a batch, entry by entry."""
        try:
            results = (await answer)["results"]
        except (MissingError, RejectedError) as error:
            results = [{"status": "failed", "code": error.code, "detail": str(error)}] * len(
                entries
            )
        later, done = 0, []
        for entry, result in zip(entries, results, strict=True):
            if result["status"] != "failed":
                done.append(entry.id)
                self._answer(entry.id, result)
            elif result["code"] in LATER:
                later += 1
                self._spool.postpone(entry)
            else:
                self._spool.refuse(entry, f"{result['code']}: {result.get('detail', '')}")
                self._answer(entry.id, result)
        self._spool.finish(done)
        return later

    async def _void(self, entry: Entry) -> int:
        try:
            await self._reports.void(entry.id, reason=entry.body.get("reason"))
        except MissingError:
            if self._clock.now_ms() - entry.at_ms < VOID_UNKNOWN_MS:
                self._spool.postpone(entry)
                return 1
        except RejectedError as error:
            self._spool.refuse(entry, str(error))
            return 0
        self._spool.finish([entry.id])
        return 0

    def _answer(self, entry_id: str, result: Mapping[str, Any]) -> None:
        expected = self._answers.get(entry_id)
        if expected is not None and not expected.done():
            expected.set_result(result)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Have the disk waited for by a thread."""
    try:
        return await asyncio.to_thread(work)
    except RuntimeError:  # the interpreter is ending, and lets nobody start a thread any more
        return work()
