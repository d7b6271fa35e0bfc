"""Voids a record by a correction beside it.

A correction is a record with the same app, label, tags and day, and negative amounts, so totals
follow by the ordinary fold. One transaction writes the correction, the refund to the budgets, the
audit entry, and a marker by which a record is voided only once. A void note in the record's region
is for listings, which read that region anyway. A record can be voided until its day is final: then
exports and bills contain it.

A record is found by its id; that of a capture by the moment of its authorization (``about_ms``),
among that minute's sheets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.budgets import BudgetAccount
from pricekeeper.clock import Clock
from pricekeeper.days import MS_PER_DAY, day_start_ms
from pricekeeper.errors import (
    ConflictError,
    ContendedError,
    NotFoundError,
    ReasonCode,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.ledger import AccountNotOpenError, Ledger
from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.journal import (
    ID_DIGITS,
    PAGE_DIGITS,
    Address,
    Record,
    address_of,
    encode_entry,
    encode_terms,
    is_full,
    lanes_of,
    record_on,
)
from pricekeeper.metering.journal_items import (
    PostedRegion,
    VoidNote,
    Written,
    page_update,
    void_marker_key,
    void_marker_put,
    void_note_from,
    void_note_put,
)
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.posting import Poster, page_at
from pricekeeper.metering.usage import parse_request_id
from pricekeeper.pricing import split_micros
from pricekeeper.storage import Store, Write
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.tenants import Client, Policy, Tenants
from pricekeeper.ticks import region_at
from pricekeeper.values import AppId, OrgId, new_request_id

VOIDABLE_DAYS: Final = 3
"""From the beginning of the record's day in UTC until the day is final."""
ATTEMPTS_MAX: Final = 3
_ACTION: Final = "usage.void"


class Voided(NamedTuple):
    """A voided record and its correction."""

    record: Record
    correction_id: str
    at_ms: int

    @property
    def note(self) -> VoidNote:
        return VoidNote(self.record.request_id, self.correction_id, self.at_ms)


class _Found(NamedTuple):
    record: Record
    region: str


