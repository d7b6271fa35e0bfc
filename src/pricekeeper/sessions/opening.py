"""One login: takes a free slot, or the slot of the oldest session.

An attempt reads the subject's slots once and writes once, on condition that the slot is unchanged.
The condition keeps the limit. After a lost reply:

- If the write was applied, the next attempt finds its own session in the slots.
- If it is applied later, it takes a slot like any other login, and no client has its token.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import in_groups
from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ReasonCode,
    SessionLimitRaceError,
    TransactionCancelledError,
    UnreadableItemError,
)
from pricekeeper.sessions.items import (
    block_item,
    ending,
    free,
    session_item,
    slots_from,
    slots_query,
    still,
)
from pricekeeper.sessions.meter import SessionsMeter
from pricekeeper.sessions.session import (
    Labels,
    Lifetimes,
    RefreshKeys,
    Session,
    SessionId,
    Slots,
    derive,
    hash_of,
    token_of,
)
from pricekeeper.storage import Put, Store, Write
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX
from pricekeeper.storage.tables import SESSIONS

NONCE_BYTES: Final = 16

_log = structlog.get_logger(__name__)

_OPERATIONS_PER_END: Final = 2
_ENDS_MAX: Final = TRANSACTION_OPERATIONS_MAX // _OPERATIONS_PER_END


class Login(msgspec.Struct, frozen=True):
    """An authenticated client that wants a session."""

    subject: str
    token_generation: str
    limit: int
    labels: Labels


class Opened(msgspec.Struct, frozen=True):
    """A session and its current refresh token."""

    session: Session
    refresh_token: str

    def __repr__(self) -> str:
        return f"Opened(session={self.session!r})"


class Opening:
    """One login with its attempts."""

    def __init__(
        self,
        login: Login,
        store: Store,
        *,
        clock: Clock,
        keys: RefreshKeys,
        lifetimes: Lifetimes,
        randomness: random.Random,
        notify: Callable[[SessionId], None],
        meter: SessionsMeter,
    ) -> None:
        self._login = login
        self._store = store
        self._clock = clock
        self._keys = keys
        self._lifetimes = lifetimes
        self._randomness = randomness
        self._notify = notify
        self._meter = meter
        self._tried: list[SessionId] = []

    async def attempt(self) -> Opened:
        """Read once, write once; raises `SessionLimitRaceError` if another login was faster."""
        login = self._login
        page = await self._store.query(slots_query(login.subject))
        slots = slots_from(page.items, login.token_generation)
        opened = self._opened_before(slots)
        if opened is not None:
            return opened
        await self._end(slots.beyond(login.limit))
        available = slots.free(login.limit)
        if available:
            slot = self._randomness.choice(list(available))
            fresh = self._fresh(slot)
            await self._write([Put(SESSIONS, session_item(fresh.session), free(available[slot]))])
        else:
            oldest = slots.oldest(login.limit)
            if oldest is None:
                raise UnreadableItemError(f"no session slot of {login.subject} can be read")
            fresh = self._fresh(oldest.id.slot)
            try:
                await self._write(
                    [
                        Put(SESSIONS, session_item(fresh.session), still(oldest)),
                        Put(SESSIONS, block_item(oldest, self._clock.now_ms())),
                    ]
                )
                self._meter.evicted += 1
            finally:
                self._notify(oldest.id)
            self._log_eviction(oldest)
        return fresh

    def _log_eviction(self, evicted: Session) -> None:
        """Log the eviction; if young sessions are evicted, the client's limit is too low."""
        _log.info(
            "session_evicted",
            client_id=evicted.subject,
            session_id=str(evicted.id),
            age_secs=(self._clock.now_ms() - evicted.opened_at_ms) // 1000,
            session_limit=self._login.limit,
        )

    def _opened_before(self, slots: Slots) -> Opened | None:
        for session_id in self._tried:
            session = slots.find(session_id)
            key = None if session is None else self._keys.find_refresh_key(session.key_id)
            if session is not None and key is not None:
                return Opened(session, token_of(session, key))
        return None

    def _fresh(self, slot: int) -> Opened:
        login, now_ms = self._login, self._clock.now_ms()
        key = self._keys.current_refresh_key()
        session_id = SessionId(slot, secrets.token_urlsafe(NONCE_BYTES))
        self._tried.append(session_id)
        token = derive(key, login.subject, session_id, 0)
        session = Session(
            subject=login.subject,
            id=session_id,
            token_generation=login.token_generation,
            rotation=0,
            key_id=key.id,
            refresh_hash=hash_of(token),
            previous_hash="",
            opened_at_ms=now_ms,
            refreshed_at_ms=now_ms,
            ends_at_epoch=self._lifetimes.end_epoch(now_ms, now_ms),
            labels=login.labels,
        )
        return Opened(session, token)

    async def _write(self, operations: Sequence[Put]) -> None:
        if len(operations) == 1:
            try:
                await self._store.put(operations[0])
            except ConditionFailedError as failure:
                reason = CancellationReason(ReasonCode.CONDITION_FAILED, failure.item)
                raise SessionLimitRaceError([reason]) from failure
        else:
            await self._transact(operations)

    async def _end(self, sessions: Sequence[Session]) -> None:
        """End the sessions beyond a lowered limit, as many at once as a transaction allows."""
        now_ms = self._clock.now_ms()
        for some in in_groups(sessions, _ENDS_MAX):
            operations: list[Write] = []
            for session in some:
                operations.append(ending(session.subject, session.id.slot, now_ms, still(session)))
                operations.append(Put(SESSIONS, block_item(session, now_ms)))
            try:
                await self._transact(operations)
                self._meter.evicted += len(some)
            finally:
                for session in some:
                    self._notify(session.id)

    async def _transact(self, operations: Sequence[Write]) -> None:
        try:
            await self._store.transact(operations)
        except TransactionCancelledError as cancelled:
            raise SessionLimitRaceError(cancelled.reasons) from cancelled
