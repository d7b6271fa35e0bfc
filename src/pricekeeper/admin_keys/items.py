"""The items of admin keys, all in one partition, oldest first.

An item has room for two hashes: the present text's, and the earlier one's until its grace ends. It
records whether the present text was ever used, so that a rotation with a lost reply can be
repeated.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field, to_builtins

from pricekeeper.admin_keys.key import AdminKey
from pricekeeper.storage import Action, Condition, Item, Key, Remove, Set, TypedItem, attr
from pricekeeper.storage.tables import CONFIG

PARTITION: Final = "ADMIN_KEYS"

HASH: Final = "key_hash"
USED_AT: Final = "key_used_at_epoch"
PREVIOUS_HASH: Final = "key_previous_hash"
PREVIOUS_ENDS_AT: Final = "key_previous_ends_at_epoch"
ROTATIONS: Final = "rotations"
ROTATED_AT: Final = "rotated_at_epoch"
LAST_USED_AT: Final = "last_used_at_epoch"


class StoredKey(AdminKey, frozen=True, kw_only=True):
    """A key with the state of its texts."""

    hash: str = field(name=HASH)
    used_at_epoch: int | None = field(default=None, name=USED_AT)
    previous_hash: str | None = field(default=None, name=PREVIOUS_HASH)
    rotations: Annotated[int, Meta(ge=0)]

    def __repr__(self) -> str:
        return f"StoredKey(key_id={self.key_id!r})"

    def previous_counts(self, now_epoch: int) -> bool:
        return self.previous_hash is not None and (self.old_text_ends_at_epoch or 0) > now_epoch


def item_key(key_id: str) -> Key:
    """The key of an admin key's item."""
    return Key(PARTITION, key_id)


def owner_of(key_id: str) -> str:
    """Binds the hashes to this key, so that no other secret matches them."""
    return f"admin-key/{key_id}"


def new_item(key: AdminKey, hashed: str) -> Item:
    """The item of a new key."""
    plain = to_builtins(key, order="deterministic")
    return {"PK": PARTITION, **plain, HASH: hashed, ROTATIONS: 0}


def stored_key(item: Item) -> StoredKey:
    """Read a key; an unreadable list of organisations never means all."""
    return TypedItem(CONFIG, item).convert(StoredKey)


def rotation_actions(
    stored: StoredKey, new_hash: str, now_epoch: int, grace_secs: int
) -> tuple[Action, ...]:
    """Replace the present text; the text in use stays valid until the grace ends.

    An unused present text was lost or is not in place yet, so the earlier text keeps its grace.
    """
    in_use: str | None = stored.hash
    if stored.used_at_epoch is None and stored.previous_counts(now_epoch):
        in_use = stored.previous_hash
    actions: tuple[Action, ...] = (
        Set(HASH, new_hash),
        Set(ROTATIONS, stored.rotations + 1),
        Set(ROTATED_AT, now_epoch),
        Remove(USED_AT),
    )
    if grace_secs == 0:
        return (*actions, Remove(PREVIOUS_HASH), Remove(PREVIOUS_ENDS_AT))
    ends_at_epoch = now_epoch + grace_secs
    return (*actions, Set(PREVIOUS_HASH, in_use), Set(PREVIOUS_ENDS_AT, ends_at_epoch))


def same_rotation(stored: StoredKey) -> Condition:
    """The condition that the key was neither rotated nor deleted since it was read."""
    return attr(ROTATIONS).eq(stored.rotations)
