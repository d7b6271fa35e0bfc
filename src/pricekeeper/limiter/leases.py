"""Leases: tokens that were taken under an id, to be adjusted and given back from any instance.

Each step is a few plain writes. Their order makes a repetition harmless, and a crash can lose
tokens, which refill, but never create any:

=========== ============================================================================
acquire     take from the buckets, then put the record if there is none; if there is
            one, this is a repetition: give the tokens back
adjust, up  charge the buckets, then mark the record; if it is marked already, give the
            tokens back
adjust,     mark the record, then give the tokens back
down
release     close the record, then give the tokens back
=========== ============================================================================

A write of the record whose reply was lost is sent again; its nonce shows who wrote the record.
Without any reply, `OutcomeUnknownError` is raised and nothing is given back: the caller repeats the
step. A step completes even if its caller leaves, and callers that repeat it meanwhile get its
result.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pricekeeper.concurrency import SingleFlight
from pricekeeper.errors import (
    ConditionFailedError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    PriceKeeperError,
    StoreError,
    StoreUnavailableError,
    UnreadableItemError,
)
from pricekeeper.limiter.bucket import Debit, Denial, LimitStatus
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, REPLIES_LOST_MAX
from pricekeeper.limiter.items import LeaseRecord, lease_key, lease_of
from pricekeeper.limiter.records import (
    LEASE_TTL_SECS,
    adjusted_record,
    check_change,
    grant_put,
    known_mark,
    mark_of,
    newer_record,
    record_update,
    released_already,
    released_record,
)
from pricekeeper.limiter.requests import CheckedRequest, parse_id
from pricekeeper.limiter.returns import negated
from pricekeeper.limiter.taker import Answer, Taker
from pricekeeper.storage import Put, Update
from pricekeeper.storage.tables import RATE_BUCKETS

_NONCE_BYTES: Final = 4


class Lease:
    """Tokens that were taken; ``granted`` tells it from a `Denial`."""

    __slots__ = ("_answer", "_leases", "_record", "granted_at_ms")

    def __init__(self, leases: Leases, record: LeaseRecord, answer: Answer) -> None:
        self._leases = leases
        self._record = record
        self._answer = answer
        self.granted_at_ms = answer.now_ms

    @property
    def id(self) -> str:
        return self._record.lease_id

    @property
    def entity(self) -> str:
        return self._record.entity

    @property
    def granted(self) -> bool:
        return True

    @property
    def limits(self) -> Mapping[str, LimitStatus]:
        """Each limit right after the grant; where parents share one, the scarcest."""
        return self._answer.statuses

    @property
    def held(self) -> Mapping[str, int]:
        return {} if self._record.released else self._record.held

    async def adjust(
        self, delta: Mapping[str, int], *, adjustment_id: uuid.UUID | str | None = None
    ) -> None:
        """Take more than was estimated, or give some back. It can't be denied.

        It may leave a debt, up to a bound: ``held`` shows the tokens really taken. The same
        ``adjustment_id`` changes the lease once.
        """
        change_id = parse_id(adjustment_id or uuid.uuid4(), "adjustment_id")
        self._note(await self._leases.adjust(self._record, dict(delta), change_id))

    async def release(self) -> None:
        """Give everything back. Releasing again does nothing."""
        self._note(await self._leases.release(self._record))

    def _note(self, record: LeaseRecord) -> None:
        self._record = newer_record(record, self._record)


class _Sent(NamedTuple):
    record: LeaseRecord | None
    """The present record, if the write was refused; ``None`` if it was written."""


class Leases:
    """The leases of one store."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._cache = taker.cache
        self._grants: SingleFlight[object, Lease | Denial] = SingleFlight("pricekeeper-leases")
        self._changes: SingleFlight[object, LeaseRecord] = SingleFlight("pricekeeper-leases")

    async def find(self, entity: str, lease_id: str) -> LeaseRecord:
        record = await self._read(entity, lease_id)
        if record is None:
            raise NotFoundError("lease")
        return record

    async def grant(self, request: CheckedRequest) -> Lease | Denial:
        """Take the tokens of a request and record the lease, once for its id."""
        return await self._grants.run(request.identity, lambda: self._grant(request))

    async def undo(self, request: CheckedRequest) -> None:
        """Release the lease of a caller that has left and does not know its id.

        It is not asked for again: its bucket may have too little for that by now.
        """
        outcome = await self._grants.join(request.identity)
        if isinstance(outcome, Denial):
            return
        record = await self._read(request.entity, request.lease_id)
        if record is not None:
            self._cache.meter.rolled_back += 1
            await self.release(record)

    async def adjust(
        self, record: LeaseRecord, delta: dict[str, int], change_id: str
    ) -> LeaseRecord:
        """Adjust a lease, once for the same id; returns its record after that."""
        mark = mark_of(change_id, delta, secrets.token_hex(_NONCE_BYTES))
        identity = (record.key, mark.rpartition("/")[0])
        return await self._changes.run(identity, lambda: self._adjust(record, delta, mark))

    async def release(self, record: LeaseRecord) -> LeaseRecord:
        """Give back all that a lease holds, once; returns its record after that."""
        return await self._changes.run((record.key, ""), lambda: self._release(record))

    async def drain(self) -> None:
        await self._grants.drain()
        await self._changes.drain()

    async def _grant(self, request: CheckedRequest) -> Lease | Denial:
        answer = await self._taker.take(request.nonempty_debits)
        if answer.denied:
            return await self._deny(request, answer)
        record = _record_of(request, answer.now_ms)
        try:
            sent = await self._send(record, grant_put(record))
        except (StoreUnavailableError, UnreadableItemError):
            self._taker.give_back(negated(request.nonempty_debits))
            raise
        if sent.record is None or sent.record.nonce == record.nonce:
            self._cache.meter.granted += 1
            return Lease(self, sent.record or record, answer)
        await self._give_back(negated(request.nonempty_debits))
        return self._repeated(request, sent.record)

    async def _deny(self, request: CheckedRequest, answer: Answer) -> Lease | Denial:
        denial = Denial(tuple(one for denied in answer.denied for one in denied.violations))
        if request.is_named:
            decided_ms = self._cache.clock.monotonic_ms()
            before = await self._read(request.entity, request.lease_id)
            if before is not None:
                return self._repeated(request, before)
            denial = denial.after_waiting(self._cache.clock.monotonic_ms() - decided_ms)
        self._cache.meter.denied += 1
        return denial

    def _repeated(self, request: CheckedRequest, record: LeaseRecord) -> Lease:
        if record.released:
            raise released_already()
        asked = (record.resource, record.parents, record.consume)
        if asked != (request.resource, request.parents, request.tokens):
            raise ConflictError("lease_id", "was granted for another request")
        self._cache.meter.granted += 1
        return Lease(self, record, self._taker.recall(request.nonempty_debits))

    async def _adjust(self, record: LeaseRecord, delta: dict[str, int], mark: str) -> LeaseRecord:
        taken: dict[str, int] | None = None
        charged: list[Debit] = []
        is_fresh = False
        try:
            for attempt in range(ATTEMPTS_MAX):
                await self._cache.pause(attempt)
                known = known_mark(record, mark)
                if known == mark:
                    break
                if known is not None:  # another call has applied it
                    await self._give_back(negated(charged))
                    return record
                try:
                    check_change(record, delta)
                except PriceKeeperError:
                    if is_fresh:
                        raise
                    record = await self.find(record.entity, record.lease_id)
                    is_fresh = True
                    continue
                if taken is None:
                    used = {name: count for name, count in delta.items() if count > 0}
                    used = await self._taker.returns.charge(debits_of(record, used))
                    charged, taken = debits_of(record, used), delta | used
                after = adjusted_record(record, taken, mark)
                sent = await self._send(record, record_update(record, after))
                if sent.record is None:
                    record = after
                    break
                record, is_fresh = sent.record, True
            else:
                raise self._cache.contended(record.key)
        except OutcomeUnknownError:
            raise  # the mark may have been written: the tokens stay charged
        except PriceKeeperError:
            await self._give_back(negated(charged))
            raise
        self._taker.give_back(
            debits_of(record, {n: count for n, count in delta.items() if count < 0})
        )
        await self._taker.give_back_now(record.debits({}))  # also what a charge took too much
        return record

    async def _release(self, record: LeaseRecord) -> LeaseRecord:
        nonce = secrets.token_hex(_NONCE_BYTES)
        for attempt in range(ATTEMPTS_MAX):
            await self._cache.pause(attempt)
            if record.released:
                if record.released == nonce:
                    break
                return record
            after = released_record(record, nonce)
            sent = await self._send(record, record_update(record, after))
            if sent.record is None:
                record = after
                break
            record = sent.record
        else:
            raise self._cache.contended(record.key)
        await self._give_back(negated(debits_of(record, record.held)))
        return record

    async def _give_back(self, debits: Sequence[Debit]) -> None:
        """Give tokens back before returning. What the store refuses stays owed."""
        self._taker.give_back(debits)
        await self._taker.give_back_now(debits)

    async def _send(self, record: LeaseRecord, operation: Put | Update) -> _Sent:
        """Write a record; sent again if the reply is lost, since its condition holds only once.

        Raises `StoreUnavailableError` only if it was surely not written.
        """
        is_lost, store = False, self._cache.store
        for _ in range(REPLIES_LOST_MAX):
            try:
                if isinstance(operation, Put):
                    await store.put(operation)
                else:
                    await store.update(operation)
            except ConditionFailedError as refused:
                found = lease_of(record.entity, record.lease_id, refused.item)
                if found is None:
                    raise NotFoundError("lease") from None
                return _Sent(found)
            except OutcomeUnknownError:
                is_lost = True
            except StoreError as error:
                if not is_lost:
                    raise
                raise OutcomeUnknownError("the lease may or may not have been written") from error
            else:
                return _Sent(None)
        raise OutcomeUnknownError("the lease may or may not have been written")

    async def _read(self, entity: str, lease_id: str) -> LeaseRecord | None:
        key = lease_key(entity, lease_id)
        return lease_of(entity, lease_id, await self._cache.store.get(RATE_BUCKETS, key))


def debits_of(record: LeaseRecord, tokens: Mapping[str, int]) -> list[Debit]:
    """These tokens, for every bucket of the lease that has such a limit."""
    return [debit for debit in record.debits(tokens) if any(debit.tokens.values())]


def _record_of(request: CheckedRequest, now_ms: int) -> LeaseRecord:
    return LeaseRecord(
        entity=request.entity,
        lease_id=request.lease_id,
        resource=request.resource,
        parents=request.parents,
        consume=request.tokens,
        terms={
            debit.entity: {name: limit.terms for name, limit in debit.limits.items()}
            for debit in request.debits
        },
        granted_at_ms=now_ms,
        expires_at_epoch=-(-now_ms // 1000) + LEASE_TTL_SECS,
        held=request.tokens,
        nonce=secrets.token_hex(_NONCE_BYTES),
    )
