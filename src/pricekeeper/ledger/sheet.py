"""A sheet: what one write adds to accounts, and what it says of authorizations. No I/O, no clock.

An item of the journal, beside its pages::

    z           the nonce of whoever wrote it: who lost the reply knows it again
    w           when it was written, in milliseconds
    a           what it adds to which accounts
    o           what becomes of authorizations on earlier sheets, by their ids
    i           which ids that callers gave stand for which numbers on the sheet
    next        on a seal: the chapter that follows

Everything else on it is of whoever has it written: grants of authorizations, and records of those
that are captured, named as records are on every page.
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
"""Of what is filed about one authorization: an item has those of up to 3,200."""
FILED_PART_LENGTH: Final = 20
_PLACE: Final = "\n"
"""No outcome has a line's end in it."""
_encode: Final = msgspec.msgpack.Encoder().encode


class ItemChange(msgspec.Struct, frozen=True):
    """What a sheet adds to the accounts of one item."""

    accounts: dict[str, Balance]
    opened: tuple[str, ...] = ()
    """Those of them that it opens: what it adds to them is what they begin with."""
    mends: int = 0
    """How many of its accounts were set right."""


class Sheet(msgspec.Struct, frozen=True):
    """What everybody has to know of a sheet."""

    nonce: bytes
    written_at_ms: int
    changes: dict[Key, ItemChange] = {}
    outcomes: dict[str, str] = {}
    names: dict[str, int] = {}
    next: Chapter | None = None


class _StoredChange(msgspec.Struct, frozen=True, array_like=True):
    pk: str
    """Without the name of the organisation, which each of them begins with."""
    sk: str
    accounts: list[tuple[str, int, int, int]]
    opened: tuple[str, ...] = ()
    mends: int = 0


_decode_changes: Final = msgspec.msgpack.Decoder(list[_StoredChange]).decode
_decode_outcomes: Final = msgspec.msgpack.Decoder(dict[bytes, str]).decode
_decode_names: Final = msgspec.msgpack.Decoder(dict[bytes, int]).decode


def sheet_attributes(org_id: str, sheet: Sheet) -> Item:
    """The attributes of a sheet that everybody reads."""
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
    """The sheet that an item is. Raises `UnreadableItemError` if it is none."""
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
    """The same. One that can't be read says nothing; it was reported."""
    try:
        return sheet_from(org_id, item)
    except UnreadableItemError:
        return Sheet(b"", 0)


def names_on(item: Mapping[str, Any]) -> dict[str, int]:
    """The ids that callers gave, and for which numbers on the sheet they stand."""
    data = item.get(NAMES)
    found = {} if data is None else _decode_names(data)
    return {str(UUID(bytes=name)): number for name, number in found.items()}


def readable_names(item: Mapping[str, Any]) -> dict[str, int]:
    """The same. A sheet on which they can't be read is reported, and has none."""
    try:
        return names_on(item)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        TypedItem(USAGE_AGG_SHARDED, item).report_unreadable(f"it names no ids: {error}")
        return {}


def is_long(outcome: str) -> bool:
    """Whether an outcome is filed in part only, and all of it is read from its sheet."""
    return len(outcome.encode()) > FILED_BYTES_MAX


def filed_in_part(outcome: str, place: str) -> str:
    """A long outcome as it is filed; ``place`` is how the key of its sheet starts."""
    return f"{outcome[:FILED_PART_LENGTH]}{_PLACE}{place}"


def parse_filed(text: str) -> tuple[str, str]:
    """What is filed of an outcome, and where all of it is; nowhere else if that is empty."""
    outcome, _, place = text.partition(_PLACE)
    return outcome, place


def is_written_by(item: Mapping[str, Any] | None, nonce: bytes) -> bool:
    """Whether that is the sheet of whoever has that nonce."""
    return item is not None and item.get(NONCE) == nonce


def _id_bytes(canonical: str) -> bytes:
    """The bytes of an id in canonical form; `uuid.UUID` takes ten times as long."""
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
    """What the names of an organisation and of each of its apps begin with; so do their keys."""
    return f"org-{org_id}"
