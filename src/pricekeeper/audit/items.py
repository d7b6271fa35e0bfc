"""The items of the audit trail: keys and codec.

In a table of their own:

- ``CHAIN#{chain}`` / ``{number}``: an entry, as the JSON text that is hashed
- ``HEADS`` / ``{chain}``: number and hash of the chain's last entry; it never expires
- ``TIMELINE`` / ``{id}``: the place of each entry in the order of time

In Config:

- ``AUDIT_CHAINS`` / ``{chain}``: how often the chain was begun, written with its first entry, so
  that a chain with all items removed is missed

The trail's table needs no right to update or delete: a head is replaced by a conditional put, and
everything else is put once.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from pricekeeper.audit.entry import Head, TrailEntry, canonical_bytes, head_after
from pricekeeper.storage import ITEM_ABSENT, Add, Item, Key, Put, Query, TypedItem, Update, attr
from pricekeeper.storage.tables import AUDIT_TRAIL, CONFIG

HEADS: Final = "HEADS"
TIMELINE: Final = "TIMELINE"
BEGINNINGS: Final = "AUDIT_CHAINS"
_BEGUN: Final = "begun"
_BODY: Final = "entry"
_SEQ_DIGITS: Final = 12
_SORT_KEY: Final = re.compile(f"[0-9]{{{_SEQ_DIGITS}}}", re.ASCII)


class ListedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry's line in the timeline."""

    id: str = msgspec.field(name="SK")
    chain: str
    seq: Annotated[int, msgspec.Meta(ge=1)]
    actor: str
    action: str


def entry_key(chain: str, seq: int) -> Key:
    """The key of an entry; keys sort by number."""
    return Key(f"CHAIN#{chain}", f"{seq:0{_SEQ_DIGITS}}")


def seq_of(item: Item) -> int | None:
    """The number in an entry's key; ``None`` if it is no such key."""
    sort_key = str(item["SK"])
    return int(sort_key) if _SORT_KEY.fullmatch(sort_key) else None


def head_key(chain: str) -> Key:
    """The key of a chain's head."""
    return Key(HEADS, chain)


def listed_key(entry_id: str) -> Key:
    """The key of an entry's line in the timeline."""
    return Key(TIMELINE, entry_id)


def beginning_key(chain: str) -> Key:
    """The key of a chain's item in Config."""
    return Key(BEGINNINGS, chain)


def beginning_update(chain: str) -> Update:
    """Count that a chain begins, in the transaction of its first entry."""
    return Update(CONFIG, beginning_key(chain), (Add(_BEGUN, 1),))


def times_begun(item: Item | None) -> int:
    """How often a chain was begun; 1 if the item has no number."""
    if item is None:
        return 0
    begun = item.get(_BEGUN)
    return begun if type(begun) is int and begun > 0 else 1


def append_puts(entry: TrailEntry, head: Head) -> tuple[Put, Put, Put]:
    """Append an entry after that head; the head's write comes first.

    Each write is refused once applied, so the transaction can be repeated.
    """
    after = head_after(entry)
    expiry = {"expires_at_epoch": entry.expires_at_epoch}
    listed = msgspec.convert(entry, ListedEntry, from_attributes=True)
    return (
        Put(
            AUDIT_TRAIL,
            {
                **head_key(entry.chain).attributes,
                "seq": after.seq,
                "hash": after.hash,
                "entry_expires_at_epoch": after.expires_at_epoch,
            },
            attr("seq").eq(head.seq) & attr("hash").eq(head.hash) if head.seq else ITEM_ABSENT,
        ),
        Put(
            AUDIT_TRAIL,
            {
                **entry_key(entry.chain, entry.seq).attributes,
                _BODY: canonical_bytes(entry).decode(),
                **expiry,
            },
            ITEM_ABSENT,
        ),
        Put(
            AUDIT_TRAIL,
            {"PK": TIMELINE, **msgspec.to_builtins(listed), **expiry},
            ITEM_ABSENT,
        ),
    )


def head_from(item: Any) -> Head:
    """Read a chain's head; without an item, that of an empty chain."""
    if item is None:
        return Head()
    typed = TypedItem(AUDIT_TRAIL, item)
    return Head(
        typed.whole("seq", least=1),
        typed.text("hash"),
        typed.whole("entry_expires_at_epoch", least=0),
    )


def body_of(item: Item) -> bytes:
    """The hashed bytes of an entry."""
    body: str = TypedItem(AUDIT_TRAIL, item).text(_BODY)
    return body.encode("utf-8", "surrogatepass")


def entry_from(item: Item) -> TrailEntry:
    """Read an entry; raises `UnreadableItemError`."""
    try:
        return msgspec.json.decode(body_of(item), type=TrailEntry)
    except msgspec.MsgspecError as error:
        raise TypedItem(AUDIT_TRAIL, item).report_unreadable(f"it is no entry: {error}") from error


def listed_from(item: Item) -> ListedEntry:
    """Read a line of the timeline."""
    return TypedItem(AUDIT_TRAIL, item).convert(ListedEntry)


def chain_query(chain: str, *, after: str = "", limit: int, descending: bool = False) -> Query:
    """Query the entries of a chain after that sort key."""
    return Query(AUDIT_TRAIL, f"CHAIN#{chain}", after=after, limit=limit, descending=descending)


def timeline_query(
    first_ms: int, end_ms: int, *, after: str = "", limit: int, descending: bool = False
) -> Query:
    """Query the timeline from the first moment to before the last, after that id."""
    return Query(
        AUDIT_TRAIL,
        TIMELINE,
        first=_ids_from(first_ms),
        last=_ids_from(max(0, end_ms)),  # no id is as short as that
        after=after,
        limit=limit,
        descending=descending,
    )


def _ids_from(at_ms: int) -> str:
    digits = f"{at_ms:012x}"
    return f"{digits[:8]}-{digits[8:]}"
