"""Grants on the sheets of an organisation's log. No I/O, no clock.

For authorization ``n`` of a sheet::

    g{n}             its grant
    c{digest}        what the grants of one app and label have in common

A grant never changes. Later sheets say what becomes of it (`outcomes`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
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
from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.position import authorization_id_of, sheet_number
from pricekeeper.ledger.sheet import WRITTEN, org_prefix
from pricekeeper.metering.journal import Record, StoredTerms
from pricekeeper.storage import Key, TypedItem
from pricekeeper.storage.tables import USAGE_AGG_SHARDED

GRANT: Final = "g"
_TERMS: Final = "c"
_TERMS_BYTES: Final = 9
_ACCOUNTS: Final = "#BUDGETS"
_TERMS_MAX: Final = 4_096
_encode: Final = msgspec.msgpack.Encoder().encode


class _StoredTerms(msgspec.Struct, frozen=True, array_like=True):
    """`GrantTerms` without what the item's key says, and each name once."""

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
    """How long before its sheet was written it was asked for."""
    tokens: dict[str, int] | None
    """``None`` for the usual ones."""
    considered: tuple[Considered, ...] | None
    """``None`` if its own label was the only one."""
    tags: dict[str, str] | None
    asked_as: bytes | None
    hold_ms: int
    """How long after its sheet was written it expires."""


_decode_terms: Final = msgspec.msgpack.Decoder(_StoredTerms).decode
_decode_grant: Final = msgspec.msgpack.Decoder(_StoredGrant).decode


def store_terms(org_id: str, terms: GrantTerms) -> StoredTerms:
    """The terms as a sheet has them: the same terms have the same name everywhere."""
    entities = dict.fromkeys(
        [*(one.key.pk.removesuffix(_ACCOUNTS) for one in terms.accounts)]
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
                (index[one.key.pk.removesuffix(_ACCOUNTS)], one.key.sk or "", one.id)
                for one in terms.accounts
            ),
            tuple((index[bucket.entity], bucket.terms) for bucket in terms.buckets),
            terms.by_gateway,
        )
    )
    ref = hashlib.blake2b(data, digest_size=_TERMS_BYTES).digest()
    return StoredTerms(ref, _terms_name(ref), data)


def encode_grant(grant: Grant, terms: StoredTerms, written_at_ms: int, hold_ms: int) -> bytes:
    """A grant as its sheet has it."""
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
    """Every authorization on the sheet; one that can't be read is reported and left out."""
    for name in sheet:
        if name[:1] == GRANT and name[1:].isdigit():
            try:
                found = authorization_on(sheet, int(name[1:]))
            except UnreadableItemError:
                continue
            if found is not None:
                yield found


def find_on(sheet: Mapping[str, Any] | None, authorization_id: str) -> Authorization | None:
    """The authorization of that id as it was granted, if it is on its sheet."""
    return None if sheet is None else authorization_on(sheet, sheet_number(authorization_id))


def authorization_on(sheet: Mapping[str, Any], number: int) -> Authorization | None:
    """The authorization of that number, if it is there; raises `UnreadableItemError`."""
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
    """How an authorization was captured, by the record that it counts as."""
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
        HeldAccount(Key(entities[number] + _ACCOUNTS, sk), account_id)
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
    """What the name of an app has behind that of its organisation; no name has such a mark."""
    return "~" if app_id is None else f"-app-{app_id}"
