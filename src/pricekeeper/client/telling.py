"""Reports the spool's entries to the service, in batches, in the background.

Pauses double while the service does not answer. Entries refused for good are set aside, and one
that spoils its batch is isolated.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

from pricekeeper.client.errors import (
    ForbiddenError,
    MissingError,
    RateLimitedError,
    RejectedError,
    ServiceError,
    UnavailableError,
)
from pricekeeper.client.snapshot import is_model_id
from pricekeeper.client.spool import Spool, SpoolEntry
from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff, BoundedCache, wait_or_wake
from pricekeeper.wire.bounds import BATCH_MAX

VOIDS_AT_ONCE: Final = 8
BACKOFF: Final = Backoff(200, 30_000)
GATHER_MS: Final = 100
"""How long to gather entries that no caller waits for."""
LATER_MS: Final = 1_000
"""The pause if everything was put off."""
ADOPT_EVERY_MS: Final = 60_000
"""How often to look for ended processes' files."""
VOID_UNKNOWN_MS: Final = 120_000
"""How long to repeat an unknown void: its authorization may still be under way."""
TIMESTAMP_MS_MAX: Final = 24 * 3_600_000 - 300_000
"""Older entries are sent without a timestamp, and count on arrival."""
LATER: Final = frozenset(
    {"STORE_UNAVAILABLE", "RATE_LIMIT_EXCEEDED", "CLOCK_IN_DOUBT", "SESSION_RACE"}
)
"""Codes of entries that may be reported later."""
LABELS_MAX: Final = 256

Results: TypeAlias = Sequence[Mapping[str, Any]]
Send: TypeAlias = Callable[[Sequence[SpoolEntry]], Awaitable[Any]]
_log = logging.getLogger("pricekeeper")


class Reports(Protocol):
    """The used operations of `client.api.Api`."""

    async def capture_many(self, captures: Sequence[Mapping[str, Any]]) -> Any: ...

    async def record_many(self, records: Sequence[Mapping[str, Any]]) -> Any: ...

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None: ...

    async def label_of(self, model: str) -> str | None: ...


