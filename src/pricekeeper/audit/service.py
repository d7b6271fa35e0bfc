"""Writes changes together with their entries, in one transaction.

**Lost replies.** The transaction moves the head from one number to the next, so only one copy can
be applied. The entry with that number shows by its unique id whether it was. If that can't be read,
an `OutcomeUnknownError` is raised.

**Changes of one chain** wait for each other within a process. Of two processes, one is refused
because the head has moved, gets the new head with the refusal, and tries again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from pricekeeper.audit import items
from pricekeeper.audit.entry import Change, Head, TrailEntry
from pricekeeper.authority import Attribution
from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    ReasonCode,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.settings import AUDIT_RETENTION_DAYS_DEFAULT
from pricekeeper.storage import Store, Write, readable
from pricekeeper.storage.tables import AUDIT_TRAIL
from pricekeeper.telemetry.logs import log_change
from pricekeeper.values import new_request_id

ATTEMPTS_MAX: Final = 24
"""How often others may move the chain's head before a change gives up."""
SENDINGS_MAX: Final = 3
_BACKOFF: Final = Backoff(5, 100)
_DAY_SECS: Final = 86_400


class AuditTrail:
    """The chains of entries in one store."""

    def __init__(
        self, store: Store, clock: Clock, *, retention_days: int = AUDIT_RETENTION_DAYS_DEFAULT
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_secs = retention_days * _DAY_SECS
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(self, by: Attribution, change: Change, operations: Sequence[Write]) -> None:
        """Apply the operations and write the entry: one read and one transaction.

        Raises `TransactionCancelledError`, with reasons in their order, if a condition failed.
        Without operations, the entry records a request that needed no change.
        """
        async with self._turns.setdefault(change.chain, asyncio.Lock()):
            with log_change(change.action, change.target, by):
                await self._append(by, change, tuple(operations))

    async def write(self, by: Attribution, change: Change, operation: Write | None) -> None:
        """`apply` for one operation or none; raises `ConditionFailedError`."""
        try:
            await self.apply(by, change, () if operation is None else (operation,))
        except TransactionCancelledError as cancelled:
            raise ConditionFailedError(cancelled.reasons[0].item) from cancelled

    async def _append(self, by: Attribution, change: Change, operations: tuple[Write, ...]) -> None:
        head = items.head_from(await self._store.get(AUDIT_TRAIL, items.head_key(change.chain)))
        for attempt in range(ATTEMPTS_MAX):
            await self._pause(attempt)
            now_ms = self._clock.now_ms()
            expires_at_epoch = now_ms // 1000 + self._retention_secs
            entry = head.next_entry(change, by, new_request_id(now_ms), now_ms, expires_at_epoch)
            beginning = () if head.seq else (items.beginning_update(change.chain),)
            moved = await self._send(entry, head, operations, beginning)
            if moved is None:
                return
            head = moved
        raise ContendedError(f"{change.target}: others kept making changes")

    async def _send(
        self,
        entry: TrailEntry,
        head: Head,
        operations: tuple[Write, ...],
        beginning: tuple[Write, ...],
    ) -> Head | None:
        """Send the change; returns the new head if another process has moved it.

        While a reply is missing, an earlier copy may still arrive, until the head has moved.
        """
        sent = (*operations, *items.append_puts(entry, head), *beginning)
        lost: OutcomeUnknownError | None = None
        for sending in range(SENDINGS_MAX):
            await self._pause(sending)
            try:
                await self._store.transact(sent)
            except OutcomeUnknownError as error:
                lost = error
            except TransactionCancelledError as cancelled:
                if lost is not None and await self._is_written(entry, lost):
                    return None
                return _head_of_others(cancelled, len(operations), entry, lost)
            except StoreUnavailableError as error:
                if lost is None:
                    raise
                raise lost from error
            else:
                return None
        if lost is not None and not await self._is_written(entry, lost):
            raise lost
        return None

    async def _is_written(self, entry: TrailEntry, lost: OutcomeUnknownError) -> bool:
        try:
            item = await self._store.get(AUDIT_TRAIL, items.entry_key(entry.chain, entry.seq))
        except StoreError as error:
            raise lost from error
        found = readable(items.entry_from, item)
        return found is not None and found.id == entry.id

    async def _pause(self, failures: int) -> None:
        if failures:
            await self._clock.sleep_ms(_BACKOFF.pause_ms(failures, secrets.randbelow))


def _head_of_others(
    cancelled: TransactionCancelledError,
    operations: int,
    entry: TrailEntry,
    lost: OutcomeUnknownError | None,
) -> Head:
    """The head that another process has written; raises if something else was refused."""
    own, (head, *rest) = cancelled.reasons[:operations], cancelled.reasons[operations:]
    has_moved = head.code is ReasonCode.CONDITION_FAILED
    if lost is not None and not has_moved:
        raise lost
    if any(reason.code is ReasonCode.CONDITION_FAILED for reason in own):
        raise TransactionCancelledError(own) from cancelled
    if has_moved:
        return items.head_from(head.item)
    if any(reason.code is ReasonCode.CONDITION_FAILED for reason in rest):
        raise StoreMisconfiguredError(
            f"the audit trail of {entry.chain} has an entry after its end, so nothing can be "
            "changed there; see the findings of: pricekeeper audit verify"
        )
    raise TransactionCancelledError(own) from cancelled
