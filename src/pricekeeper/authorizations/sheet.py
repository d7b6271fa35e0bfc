"""A sheet: some authorizations in one item, and what has become of each. No I/O, no clock.

Whatever a transaction grants shares sheets, as many on each as leave it one write unit also when
all of them are captured: three, or two if their callers have named them, or one with many tags. For
authorization ``n`` of a sheet::

    g{n}             its grant
    s{n}             its state, until when it holds, and the nonce of whoever changed it last
    {n, 14 digits}   the usage record, once it is captured; beside it its terms, as on any page
    c{digest}        what the grants of one app and label have in common

The grant never changes. The state is one text, so that a change can be written on the condition
that the whole of it is as it was seen.
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
from pricekeeper.metering.journal import (
    Record,
    StoredTerms,
    authorization_id_of,
    entry_on,
    private_name,
    sheet_number,
    sheet_sort_key,
)
from pricekeeper.storage import TypedItem
from pricekeeper.storage.tables import USAGE_AGG_SHARDED

SHEET_BYTES: Final = 1_024
_KEY_BYTES: Final = 110
_GRANT_BYTES, _NAME_BYTES = 177, 54
"""What an authorization takes with its record, and what an id of its caller's own adds."""
_RECORD_TERMS_BYTES: Final = 128
"""About what the terms of records take, which captured authorizations of one label share."""
GRANT, STATE = "g", "s"
_TERMS: Final = "c"
_TERMS_BYTES: Final = 9
_ACCOUNTS: Final = "#BUDGETS"
_LETTERS: Final = {state: state.value[0] for state in State}
_STATES: Final = {letter: state for state, letter in _LETTERS.items()}
_TERMS_MAX: Final = 4_096
_encode: Final = msgspec.msgpack.Encoder().encode


class _StoredTerms(msgspec.Struct, frozen=True, array_like=True):
    """`GrantTerms` without what the item's key says, and each name once."""

    app_id: str | None
    label: str
    entities: tuple[str, ...]
    accounts: tuple[tuple[int, str, str], ...]
    buckets: tuple[tuple[int, dict[str, str]], ...]


class _StoredGrant(msgspec.Struct, frozen=True, array_like=True):
    terms: bytes
    fingerprint: bytes
    reason: str
    held_usd_picos: int
    input_tokens: int
    max_output_tokens: int
    waited_ms: int
    """How long before its sheet was begun it was asked for."""
    tokens: dict[str, int] | None
    """``None`` for the usual ones."""
    considered: tuple[Considered, ...] | None
    """``None`` if its own label was the only one."""
    tags: dict[str, str] | None
    asked_as: bytes | None


_decode_terms: Final = msgspec.msgpack.Decoder(_StoredTerms).decode
_decode_grant: Final = msgspec.msgpack.Decoder(_StoredGrant).decode


class SheetRoom:
    """What is left of a sheet's one write unit, as far as that is known beforehand."""

    def __init__(self) -> None:
        self._left = SHEET_BYTES - _KEY_BYTES
        self._terms: set[str] = set()

    def take(self, terms: StoredTerms, asked_as: str, tags: Mapping[str, str]) -> bool:
        """Take room for an authorization and its record, if there is as much or it is the first.

        Its tags are on the sheet twice. It may be captured under another label; then the sheet
        becomes larger than it should.
        """
        bytes_taken = _GRANT_BYTES + (_NAME_BYTES if asked_as else 0)
        if terms.name not in self._terms:
            bytes_taken += len(terms.name) + len(terms.data) + _RECORD_TERMS_BYTES
        for name, value in tags.items():
            bytes_taken += 2 * (len(name) + len(value))
        if self._terms and bytes_taken > self._left:
            return False
        self._left -= bytes_taken
        self._terms.add(terms.name)
        return True


def store_terms(org_id: str, terms: GrantTerms) -> StoredTerms:
    """The terms as a sheet has them: the same terms have the same name everywhere."""
    entities = dict.fromkeys(
        [*(one.pk.removesuffix(_ACCOUNTS) for one in terms.accounts)]
        + [bucket.entity for bucket in terms.buckets]
    )
    index = {entity: number for number, entity in enumerate(entities)}
    own = _app(terms.app_id)
    data = _encode(
        _StoredTerms(
            terms.app_id,
            terms.label,
            tuple(entity.removeprefix(_org(org_id)).replace(own, "~", 1) for entity in entities),
            tuple(
                (index[one.pk.removesuffix(_ACCOUNTS)], one.sk, one.id) for one in terms.accounts
            ),
            tuple((index[bucket.entity], bucket.terms) for bucket in terms.buckets),
        )
    )
    ref = hashlib.blake2b(data, digest_size=_TERMS_BYTES).digest()
    return StoredTerms(ref, _terms_name(ref), data)


