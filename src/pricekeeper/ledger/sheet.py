"""A sheet: changes of accounts, and outcomes of authorizations. No I/O, no clock.

It is an item of the journal, beside its pages. Its attributes are:

- ``z``: the writer's nonce, by which it recognises its sheet after a lost reply
- ``w``: when it was written, in milliseconds
- ``a``: the changes of accounts
- ``o``: outcomes of authorizations on earlier sheets, by their ids
- ``i``: the numbers on the sheet that callers' own ids stand for
- ``next``: on a seal, the next chapter

Other attributes belong to the commands: grants of authorizations, and records of captured ones,
named like records on every page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from pricekeeper.budgets import Balance
from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.position import Chapter
from pricekeeper.storage import Item, Key, TypedItem
from pricekeeper.storage.tables import USAGE_AGG_SHARDED

NONCE, WRITTEN, ACCOUNTS, OUTCOMES, NAMES, NEXT = "z", "w", "a", "o", "i", "next"
FILED_BYTES_MAX: Final = 64
"""Of the filed outcome of one authorization; an item has up to 3,200."""
FILED_PART_LENGTH: Final = 20
_PLACE: Final = "\n"
"""Separates parts; no outcome has a line feed in it."""
_encode: Final = msgspec.msgpack.Encoder().encode


class ItemChange(msgspec.Struct, frozen=True):
    """The changes of the accounts of one item."""

    accounts: dict[str, Balance]
    opened: tuple[str, ...] = ()
    """Accounts that it opens; the change is their first balance."""
    mends: int = 0


class Sheet(msgspec.Struct, frozen=True):
    """The part of a sheet that all readers need."""

    nonce: bytes
    written_at_ms: int
    changes: dict[Key, ItemChange] = {}
    outcomes: dict[str, str] = {}
    names: dict[str, int] = {}
    next: Chapter | None = None


class _StoredChange(msgspec.Struct, frozen=True, array_like=True):
    pk: str
    """Without the organisation's name, with which all begin."""
    sk: str
    accounts: list[tuple[str, int, int, int]]
    opened: tuple[str, ...] = ()
    mends: int = 0


_decode_changes: Final = msgspec.msgpack.Decoder(list[_StoredChange]).decode
_decode_outcomes: Final = msgspec.msgpack.Decoder(dict[bytes, str]).decode
_decode_names: Final = msgspec.msgpack.Decoder(dict[bytes, int]).decode


def sheet_attributes(org_id: str, sheet: Sheet) -> Item:
    """The attributes of a sheet that all readers need."""
    item: Item = {NONCE: sheet.nonce, WRITTEN: sheet.written_at_ms}
    if sheet.changes:
        item[ACCOUNTS] = _encode([_stored(org_id, *one) for one in sheet.changes.items()])
    if sheet.outcomes:
        outcomes = {_id_bytes(one): text for one, text in sheet.outcomes.items()}
        item[OUTCOMES] = _encode(outcomes)
    if sheet.names:
        item[NAMES] = _encode({_id_bytes(one): number for one, number in sheet.names.items()})
    if sheet.next is not None:
        item[NEXT] = sheet.next.text
    return item


def sheet_from(org_id: str, item: Mapping[str, Any]) -> Sheet:
    """Decode a sheet. Raises `UnreadableItemError`."""
    typed = TypedItem(USAGE_AGG_SHARDED, item)
    try:
        changes = dict(_changes(org_id, item.get(ACCOUNTS)))
        data = item.get(OUTCOMES)
        outcomes = {} if data is None else _decode_outcomes(data)
        named = typed.text(NEXT, None)
        return Sheet(
            item[NONCE],
            typed.moment_ms(WRITTEN),
            changes,
            {str(UUID(bytes=one)): text for one, text in outcomes.items()},
            names_on(item),
            None if named is None else Chapter.parse(named),
        )
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise typed.report_unreadable(f"it is no sheet: {error}") from error


def readable_sheet(org_id: str, item: Mapping[str, Any]) -> Sheet:
    """Decode a sheet; an unreadable one was reported, and is ``None``."""
    try:
        return sheet_from(org_id, item)
    except UnreadableItemError:
        return Sheet(b"", 0)


def names_on(item: Mapping[str, Any]) -> dict[str, int]:
    """The callers' own ids, and their numbers on the sheet."""
    data = item.get(NAMES)
    found = {} if data is None else _decode_names(data)
    return {str(UUID(bytes=name)): number for name, number in found.items()}


def readable_names(item: Mapping[str, Any]) -> dict[str, int]:
    """The same; unreadable ones are reported, and omitted."""
    try:
        return names_on(item)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        TypedItem(USAGE_AGG_SHARDED, item).report_unreadable(f"it names no ids: {error}")
        return {}


def is_long(outcome: str) -> bool:
    """Whether an outcome is filed in part, and read whole from its sheet."""
    return len(outcome.encode()) > FILED_BYTES_MAX


def filed_in_part(outcome: str, place: str) -> str:
    """The filed part of a long outcome; ``place`` is the prefix of its sheet's key."""
    return f"{outcome[:FILED_PART_LENGTH]}{_PLACE}{place}"


def parse_filed(text: str) -> tuple[str, str]:
    """Return a filed outcome, and where all of it is; empty if it is complete."""
    outcome, _, place = text.partition(_PLACE)
    return outcome, place


def is_written_by(item: Mapping[str, Any] | None, nonce: bytes) -> bool:
    """Whether the writer with that nonce wrote the sheet."""
    return item is not None and item.get(NONCE) == nonce


def _id_bytes(canonical: str) -> bytes:
    """`uuid.UUID` takes ten times as long."""
    return bytes.fromhex(canonical.replace("-", ""))


def _stored(org_id: str, key: Key, change: ItemChange) -> _StoredChange:
    if not key.pk.startswith(org_prefix(org_id)):
        raise LookupError(f"{key.pk} is no account of {org_id}")
    return _StoredChange(
        key.pk.removeprefix(org_prefix(org_id)),
        key.sk or "",
        [(name, one.used, one.held, one.unsettled) for name, one in change.accounts.items()],
        change.opened,
        change.mends,
    )


def _changes(org_id: str, data: bytes | None) -> Iterator[tuple[Key, ItemChange]]:
    for one in () if data is None else _decode_changes(data):
        accounts = {name: Balance(*picos) for name, *picos in one.accounts}
        yield Key(org_prefix(org_id) + one.pk, one.sk), ItemChange(accounts, one.opened, one.mends)


def org_prefix(org_id: str) -> str:
    """The prefix of the keys of an organisation and its apps."""
    return f"org-{org_id}"
