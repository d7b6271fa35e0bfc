"""The items of admin keys, all in one partition, oldest first.

An item has room for two hashes: the present text's, and the earlier one's until its grace ends. It
records whether the present text was ever used, so that a rotation with a lost reply can be
repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pricekeeper.admin_keys.key import AdminKey
from pricekeeper.authority import Coverage, Role
from pricekeeper.storage import Action, Condition, Item, Key, Remove, Set, TypedItem, attr
from pricekeeper.storage.tables import CONFIG
from pricekeeper.values import OrgId

PARTITION: Final = "ADMIN_KEYS"

HASH: Final = "key_hash"
USED_AT: Final = "key_used_at_epoch"
PREVIOUS_HASH: Final = "key_previous_hash"
PREVIOUS_ENDS_AT: Final = "key_previous_ends_at_epoch"
ROTATIONS: Final = "rotations"
ROTATED_AT: Final = "rotated_at_epoch"
LAST_USED_AT: Final = "last_used_at_epoch"
_ENDS_AT: Final = "key_ends_at_epoch"
_ORG_IDS: Final = "org_ids"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key with the state of its texts."""

    key: AdminKey
    hash: str = field(repr=False)
    used_at_epoch: int | None
    previous_hash: str | None = field(repr=False)
    rotations: int

    def previous_counts(self, now_epoch: int) -> bool:
        ends_at_epoch = self.key.old_text_ends_at_epoch
        has_one = self.previous_hash is not None and ends_at_epoch is not None
        return has_one and (ends_at_epoch or 0) > now_epoch


def item_key(key_id: str) -> Key:
    """The key of an admin key's item."""
    return Key(PARTITION, key_id)


def owner_of(key_id: str) -> str:
    """Binds the hashes to this key, so that no other secret matches them."""
    return f"admin-key/{key_id}"


def new_item(key: AdminKey, hashed: str) -> Item:
    """The item of a new key."""
    item: Item = {
        "PK": PARTITION,
        "SK": key.key_id,
        "name": key.name,
        "role": key.role.value,
        "created_at_epoch": key.created_at_epoch,
        "created_by": key.created_by,
        HASH: hashed,
        ROTATIONS: 0,
    }
    if key.coverage.org_ids is not None:
        item[_ORG_IDS] = sorted(key.coverage.org_ids)
    if key.expires_at_epoch is not None:
        item[_ENDS_AT] = key.expires_at_epoch
    return item


def stored_key(item: Item) -> StoredKey:
    """Read a key; an unreadable list of organisations never means all."""
    typed = TypedItem(CONFIG, item)
    org_ids = typed.texts(_ORG_IDS, None)
    coverage = Coverage(None if org_ids is None else frozenset(map(OrgId, org_ids)))
    role = typed.text("role")
    if role not in set(Role):
        raise typed.report_unreadable("role is none that there is")
    key = AdminKey(
        key_id=typed.text("SK"),
        name=typed.text("name"),
        role=Role(role),
        coverage=coverage,
        created_at_epoch=typed.whole("created_at_epoch"),
        created_by=typed.text("created_by"),
        expires_at_epoch=typed.whole(_ENDS_AT, None),
        rotated_at_epoch=typed.whole(ROTATED_AT, None),
        last_used_at_epoch=typed.whole(LAST_USED_AT, None),
        old_text_ends_at_epoch=typed.whole(PREVIOUS_ENDS_AT, None),
    )
    return StoredKey(
        key,
        typed.text(HASH),
        typed.whole(USED_AT, None),
        typed.text(PREVIOUS_HASH, None),
        typed.whole(ROTATIONS, least=0),
    )


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