class Voider:
    """Voids records of organisations."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        trail: AuditTrail,
        tenants: Tenants,
        ledger: Ledger,
        poster: Poster,
    ) -> None:
        self._store = store
        self._clock = clock
        self._trail = trail
        self._tenants = tenants
        self._ledger = ledger
        self._marks, self._moments = poster.marks, poster.moments
        self._reader = JournalReader(store)

    async def void(
        self, org: Policy, request_id: str, by: Attribution, about_ms: int | None = None
    ) -> tuple[Voided, Mapping[Account, Counters]]:
        """Take a record out of totals and budgets; also return the change of each account."""
        found = await self._find(org, parse_request_id(request_id), about_ms)
        if found is None:
            raise NotFoundError("usage record")
        record = found.record
        self._check(record)
        now_ms, depth = self._clock.now_ms(), PAGE_DIGITS
        for _ in range(ATTEMPTS_MAX):
            known = await self._find_marker(org.org_id, record)
            if known is not None:
                # It may have arrived late, and its reply may be lost.
                late = _correction(known, b"").receipt
                await self._marks.request_repair_if_late(org.org_id, [late])
                repetition = Change(_ACTION, _target(record.request_id), org.org_id)
                await self._trail.apply(by, repetition, ())
                return known, {}
            try:
                return await self._post(org, found, by, now_ms, depth)
            except TransactionCancelledError as cancelled:
                depth += _is_page_full(cancelled)
            except AccountNotOpenError:
                self._ledger.forget(await self._open_accounts(org, record))
        raise ContendedError("the record's totals or budgets kept changing; try again")

    def _check(self, record: Record) -> None:
        if record.entry.voids:
            raise ConflictError("request_id", "is a correction, which can't be voided")
        ends_ms = day_start_ms("UTC", record.terms.day) + VOIDABLE_DAYS * MS_PER_DAY
        if self._clock.now_ms() >= ends_ms:
            message = f"its day is final: it can be voided for {VOIDABLE_DAYS} days alone"
            raise ConflictError("request_id", message)

    async def _post(
        self, org: Policy, found: _Found, by: Attribution, now_ms: int, depth: int
    ) -> tuple[Voided, Mapping[Account, Counters]]:
        """All or nothing; the correction is on its page of that depth."""
        record = found.record
        accounts = await self._open_accounts(org, record)
        nonce = self._marks.new_nonce()
        correction_id, lanes = new_request_id(now_ms), lanes_of(org.agg_shard_count)
        voided = Voided(record, correction_id, now_ms)
        address = _address(correction_id)
        posting = PostedRegion(org.org_id, address.region, lanes)
        await self._marks.mark(posting, now_ms)
        correction = _correction(voided, nonce)
        terms = encode_terms(record.terms)
        expires = self._marks.expires_at_epoch(posting.region)
        written = Written(address.name, encode_entry(correction.entry), terms)
        page = page_at(org.org_id, lanes, address, depth)
        operations: tuple[Write, ...] = (
            void_marker_put(org.org_id, voided.note, expires),
            page_update(page, [written], expires),
            void_note_put(org.org_id, found.region, voided.note, expires),
        )
        apply = partial(self._trail.apply, by, _change(org.org_id, voided))
        if accounts:
            debits = [(accounts, -record.entry.cost_usd_picos)]
            await self._ledger.post(org.org_id, debits, operations, apply)
        else:
            await apply(operations)
        await self._marks.request_repair_if_late(org.org_id, [correction.receipt])
        account = Account(record.terms.scope_key, record.terms.label, record.terms.day)
        return voided, {account: correction.entry.counters}

    async def _open_accounts(self, org: Policy, record: Record) -> tuple[BudgetAccount, ...]:
        terms, now_ms = record.terms, self._clock.now_ms()
        policy = org
        if terms.app_id is not None:
            client = Client(OrgId(org.org_id), AppId(terms.app_id))
            # The accounts of an app that was deleted are gone; those of its organisation are not.
            with contextlib.suppress(NotFoundError):
                policy = await self._tenants.read_policy(client)
        found = self._ledger.accounts_for(
            policy, terms.label, dict(terms.tags), record.entry.happened_at_ms
        )
        accounts = tuple(account for account in found if account.span.ends_at_ms > now_ms)
        await self._ledger.open_all(accounts)
        return accounts

    async def _find_marker(self, org_id: str, record: Record) -> Voided | None:
        table, key = void_marker_key(org_id, record.request_id)
        item = await self._store.get(table, key)
        if item is None:
            return None
        note = void_note_from(table, item, record.request_id)
        return Voided(record, note.correction_id, note.at_ms)

    async def _find(self, org: Policy, request_id: str, about_ms: int | None) -> _Found | None:
        """A captured record is on its authorization's sheet."""
        if about_ms is not None:
            return await self._scan(org.org_id, request_id, about_ms)
        places = await self._moments.complete(org.org_id, {request_id: address_of(request_id)})
        address = places.get(request_id)
        if isinstance(address, StoreError):
            raise address
        if address is None:
            return None
        lanes = lanes_of(org.agg_shard_count)
        for depth in range(PAGE_DIGITS, ID_DIGITS + 1):
            key = page_at(org.org_id, lanes, address, depth)
            page = await self._store.get(USAGE_AGG_SHARDED, key)
            record = None if page is None else record_on(page, address.name)
            if record is not None:
                return _Found(record, address.region)
            if page is None or not is_full(page):
                break
        return None

    async def _scan(self, org_id: str, request_id: str, about_ms: int) -> _Found | None:
        """Search that minute's sheets, which are in lane 0."""
        posting = PostedRegion(org_id, region_at(about_ms), 1)
        async for record in self._reader.read_records([posting]):
            if record.request_id == request_id:
                return _Found(record, posting.region)
        return None


def _address(correction_id: str) -> Address:
    address = address_of(correction_id)
    if address is None:
        raise LookupError("ids of our own have a time")
    return address


def _is_page_full(cancelled: TransactionCancelledError) -> bool:
    """Raise the cancellation, unless the record is voided already or the page is full."""
    marker, page, *_ = cancelled.reasons
    if ReasonCode.CONDITION_FAILED not in (marker.code, page.code):
        raise cancelled
    return page.code is ReasonCode.CONDITION_FAILED


def _correction(voided: Voided, nonce: bytes) -> Record:
    first = voided.record.entry
    entry = msgspec.structs.replace(
        first,
        nonce=nonce,
        sent_at_ms=voided.at_ms,
        lag_ms=voided.at_ms - first.happened_at_ms,
        cost_usd_picos=-first.cost_usd_picos,
        input_tokens=-first.input_tokens,
        output_tokens=-first.output_tokens,
        cache_read_tokens=-first.cache_read_tokens,
        cache_write_5m_tokens=-first.cache_write_5m_tokens,
        cache_write_1h_tokens=-first.cache_write_1h_tokens,
        request_id=voided.correction_id,
        voids=voided.record.request_id,
    )
    return Record(voided.correction_id, entry, voided.record.terms)


def _change(org_id: str, voided: Voided) -> Change:
    entry, terms = voided.record.entry, voided.record.terms
    before: dict[str, Any] = {
        "app_id": terms.app_id,
        "model_label": terms.label,
        "day": terms.day,
        "cost_usd_micros": split_micros(entry.cost_usd_picos)[0],
        "input_tokens": entry.input_tokens,
        "output_tokens": entry.output_tokens,
    }
    after = {"correction_id": voided.correction_id}
    return Change(_ACTION, _target(voided.record.request_id), OrgId(org_id), before, after)


def _target(request_id: str) -> str:
    return f"usage/{request_id}"
