"""How authorizations are stored: grants and outcomes on sheets of the log, and sweep markers.

On the sheet that grants authorization number ``n``::

    g{n}             its grant, which never changes
    c{digest}        the terms that grants of one app and label have in common

A later sheet, and then the outcomes filed beside the grant, say what has become of it:

======================== ===========================================================
``o{until}``             open, and extended until then
``u{expired}``           unsettled: it expired then
``c{sheet}.{number}``    captured: where its usage record is
``v{at}.{reason}``       voided then, and why
======================== ===========================================================

Times are milliseconds. Numbers are hexadecimal. A sheet is named by the start of its sort key.

Two kinds of markers in UsageAggSharded say which regions of the log to read:

- ``HOLDS#{visit}`` / ``{region}#{org}``: sweep this region, for the first, second or third time
- ``UNSETTLED#{period}`` / ``{org}#{region}``: this region has unsettled authorizations. A period is
  three days, the first digits of its regions.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from pricekeeper.authorizations.authorization import (
    Authorization,
    Considered,
    Grant,
    GrantTerms,
    HeldAccount,
    HeldBucket,
    Settlement,
    State,
    usual_tokens,
)
from pricekeeper.budgets import ACCOUNTS
from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.position import authorization_id_of
from pricekeeper.ledger.sheet import WRITTEN, org_prefix
from pricekeeper.metering.journal import Record, StoredTerms
from pricekeeper.storage import Delete, Item, Key, Put, Query, TypedItem, attr
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY
from pricekeeper.ticks import REGION_DIGITS

GRANT: Final = "g"
_TERMS: Final = "c"
_TERMS_BYTES: Final = 9
_TERMS_MAX: Final = 4_096
_OPEN, _UNSETTLED, _CAPTURED, _VOIDED = "o", "u", "c", "v"
_HEX: Final = 16
HOLDS: Final = "HOLDS#"
UNSETTLED: Final = "UNSETTLED#"
PERIOD_DIGITS: Final = 5
_NONCE: Final = "nonce"
_MARKER: Final = re.compile(r"([0-9a-f]{8})#([^#]{1,100})")
_encode: Final = msgspec.msgpack.Encoder().encode


class _StoredTerms(msgspec.Struct, frozen=True, array_like=True):
    """`GrantTerms` without what the key of the item says; each name is there once."""

    app_id: str | None
    label: str
    entities: tuple[str, ...]
    accounts: tuple[tuple[int, str, str], ...]
    buckets: tuple[tuple[int, dict[str, str]], ...]
    by_gateway: bool = False


class _StoredGrant(msgspec.Struct, frozen=True, array_like=True):
    terms: bytes
    fingerprint: bytes
    reason: str
    held_usd_picos: int
    input_tokens: int
    max_output_tokens: int
    waited_ms: int
    """From the request until its sheet was written."""
    tokens: dict[str, int] | None
    considered: tuple[Considered, ...] | None
    tags: dict[str, str] | None
    asked_as: bytes | None
    hold_ms: int
    """From the time its sheet was written until it expires."""


_decode_terms: Final = msgspec.msgpack.Decoder(_StoredTerms).decode
_decode_grant: Final = msgspec.msgpack.Decoder(_StoredGrant).decode


def encode_grant_terms(org_id: str, terms: GrantTerms) -> StoredTerms:
    """The terms as a sheet stores them; equal terms have the same name."""
    entities = dict.fromkeys(
        [*(one.key.pk.removesuffix(ACCOUNTS) for one in terms.accounts)]
        + [bucket.entity for bucket in terms.buckets]
    )
    index = {entity: number for number, entity in enumerate(entities)}
    own = _app(terms.app_id)
    data = _encode(
        _StoredTerms(
            terms.app_id,
            terms.label,
            tuple(
                entity.removeprefix(org_prefix(org_id)).replace(own, "~", 1) for entity in entities
            ),
            tuple(
                (index[one.key.pk.removesuffix(ACCOUNTS)], one.key.sk or "", one.id)
                for one in terms.accounts
            ),
            tuple((index[bucket.entity], bucket.terms) for bucket in terms.buckets),
            terms.by_gateway,
        )
    )
    ref = hashlib.blake2b(data, digest_size=_TERMS_BYTES).digest()
    return StoredTerms(ref, _terms_name(ref), data)


def encode_grant(grant: Grant, terms: StoredTerms, written_at_ms: int, hold_ms: int) -> bytes:
    """A grant as its sheet stores it."""
    first, *others = grant.considered or (None,)
    alone = first is not None and not (others or first.because) and first.label == grant.terms.label
    usual = grant.tokens == usual_tokens(grant.input_tokens, grant.max_output_tokens)
    return _encode(
        _StoredGrant(
            terms.ref,
            grant.fingerprint,
            grant.reason,
            grant.held_usd_picos,
            grant.input_tokens,
            grant.max_output_tokens,
            written_at_ms - grant.authorized_at_ms,
            None if usual else grant.tokens,
            None if alone else grant.considered,
            grant.tags or None,
            UUID(grant.asked_as).bytes if grant.asked_as else None,
            hold_ms,
        )
    )


def authorizations_on(sheet: Mapping[str, Any]) -> Iterator[Authorization]:
    """Every authorization on the sheet; unreadable ones are reported and left out."""
    for name in sheet:
        if name[:1] == GRANT and name[1:].isdigit():
            try:
                found = authorization_on(sheet, int(name[1:]))
            except UnreadableItemError:
                continue
            if found is not None:
                yield found


def authorization_on(sheet: Mapping[str, Any], number: int) -> Authorization | None:
    """The authorization with that number, if it is there; raises `UnreadableItemError`."""
    data: Any = sheet.get(f"{GRANT}{number}")
    if data is None:
        return None
    typed = TypedItem(USAGE_AGG_SHARDED, sheet)
    try:
        org_id, sort_key = str(sheet["PK"]).split("#", 2)[1], str(sheet["SK"])
        stored = _decode_grant(data)
        written_ms = typed.moment_ms(WRITTEN)
        grant = _grant_of(org_id, sheet, stored, written_ms)
        return Authorization(
            authorization_id_of(sort_key, number), grant, State.OPEN, written_ms + stored.hold_ms
        )
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise typed.report_unreadable(f"{number} is no authorization: {error}") from error


def settlement_of(record: Record) -> Settlement:
    """The settlement of a captured authorization, from its usage record."""
    entry, receipt = record.entry, record.receipt
    return Settlement(
        at_ms=entry.sent_at_ms,
        fingerprint=entry.fingerprint,
        cost_usd_picos=entry.cost_usd_picos,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        pricing_version=receipt.pricing_version,
        org_day=receipt.org_day,
        price_estimated=receipt.price_estimated,
    )


def _grant_of(org_id: str, sheet: Mapping[str, Any], stored: _StoredGrant, at_ms: int) -> Grant:
    terms = _terms_of(org_id, sheet[_terms_name(stored.terms)])
    alone = stored.considered is None
    return Grant(
        terms,
        stored.fingerprint,
        stored.reason,
        stored.held_usd_picos,
        stored.input_tokens,
        stored.max_output_tokens,
        at_ms - stored.waited_ms,
        usual_tokens(stored.input_tokens, stored.max_output_tokens)
        if stored.tokens is None
        else stored.tokens,
        (Considered(terms.label),) if alone else stored.considered or (),
        stored.tags or {},
        "" if stored.asked_as is None else str(UUID(bytes=stored.asked_as)),
    )


@lru_cache(maxsize=_TERMS_MAX)
def _terms_of(org_id: str, data: bytes) -> GrantTerms:
    stored = _decode_terms(data)
    own = _app(stored.app_id)
    entities = [org_prefix(org_id) + entity.replace("~", own, 1) for entity in stored.entities]
    accounts = tuple(
        HeldAccount(Key(entities[number] + ACCOUNTS, sk), account_id)
        for number, sk, account_id in stored.accounts
    )
    return GrantTerms(
        org_prefix(org_id) + own.removeprefix("~"),
        stored.app_id,
        stored.label,
        accounts,
        tuple(HeldBucket(entities[number], terms) for number, terms in stored.buckets),
        tuple(dict.fromkeys(one.key for one in accounts)),
        stored.by_gateway,
    )


def _terms_name(ref: bytes) -> str:
    return _TERMS + base64.urlsafe_b64encode(ref).decode()


def _app(app_id: str | None) -> str:
    return "~" if app_id is None else f"-app-{app_id}"


class RecordPlace(NamedTuple):
    """Where the usage record of a captured authorization is."""

    prefix: str
    number: int

    @property
    def region(self) -> str:
        return self.prefix[1 : 1 + REGION_DIGITS]


def extended(until_ms: int) -> str:
    """Open, and extended."""
    return f"{_OPEN}{until_ms:x}"


def unsettled(expired_at_ms: int) -> str:
    """Expired, and charged at its hold."""
    return f"{_UNSETTLED}{expired_at_ms:x}"


def captured(sheet: str, number: int) -> str:
    """Captured: its record has this number on that sheet."""
    return f"{_CAPTURED}{sheet}.{number:x}"


def voided(at_ms: int, reason: str) -> str:
    """Voided."""
    return f"{_VOIDED}{at_ms:x}.{reason}"


def record_place(outcome: str) -> RecordPlace | None:
    """Where the usage record is, if the outcome is a capture."""
    if outcome[:1] != _CAPTURED:
        return None
    prefix, _, number = outcome[1:].partition(".")
    return RecordPlace(prefix, int(number, _HEX))


def with_outcome(
    granted: Authorization, outcome: str, record: Record | None = None
) -> Authorization:
    """The authorization with that outcome; a captured one gets its settlement from ``record``.

    Raises `UnreadableItemError` for an outcome that can't be read.
    """
    if not outcome:
        return granted
    kind, rest = outcome[:1], outcome[1:]
    replace = msgspec.structs.replace
    try:
        if kind == _OPEN:
            return replace(granted, expires_at_ms=int(rest, _HEX), outcome=outcome)
        if kind == _UNSETTLED:
            expired_at_ms = int(rest, _HEX)
            return replace(
                granted, state=State.UNSETTLED, expires_at_ms=expired_at_ms, outcome=outcome
            )
        if kind == _CAPTURED:
            settlement = None if record is None else settlement_of(record)
            return replace(granted, state=State.CAPTURED, settlement=settlement, outcome=outcome)
        if kind == _VOIDED:
            at, _, reason = rest.partition(".")
            settlement = Settlement(int(at, _HEX), reason=reason)
            return replace(granted, state=State.VOIDED, settlement=settlement, outcome=outcome)
    except ValueError as error:
        raise UnreadableItemError(f"{outcome[:40]!r} is no outcome") from error
    raise UnreadableItemError(f"{outcome[:40]!r} is no outcome")


class Marker(NamedTuple):
    """A region that is to be swept."""

    org_id: str
    region: str
    nonce: str
    """A new one each time that it is marked."""


def marker_put(
    org_id: str, region: str, expires_at_epoch: int, visit: int = 0, nonce: str = ""
) -> Put:
    """Mark a region for a sweep.

    A mark lasts as long as the authorizations, since no process may sweep for days.
    """
    key = {"PK": f"{HOLDS}{visit}", "SK": f"{region}#{org_id}"}
    return Put(USAGE_AGG_SHARDED, {**key, _NONCE: nonce, EXPIRY: expires_at_epoch})


def marker_delete(marker: Marker, visit: int) -> Delete:
    """Remove the mark of a swept region, unless it was marked again meanwhile."""
    key, nonce = Key(f"{HOLDS}{visit}", f"{marker.region}#{marker.org_id}"), attr(_NONCE)
    same = nonce.eq(marker.nonce) if marker.nonce else nonce.absent() | nonce.eq("")
    return Delete(USAGE_AGG_SHARDED, key, same)


def markers_query(visit: int, last_region: str) -> Query:
    """The marked regions up to that one."""
    return Query(USAGE_AGG_SHARDED, f"{HOLDS}{visit}", first="0", last=f"{last_region}~")


def unsettled_put(org_id: str, region: str, expires_at_epoch: int) -> Put:
    """Mark a region that has unsettled authorizations, for as long as they are kept."""
    key = _unsettled_key(org_id, region)
    return Put(USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, EXPIRY: expires_at_epoch})


def unsettled_delete(org_id: str, region: str) -> Delete:
    """Remove the mark: no authorization in the region is unsettled."""
    return Delete(USAGE_AGG_SHARDED, _unsettled_key(org_id, region))


def unsettled_queries(
    first_region: str, last_region: str, org_id: str = ""
) -> Iterator[tuple[str, Query]]:
    """For each period, latest first, the query for marked regions of one organisation or of all.

    Regions of the first and the last period may be outside the range.
    """
    prefix = f"{org_id}#" if org_id else ""
    first, last = (int(region[:PERIOD_DIGITS], 16) for region in (first_region, last_region))
    for number in range(last, first - 1, -1):
        period = f"{number:0{PERIOD_DIGITS}x}"
        yield period, Query(USAGE_AGG_SHARDED, UNSETTLED + period, prefix=prefix)


def _unsettled_key(org_id: str, region: str) -> Key:
    return Key(f"{UNSETTLED}{region[:PERIOD_DIGITS]}", f"{org_id}#{region}")


def unsettled_region(item: Item) -> tuple[str, str]:
    """The organisation and the region of a mark."""
    org_id, _, region = str(item["SK"]).rpartition("#")
    return org_id, region


def marker_of(item: Item) -> Marker | None:
    """Decode a marker; one without a region is reported."""
    named = _MARKER.fullmatch(str(item["SK"]))
    if named is None:
        TypedItem(USAGE_AGG_SHARDED, item).report_unreadable("its sort key names no region")
        return None
    return Marker(named[2], named[1], str(item.get(_NONCE, "")))