def encode_grant(authorization: Authorization, terms: StoredTerms) -> bytes:
    """The grant of an authorization as its sheet has it."""
    grant = authorization.grant
    alone = grant.considered == (Considered(grant.label),)
    usual = grant.tokens == usual_tokens(grant.input_tokens, grant.max_output_tokens)
    return _encode(
        _StoredGrant(
            terms.ref,
            grant.fingerprint,
            grant.reason,
            grant.held_usd_picos,
            grant.input_tokens,
            grant.max_output_tokens,
            _begun_ms(sheet_sort_key(authorization.id)) - grant.authorized_at_ms,
            None if usual else grant.tokens,
            None if alone else grant.considered,
            grant.tags or None,
            UUID(grant.asked_as).bytes if grant.asked_as else None,
        )
    )


def state_text(authorization: Authorization) -> str:
    """What has become of an authorization, as its sheet says it."""
    one = authorization
    text = f"{_LETTERS[one.state]}{one.expires_at_ms:x}.{one.nonce.hex()}"
    if one.state is State.VOIDED and one.settlement is not None:
        text += f".{one.settlement.at_ms:x}.{one.settlement.reason}"
    return text


def authorizations_on(sheet: Mapping[str, Any]) -> Iterator[Authorization]:
    """Every authorization on the sheet; one that can't be read is reported and left out."""
    for name in sheet:
        if name[:1] == STATE and name[1:].isdigit():
            try:
                found = authorization_on(sheet, int(name[1:]))
            except UnreadableItemError:
                continue
            if found is not None:
                yield found


def find_on(sheet: Mapping[str, Any] | None, authorization_id: str) -> Authorization | None:
    """The authorization of that id, if it is on its sheet."""
    return None if sheet is None else authorization_on(sheet, sheet_number(authorization_id))


def authorization_on(sheet: Mapping[str, Any], number: int) -> Authorization | None:
    """The authorization of that number, if it is there; raises `UnreadableItemError`."""
    state: Any = sheet.get(f"{STATE}{number}")
    grant: Any = sheet.get(f"{GRANT}{number}")
    if state is None and grant is None:
        return None
    typed = TypedItem(USAGE_AGG_SHARDED, sheet)
    try:
        org_id = str(sheet["PK"]).split("#", 2)[1]
        record = entry_on(sheet, private_name(number))
        return _authorization(
            authorization_id_of(sheet["SK"], number), _grant_of(org_id, sheet, grant), state, record
        )
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise typed.report_unreadable(f"{number} is no authorization: {error}") from error


def _authorization(
    authorization_id: str, grant: Grant, text: str, record: Record | None
) -> Authorization:
    until, nonce, *rest = text[1:].split(".", 3)
    state = _STATES[text[0]]
    settlement = None
    if state is State.VOIDED:
        settlement = Settlement(int(rest[0], 16), reason=rest[1])
    elif state is State.CAPTURED:
        if record is None:
            raise LookupError("it is captured, and has no record")
        settlement = settlement_of(record)
    return Authorization(
        authorization_id, grant, state, int(until, 16), bytes.fromhex(nonce), settlement
    )


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


def _grant_of(org_id: str, sheet: Mapping[str, Any], data: bytes) -> Grant:
    stored = _decode_grant(data)
    terms = _terms_of(org_id, sheet[_terms_name(stored.terms)])
    alone = stored.considered is None
    return Grant(
        terms,
        stored.fingerprint,
        stored.reason,
        stored.held_usd_picos,
        stored.input_tokens,
        stored.max_output_tokens,
        _begun_ms(sheet["SK"]) - stored.waited_ms,
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
    entities = [_org(org_id) + entity.replace("~", own, 1) for entity in stored.entities]
    return GrantTerms(
        _org(org_id) + own.removeprefix("~"),
        stored.app_id,
        stored.label,
        tuple(
            HeldAccount(entities[number] + _ACCOUNTS, sk, account_id)
            for number, sk, account_id in stored.accounts
        ),
        tuple(HeldBucket(entities[number], terms) for number, terms in stored.buckets),
    )


def _begun_ms(sort_key: str) -> int:
    """When a sheet was begun."""
    return int(sort_key[1:13], 16)


def _terms_name(ref: bytes) -> str:
    return _TERMS + base64.urlsafe_b64encode(ref).decode()


def _app(app_id: str | None) -> str:
    """What the name of an app has behind that of its organisation; no name has such a mark."""
    return "~" if app_id is None else f"-app-{app_id}"


def _org(org_id: str) -> str:
    """What the name of an organisation and of each of its apps begins with."""
    return f"org-{org_id}"
