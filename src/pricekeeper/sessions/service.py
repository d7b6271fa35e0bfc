"""Opens, refreshes, lists and ends sessions, and keeps their limit.

Each promise depends on the condition of a write. The locks only keep logins of one client in one
process from losing races to each other; between instances the loser tries again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.client_ids import parse_client_id
from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import (
    ConditionFailedError,
    InvalidTokenError,
    InvalidValueError,
    OutcomeUnknownError,
    SessionLimitRaceError,
)
from pricekeeper.sessions.items import (
    block_key,
    ending,
    holds,
    session_from,
    slot_key,
    slots_from,
    slots_query,
    still,
)
from pricekeeper.sessions.meter import SessionsMeter
from pricekeeper.sessions.opening import Login, Opened, Opening
from pricekeeper.sessions.session import (
    SLOTS_MAX,
    Lifetimes,
    RefreshKeys,
    RefreshToken,
    Session,
    SessionId,
    Verdict,
    derive,
    hash_of,
    judge,
    open_token,
    token_of,
)
from pricekeeper.storage import Item, Set, Store, Update
from pricekeeper.storage.tables import SESSIONS

OPEN_ATTEMPTS_MAX: Final = 10
OPEN_BACKOFF: Final = Backoff(40, 2_000)
ROTATE_ATTEMPTS_MAX: Final = 4

_DEFAULT_LIFETIMES: Final = Lifetimes()

_log = structlog.get_logger(__name__)


class Sessions:
    """The sessions of all clients. ``subject`` is a client's id."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        keys: RefreshKeys,
        trail: AuditTrail | None = None,
        lifetimes: Lifetimes = _DEFAULT_LIFETIMES,
        randomness: random.Random | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._trail = trail or AuditTrail(store, clock)
        self._keys = keys
        self._lifetimes = lifetimes
        self._randomness = randomness or random.SystemRandom()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._listeners: list[Callable[[SessionId], None]] = []
        self.meter = SessionsMeter()

    def add_listener(self, listener: Callable[[SessionId], None]) -> None:
        """Call the listener when this instance may have ended a session."""
        self._listeners.append(listener)

    async def open_session(self, login: Login) -> Opened:
        """Open a session; without a free slot it replaces the oldest one.

        A lost race is repeated with full jitter, up to `OPEN_ATTEMPTS_MAX` times.
        """
        if not 1 <= login.limit <= SLOTS_MAX:
            raise InvalidValueError("session_limit", f"must be 1 to {SLOTS_MAX}")
        opening = self.opening(login)
        turn = self._turns.setdefault(login.subject, asyncio.Lock())
        attempt = 1
        while True:
            try:
                async with turn:
                    return await opening.attempt()
            except (SessionLimitRaceError, OutcomeUnknownError):
                if attempt == OPEN_ATTEMPTS_MAX:
                    raise
            pause_ms = OPEN_BACKOFF.pause_ms(attempt, self._randomness.randrange)
            await self._clock.sleep_ms(pause_ms)
            attempt += 1

    def opening(self, login: Login) -> Opening:
        return Opening(
            login,
            self._store,
            clock=self._clock,
            keys=self._keys,
            lifetimes=self._lifetimes,
            randomness=self._randomness,
            notify=self._notify_listeners,
            meter=self.meter,
        )

    def open_refresh_token(self, text: str) -> RefreshToken:
        token = open_token(text, self._keys)
        if token is None:
            raise _refusal("not a refresh token of ours")
        return token

    async def refresh(self, token: RefreshToken, token_generation: str) -> Opened:
        """Replace a refresh token with its successor; a reused one ends the session.

        The successor follows from the session and its rotation, so a repeated call within the grace
        gets the same one.
        """
        slot: Mapping[str, Any] | None
        slot, block = await self._store.batch_get(
            [
                (SESSIONS, slot_key(token.subject, token.session_id.slot)),
                (SESSIONS, block_key(token.hash)),
            ]
        )
        if block is not None:
            raise _refusal("evicted", token)
        successor_hash = ""
        for _ in range(ROTATE_ATTEMPTS_MAX):
            session = _session_of(slot, token_generation)
            verdict = self._judge(session, token)
            if session is None or verdict is Verdict.ENDED:
                raise _refusal("ended", token)
            if verdict is Verdict.REPLAY or session.refresh_hash == successor_hash:
                return self._reissue(session, token)
            if verdict is Verdict.REUSED:
                await self._end_reused(session, token)
                raise _refusal("reused", token)
            rotated = self._next_session(session)
            successor_hash = rotated.session.refresh_hash
            try:
                await self._rotate(session, rotated.session)
            except ConditionFailedError as failure:
                slot = failure.item
            except OutcomeUnknownError:
                slot = await self._read_slot(token)
            else:
                return rotated
        raise OutcomeUnknownError("the refresh token may have been replaced; present it again")

    async def find(self, token: RefreshToken, token_generation: str) -> Session | None:
        session = _session_of(await self._read_slot(token), token_generation)
        return session if self._judge(session, token) is Verdict.ROTATE else None

    async def list_sessions(self, subject: str, token_generation: str) -> tuple[Session, ...]:
        page = await self._store.query(slots_query(subject))
        return slots_from(page.items, token_generation).live

    async def end_session(
        self, subject: str, session_id: SessionId, by: Attribution | None = None
    ) -> bool:
        """End one session, refreshed or not; returns whether it existed.

        ``by`` is left out if the client itself asks.
        """
        was_there = await self._end(subject, session_id, by)
        self.meter.ended += was_there
        return was_there

    async def _end(
        self, subject: str, session_id: SessionId, by: Attribution | None = None
    ) -> bool:
        operation = ending(subject, session_id.slot, self._clock.now_ms(), holds(session_id))
        try:
            if by is None:
                await self._store.update(operation)
            else:
                await self._trail.write(by, _ended(subject, session_id), operation)
        except ConditionFailedError:
            return False
        except OutcomeUnknownError as lost:
            if lost.item is None or holds(session_id).holds(lost.item):
                raise
        finally:
            self._notify_listeners(session_id)
        return True

    def _notify_listeners(self, session_id: SessionId) -> None:
        for listener in self._listeners:
            listener(session_id)

    async def _read_slot(self, token: RefreshToken) -> Item | None:
        return await self._store.get(SESSIONS, slot_key(token.subject, token.session_id.slot))

    def _judge(self, session: Session | None, token: RefreshToken) -> Verdict:
        return judge(session, token, self._clock.now_ms(), self._lifetimes.grace_ms)

    def _reissue(self, session: Session, token: RefreshToken) -> Opened:
        key = self._keys.find_refresh_key(session.key_id)
        if key is None:
            raise _refusal("its key was withdrawn", token)
        return Opened(session, token_of(session, key))

    def _next_session(self, session: Session) -> Opened:
        key, now_ms = self._keys.current_refresh_key(), self._clock.now_ms()
        successor = derive(key, session.subject, session.id, session.rotation + 1)
        rotated = msgspec.structs.replace(
            session,
            rotation=session.rotation + 1,
            key_id=key.id,
            refresh_hash=hash_of(successor),
            previous_hash=session.refresh_hash,
            refreshed_at_ms=now_ms,
            ends_at_epoch=self._lifetimes.end_epoch(session.opened_at_ms, now_ms),
        )
        return Opened(rotated, successor)

    async def _rotate(self, session: Session, rotated: Session) -> None:
        await self._store.update(
            Update(
                SESSIONS,
                slot_key(session.subject, session.id.slot),
                (
                    Set("rotation", rotated.rotation),
                    Set("key_id", rotated.key_id),
                    Set("refresh_hash", rotated.refresh_hash),
                    Set("previous_hash", rotated.previous_hash),
                    Set("refreshed_at_ms", rotated.refreshed_at_ms),
                    Set("expires_at_epoch", rotated.ends_at_epoch),
                ),
                still(session),
            )
        )

    async def _end_reused(self, session: Session, token: RefreshToken) -> None:
        _log.warning(
            "refresh_token_reused",
            client_id=session.subject,
            session_id=str(session.id),
            presented_rotation=token.rotation,
            current_rotation=session.rotation,
        )
        self.meter.reused += 1
        await self._end(session.subject, session.id)


def _session_of(slot: Mapping[str, Any] | None, token_generation: str) -> Session | None:
    if slot is None:
        return None
    session = session_from(slot)
    return session if session.token_generation == token_generation else None


def _ended(subject: str, session_id: SessionId) -> Change:
    org_id, details = parse_client_id(subject).org_id, {"session_id": str(session_id)}
    return Change("sessions.end", subject, org_id, before=details)


def _refusal(reason: str, token: RefreshToken | None = None) -> InvalidTokenError:
    _log.info(
        "refresh_token_refused",
        reason=reason,
        client_id=token.subject if token else None,
        session_id=str(token.session_id) if token else None,
    )
    return InvalidTokenError(genuine=token is not None)
