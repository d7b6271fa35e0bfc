"""Items of sessions, in the table ``Sessions``: keys, codec and conditions.

- ``SUBJECT#{client}`` / ``SLOT#{nnn}``: a session in its slot
- ``BLOCK#refresh#{sha256}`` / ``BLOCK``: the refresh token of an evicted session

An ended session is marked, not removed: in an empty slot, a delayed copy of the opening write would
bring it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from pricekeeper.errors import UnreadableItemError
from pricekeeper.sessions.session import SLOTS_MAX, Labels, Session, SessionId, Slots
from pricekeeper.storage import (
    ITEM_ABSENT,
    Condition,
    Item,
    Key,
    Query,
    Set,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.tables import SESSIONS

SLOT_PREFIX: Final = "SLOT#"


def partition(subject: str) -> str:
    """The partition of the subject."""
    return f"SUBJECT#{subject}"


def slot_key(subject: str, slot: int) -> Key:
    """The key of a slot."""
    return Key(partition(subject), f"{SLOT_PREFIX}{slot:03}")


def block_key(refresh_hash: str) -> Key:
    """The key of a blocklist entry."""
    return Key(f"BLOCK#refresh#{refresh_hash}", "BLOCK")


def slots_query(subject: str) -> Query:
    """Query all slots of the subject."""
    return Query(SESSIONS, partition(subject), prefix=SLOT_PREFIX, limit=SLOTS_MAX)


def slots_from(items: Iterable[Item], token_generation: str) -> Slots:
    """Parse the query's items. An unreadable slot is reported and never used."""
    held, unreadable = [], set()
    for item in items:
        try:
            held.append(session_from(item))
        except UnreadableItemError:
            unreadable.add(str(item["SK"]).removeprefix(SLOT_PREFIX))
    blocked = frozenset(int(slot) for slot in unreadable if slot.isdecimal())
    return Slots(token_generation, tuple(held), blocked)


def generation_of(session_id: SessionId, slot: Item | None) -> str | None:
    """The token generation of the session in that slot; ``None`` if it has ended.

    Raises `UnreadableItemError`.
    """
    if slot is None:
        return None
    typed = TypedItem(SESSIONS, slot)
    if typed.text("nonce") != session_id.nonce or typed.whole("ended_at_ms"):
        return None
    return typed.text("token_generation")


def session_item(session: Session) -> Item:
    """The item of a session."""
    plain = msgspec.to_builtins(session)
    named = {"nonce": session.id.nonce, **plain.pop("labels")}
    del plain["subject"], plain["id"]
    return {**slot_key(session.subject, session.id.slot).attributes, **named, **plain}


def session_from(item: Mapping[str, Any]) -> Session:
    """Read a session; raises `UnreadableItemError`."""
    slot = str(item["SK"]).removeprefix(SLOT_PREFIX)
    if not slot.isdecimal():
        raise TypedItem(SESSIONS, item).report_unreadable("its sort key names no slot")
    named = {
        "subject": str(item["PK"]).removeprefix(partition("")),
        "id": {"slot": int(slot), "nonce": item.get("nonce")},
        "labels": {name: item.get(name) for name in Labels.__struct_fields__},
        "ended_at_ms": item.get("ended_at_ms"),
    }
    return TypedItem(SESSIONS, {**item, **named}).convert(Session)


def block_item(evicted: Session, now_ms: int) -> Item:
    """The blocklist entry of a session's refresh token, until the token's expiry."""
    return {
        **block_key(evicted.refresh_hash).attributes,
        "user_id": evicted.subject,
        "session_id": str(evicted.id),
        "evicted_at": datetime.fromtimestamp(now_ms // 1000, UTC).isoformat(),
        "expires_at_epoch": evicted.ends_at_epoch,
    }


def free(left: Session | None) -> Condition:
    """The condition that the slot is empty, expired, or has the same dead session."""
    return ITEM_ABSENT if left is None else ITEM_ABSENT | still(left)


def still(session: Session) -> Condition:
    """The condition that the slot holds this session, not refreshed and not ended meanwhile."""
    return (
        attr("nonce").eq(session.id.nonce)
        & attr("refresh_hash").eq(session.refresh_hash)
        & attr("ended_at_ms").eq(session.ended_at_ms)
    )


def holds(session_id: SessionId) -> Condition:
    """The condition that the slot holds this session, refreshed or not, and it has not ended."""
    return attr("nonce").eq(session_id.nonce) & attr("ended_at_ms").eq(0)


def ending(subject: str, slot: int, now_ms: int, condition: Condition) -> Update:
    """Mark the session in the slot as ended; a copy of this write changes nothing."""
    return Update(SESSIONS, slot_key(subject, slot), (Set("ended_at_ms", now_ms),), condition)
