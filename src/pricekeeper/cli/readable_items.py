"""Items of the store in a form for people: bytes are decoded, and secrets are hidden.

Hidden are secrets, hashes of secrets and sealed addresses, also where a key contains one: an item
shows that there is one. A hidden value leaves no trace of itself, not even its length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from pricekeeper.authorizations.items import authorization_on
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.journal import JournalEntry, Terms, record_on
from pricekeeper.storage import Item, Table
from pricekeeper.storage.tables import SECRET_RETRIEVAL_TOKENS, USAGE_AGG_SHARDED
from pricekeeper.storage.values import DAMAGED, Foreign

HIDDEN: Final = "(hidden)"
BYTES_SHOWN_MAX: Final = 16
"""Longer bytes that are no text, JSON or MessagePack are shown as their length."""
_SECRET_NAMES: Final = re.compile(r".*_hash|sealed|secret_retrieval_key|.*(secret|password)")
_SECRET_VALUES: Final = re.compile(r"hmac-sha256\$|\$2[abxy]?\$|pk[a-z]{1,2}_")
"""Hashes of secrets and secrets themselves, under any name."""
_KEYS_WITH_HASHES: Final = re.compile(r"(BLOCK#refresh#|api/(?:key|org-key)/).*")
_RECORD: Final = re.compile(r"[\w-]{14}")
_TERMS: Final = re.compile(r"t[\w-]{16}")
_GRANT: Final = re.compile(r"g([0-9]{1,6})")


def readable_item(table: Table, item: Item) -> dict[str, Any]:
    """The item for people; its keys come first."""
    keys = [name for name in ("PK", "SK") if name in item]
    shown: dict[str, Any] = {name: _value(name, item[name]) for name in keys}
    if table is SECRET_RETRIEVAL_TOKENS:
        shown["PK"] = HIDDEN
    for name in sorted(item.keys() - shown.keys()):
        if name == DAMAGED:
            shown["(damaged)"] = "this item can't be decoded"
        elif table is USAGE_AGG_SHARDED and isinstance(item[name], bytes):
            shown[name] = _of_journal(name, item)
        else:
            shown[name] = _value(name, item[name])
    return shown


def _of_journal(name: str, item: Item) -> Any:
    """A record, terms or a grant by its fields; other bytes as anywhere."""
    data = item[name]
    try:
        if grant := _GRANT.fullmatch(name):
            return _plain(authorization_on(item, int(grant[1])))
        if _TERMS.fullmatch(name):
            return _filled(msgspec.msgpack.decode(data, type=Terms))
        if _RECORD.fullmatch(name) and (record := record_on(item, name)):
            return {"request_id": record.request_id, **_filled(record.entry)}
    except (msgspec.MsgspecError, UnreadableItemError):
        return _bytes(data)
    return _bytes(data)


def _filled(found: JournalEntry | Terms) -> dict[str, Any]:
    """The fields that are not at their defaults, by name."""
    fields = msgspec.structs.fields(found)
    filled = {one.name: getattr(found, one.name) for one in fields}
    return {one.name: _plain(filled[one.name]) for one in fields if filled[one.name] != one.default}


def _plain(value: Any) -> Any:
    return _value("", msgspec.to_builtins(value, builtin_types=(bytes,)))


def _value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if _SECRET_NAMES.fullmatch(name):
        return HIDDEN
    shown: Any
    match value:
        case str():
            hidden = _SECRET_VALUES.match(value)
            shown = HIDDEN if hidden else _KEYS_WITH_HASHES.sub(rf"\1{HIDDEN}", value)
        case bytes():
            shown = _bytes(value)
        case Mapping():
            shown = {_text(key): _value(_text(key), one) for key, one in value.items()}
        case AbstractSet():
            shown = sorted(_value(name, one) for one in value)
        case Sequence():
            shown = [_value(name, one) for one in value]
        case Foreign():
            shown = f"(a value of type {value.kind})"
        case _:
            shown = _plain(value)
    return shown


def _text(key: Any) -> str:
    return key if isinstance(key, str) else str(_bytes(key) if isinstance(key, bytes) else key)


def _bytes(data: bytes) -> Any:
    """JSON or MessagePack if it is a list or a map, else text, else hexadecimal digits."""
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            found = decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if isinstance(found, (dict, list)):
            return _value("", found)
    return data.hex() if len(data) <= BYTES_SHOWN_MAX else f"({len(data)} bytes)"
