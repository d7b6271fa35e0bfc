"""The items of the audit trail, in a table of its own, and one of each chain in Config.

- ``CHAIN#{chain}`` / ``{number}``: an entry, as the JSON text that is hashed
- ``HEADS`` / ``{chain}``: the number and hash of the chain's last entry; it never expires
- ``TIMELINE`` / ``{id}``: for each entry of any chain where it is, in the order of time, so that
  the changes to all organisations are listed without a look at each of them

- ``AUDIT_CHAINS`` / ``{chain}``, in Config: how often the chain was begun. It is written with the
  first entry, so that a chain which is removed from the table as a whole is missed there

Nothing is ever updated or deleted in the table of the trail: the head is put in place of the one
that was read, and everything else is put once. So whoever runs the service needs no
right to do either.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

import msgspec

from pricekeeper.audit.entry import Head, TrailEntry, canonical_bytes, head_after
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import ITEM_ABSENT, Add, Item, Key, Put, Query, TypedItem, Update, attr
from pricekeeper.storage.tables import AUDIT_TRAIL, CONFIG

HEADS: Final = "HEADS"
TIMELINE: Final = "TIMELINE"
BEGINNINGS: Final = "AUDIT_CHAINS"
_BEGUN: Final = "begun"
_BODY: Final = "entry"
_SEQ_DIGITS: Final = 12
_SORT_KEY: Final = re.compile(f"[0-9]{{{_SEQ_DIGITS}}}", re.ASCII)


class ListedEntry(msgspec.Struct, frozen=True):
    """What the timeline says of an entry."""

    id: str
    chain: str
    seq: int
    actor: str
    action: str


def chain_partition(chain: str) -> str:
    """The partition of a chain's entries."""
    return f"CHAIN#{chain}"


def entry_key(chain: str, seq: int) -> Key:
    """The key of an entry; keys are in the order of the numbers."""
    return Key(chain_partition(chain), f"{seq:0{_SEQ_DIGITS}}")


def seq_of(item: Item) -> int | None:
    """The number that the key of an item in a chain says; ``None`` if it is no entry's key."""
    sort_key = str(item["SK"])
    return int(sort_key) if _SORT_KEY.fullmatch(sort_key) else None


def head_key(chain: str) -> Key:
    """The key of a chain's head."""
    return Key(HEADS, chain)


def listed_key(entry_id: str) -> Key:
    """The key of an entry in the timeline."""
    return Key(TIMELINE, entry_id)


def beginning_key(chain: str) -> Key:
    """The key of what Config says of a chain."""
    return Key(BEGINNINGS, chain)


def beginning_update(chain: str) -> Update:
    """Count that a chain begins, in the transaction of its first entry."""
    return Update(CONFIG, beginning_key(chain), (Add(_BEGUN, 1),))


def beginnings_query() -> Query:
    """Every chain that was ever begun."""
    return Query(CONFIG, BEGINNINGS)


def times_begun(item: Item | None) -> int:
    """How often a chain was begun, as far as that is known; once, if the item says no number."""
    if item is None:
        return 0
    begun = item.get(_BEGUN)
    return begun if type(begun) is int and begun > 0 else 1


def append_puts(entry: TrailEntry, head: Head) -> tuple[Put, Put, Put]:
    """The writes that append an entry to a chain that ends with that head: the head comes first.

    Each of them is refused once it was applied, so the transaction can be sent any number of times.
    """
    after = head_after(entry)
    expiry = {"expires_at_epoch": entry.expires_at_epoch}
    return (
        Put(
            AUDIT_TRAIL,
            {
                **_keyed(head_key(entry.chain)),
                "seq": after.seq,
                "hash": after.hash,
                "entry_expires_at_epoch": after.expires_at_epoch,
            },
            attr("seq").eq(head.seq) & attr("hash").eq(head.hash) if head.seq else ITEM_ABSENT,
        ),
        Put(
            AUDIT_TRAIL,
            {
                **_keyed(entry_key(entry.chain, entry.seq)),
                _BODY: canonical_bytes(entry).decode(),
                **expiry,
            },
            ITEM_ABSENT,
        ),
        Put(
            AUDIT_TRAIL,
            {
                **_keyed(listed_key(entry.id)),
                "chain": entry.chain,
                "seq": entry.seq,
                "actor": entry.actor,
                "action": entry.action,
                **expiry,
            },
            ITEM_ABSENT,
        ),
    )


def head_from(item: Any) -> Head:
    """The head of a chain; of one without entries, if there is none."""
    if item is None:
        return Head()
    typed = TypedItem(AUDIT_TRAIL, item)
    return Head(
        typed.whole("seq", least=1),
        typed.text("hash"),
        typed.whole("entry_expires_at_epoch", least=0),
    )


def body_of(item: Item) -> bytes:
    """The bytes of an entry, as they were hashed."""
    body: str = TypedItem(AUDIT_TRAIL, item).text(_BODY)
    return body.encode("utf-8", "surrogatepass")


def entry_from(item: Item) -> TrailEntry:
    """The entry; raises `UnreadableItemError` if it is none."""
    try:
        return msgspec.json.decode(body_of(item), type=TrailEntry)
    except msgspec.MsgspecError as error:
        raise TypedItem(AUDIT_TRAIL, item).report_unreadable(f"it is no entry: {error}") from error


def readable_entry(item: Item | None) -> TrailEntry | None:
    """The entry, if it is there and can be read; one that can't be is reported."""
    if item is not None:
        with contextlib.suppress(UnreadableItemError):
            return entry_from(item)
    return None


def listed_from(item: Item) -> ListedEntry:
    """What the timeline says."""
    typed = TypedItem(AUDIT_TRAIL, item)
    return ListedEntry(
        str(item["SK"]),
        typed.text("chain"),
        typed.whole("seq", least=1),
        typed.text("actor"),
        typed.text("action"),
    )


def readable_listed(item: Item | None) -> ListedEntry | None:
    """What the timeline says, if it is there and can be read; what can't be is reported."""
    if item is not None:
        with contextlib.suppress(UnreadableItemError):
            return listed_from(item)
    return None


def heads_query() -> Query:
    """The heads of all chains."""
    return Query(AUDIT_TRAIL, HEADS)


def chain_query(chain: str, *, after: str = "", limit: int, descending: bool = False) -> Query:
    """The entries of a chain, behind the one with that sort key."""
    pk = chain_partition(chain)
    return Query(AUDIT_TRAIL, pk, after=after, limit=limit, descending=descending)


def timeline_query(
    first_ms: int, end_ms: int, *, after: str = "", limit: int, descending: bool = False
) -> Query:
    """The timeline from one moment to before another, behind the entry with that id."""
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
    """What comes before every id that was made at that moment, and behind all earlier ones."""
    digits = f"{at_ms:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _keyed(key: Key) -> Item:
    return {"PK": key.pk, "SK": key.sk}