class Teller:
    """The background work on one spool, on one event loop."""

    def __init__(
        self,
        spool: Spool,
        reports: Reports,
        clock: Clock,
        on_answer: Callable[[], None],
        on_told: Callable[[Sequence[SpoolEntry]], None] = lambda _: None,
    ) -> None:
        self._spool = spool
        self._reports = reports
        self._clock = clock
        self._on_answer = on_answer
        self._on_told = on_told
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._hurried = 0
        """Entries up to this number are not gathered."""
        self._resume = asyncio.Event()
        self._told = asyncio.Condition()
        self._failures = 0
        self._batch_max = BATCH_MAX
        self._answers: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._adopt_at_ms = 0
        self._is_through = False
        """Whether all entries are put off, or our credentials refused."""
        self._asked_at_ms: int | None = None
        self._unknown_since_ms: dict[int, int] = {}
        self._labels: BoundedCache[str, str] = BoundedCache(LABELS_MAX)
        """The labels of ids that were recorded in their place."""

    def wake(self) -> None:
        self._wake.set()

    @property
    def is_awake(self) -> bool:
        """Whether new entries are reported without `wake`. For any thread."""
        return self._wake.is_set()

    def hurry(self) -> None:
        self._hurried = self._spool.last_number
        self._wake.set()
        self._hurry.set()

    def resume(self) -> None:
        self._resume.set()

    @property
    def unanswered_ms(self) -> int:
        """How long the current report has had no answer."""
        asked_at_ms = self._asked_at_ms
        return 0 if asked_at_ms is None else self._clock.monotonic_ms() - asked_at_ms

    def expect(self, entry: SpoolEntry) -> asyncio.Future[Mapping[str, Any]]:
        """The service's answer to an entry just appended."""
        expected: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[entry.number] = expected
        expected.add_done_callback(lambda _: self._answers.pop(entry.number, None))
        self.hurry()
        return expected

    async def flush(self) -> None:
        """Wait until no entry is left that the service takes now, also of ended processes."""
        async with self._told:
            self._adopt_at_ms, self._is_through = 0, False
            self.hurry()
            self.resume()
            await self._told.wait_for(self._is_flushed)

    def _is_flushed(self) -> bool:
        return self._adopt_at_ms > 0 and (not len(self._spool) or self._is_through)

    async def run(self) -> None:
        while True:
            await self._gather()
            self._wake.clear()
            self._resume.clear()
            try:
                await self._adopt()
                later = await self._tell(self._spool.pending(self._batch_max))
            except Exception as error:  # noqa: BLE001 - the entries are still there
                await self._wait_after(error)
                continue
            self._is_through = bool(later) and len(self._spool) <= later
            async with self._told:
                self._told.notify_all()
            if not len(self._spool):
                await self._pause(self._wake, ADOPT_EVERY_MS)
            elif self._is_through:
                await self._pause(self._wake, LATER_MS)

    async def _gather(self) -> None:
        self._hurry.clear()
        waiting = self._spool.pending(BATCH_MAX)
        if 0 < len(waiting) < BATCH_MAX and all(one.number > self._hurried for one in waiting):
            await self._pause(self._hurry, GATHER_MS)

    async def _adopt(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._adopt_at_ms:
            return
        self._adopt_at_ms = now_ms + ADOPT_EVERY_MS
        taken = await asyncio.to_thread(self._spool.adopt)
        if taken:
            _log.info("%d entries of a process that is gone were taken over", taken)

    async def _pause(self, event: asyncio.Event, longest_ms: int) -> None:
        await wait_or_wake(self._clock.sleep_ms(longest_ms), event)

    async def _wait_after(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1 or not isinstance(error, UnavailableError):
            waiting = len(self._spool)
            _log.warning("%d entries wait to be reported to the price keeper: %r", waiting, error)
        if _may_be_an_entrys(error):  # fewer at once isolate it
            if self._batch_max == 1:
                for entry in self._spool.pending(1):
                    self._spool.postpone(entry)
            self._batch_max = max(1, self._batch_max // 2)
        if isinstance(error, ForbiddenError):  # these credentials can report nothing
            self._is_through = True
            async with self._told:
                self._told.notify_all()
        pause_ms = BACKOFF.pause_ms(self._failures, secrets.randbelow)
        await self._pause(self._resume, BACKOFF.first_ms + pause_ms)

    async def _tell(self, batch: Sequence[SpoolEntry]) -> int:
        """Report entries; returns how many were put off. Raises if none got through."""
        if not batch:
            return 0
        await asyncio.to_thread(self._spool.sync)
        by_kind: dict[str, list[SpoolEntry]] = {"capture": [], "usage": [], "void": []}
        for entry in batch:
            by_kind[entry.kind].append(entry)
        self._asked_at_ms = self._clock.monotonic_ms()
        try:
            later = await self._settle(by_kind["capture"], self._send_captures)
            later += await self._settle(by_kind["usage"], self._send_records)
            voids = by_kind["void"]
            for start in range(0, len(voids), VOIDS_AT_ONCE):
                some = voids[start : start + VOIDS_AT_ONCE]
                later += sum(await asyncio.gather(*(self._void(one) for one in some)))
        finally:
            self._asked_at_ms = None
        return later

    async def _send_captures(self, entries: Sequence[SpoolEntry]) -> Any:
        return await self._reports.capture_many(
            [{"authorization_id": one.id, **one.body} for one in entries]
        )

    async def _send_records(self, entries: Sequence[SpoolEntry]) -> Any:
        return await self._reports.record_many([self._record_of(one) for one in entries])

    def _record_of(self, entry: SpoolEntry) -> dict[str, Any]:
        record = {"request_id": entry.id, **entry.body}
        if entry.at_ms <= self._clock.now_ms() - TIMESTAMP_MS_MAX:
            record.pop("timestamp", None)
        label = self._labels.get(_model_of(entry))
        return record if label is None else {**record, "model_label": label}

    async def _settle(self, entries: Sequence[SpoolEntry], send: Send) -> int:
        """Report entries, settle each result; returns how many were put off."""
        if not entries:
            return 0
        try:
            answer = await send(entries)
        except (MissingError, RejectedError) as error:
            if not _is_of_the_service(error):
                raise
            if len(entries) > 1 and isinstance(error, RejectedError):
                # One entry causes the refusal: a half without it is accepted.
                middle = len(entries) // 2
                later = await self._settle(entries[:middle], send)
                return later + await self._settle(entries[middle:], send)
            failed = {"status": "failed", "code": error.code, "detail": str(error)}
            answer = {"results": [failed] * len(entries)}
        self._note_answer()
        return await self._act_on(entries, answer["results"])

    async def _act_on(self, entries: Sequence[SpoolEntry], results: Results) -> int:
        later, done, refused = 0, [], []
        for entry, result in zip(entries, results, strict=True):
            if result["status"] != "failed":
                done.append(entry)
                self._answer(entry, result)
            elif result["code"] in LATER:
                later += 1
                self._spool.postpone(entry)
            else:
                refused.append((entry, result))
        self._spool.finish(done)
        known = {_model_of(entry) for entry, _ in refused if _model_of(entry) in self._labels}
        for entry, result in refused:
            if _model_of(entry) not in known and await self._may_have_a_label(entry):
                self._spool.postpone(entry)
                later += _model_of(entry) not in self._labels
            else:
                self._spool.refuse(entry, f"{result['code']}: {result.get('detail', '')}")
                self._answer(entry, result)
                done.append(entry)
        self._on_told(done)
        return later

    async def _may_have_a_label(self, entry: SpoolEntry) -> bool:
        """Look up the label of an id recorded in its place; returns whether to retry."""
        model = _model_of(entry)
        if not is_model_id(model) or model in self._labels:
            return is_model_id(model)
        try:
            label = await self._reports.label_of(model)
        except RejectedError:
            return False
        if label is not None:
            self._labels.put(model, label)
        return True

    async def _void(self, entry: SpoolEntry) -> int:
        try:
            await self._reports.void(entry.id, reason=entry.body.get("reason"))
        except MissingError as error:
            if not _is_of_the_service(error):
                raise
            now_ms = self._clock.monotonic_ms()
            since_ms = self._unknown_since_ms.setdefault(entry.number, now_ms)
            if now_ms - since_ms < VOID_UNKNOWN_MS:
                self._note_answer()
                self._spool.postpone(entry)
                return 1
        except RejectedError as error:
            if not _is_of_the_service(error):
                raise
            self._spool.refuse(entry, f"{error.code}: {error}")
        self._note_answer()
        self._unknown_since_ms.pop(entry.number, None)
        self._spool.finish([entry])
        return 0

    def _note_answer(self) -> None:
        self._failures = 0
        self._batch_max = min(BATCH_MAX, self._batch_max * 2)
        self._asked_at_ms = self._clock.monotonic_ms()
        self._on_answer()

    def _answer(self, entry: SpoolEntry, result: Mapping[str, Any]) -> None:
        expected = self._answers.get(entry.number)
        if expected is not None and not expected.done():
            expected.set_result(result)


def _model_of(entry: SpoolEntry) -> str:
    return str(entry.body.get("model_label", ""))


def _is_of_the_service(error: ServiceError) -> bool:
    """Whether the service answered, not a proxy. "Too large" is final from either."""
    is_foreign = error.code.startswith("HTTP_")
    return not is_foreign or error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def _may_be_an_entrys(error: Exception) -> bool:
    """Whether one entry may cause the error, so others would get through."""
    passing = UnavailableError | RateLimitedError | ForbiddenError | MissingError | RejectedError
    return not isinstance(error, passing)
