"""Admin keys: their values and the form of their texts.

A text is ``pka_``, the key's id (its time of creation, no secret), 256 random bits and a checksum.
The id names the item to compare it with.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from pricekeeper.authority import Attribution, Authority, Coverage, KeyKind, Role, may_produce
from pricekeeper.credentials.secret import Entropy, Secret, is_well_formed, mint, to_base62
from pricekeeper.errors import InvalidValueError
from pricekeeper.values import OrgId
from pricekeeper.wire.bounds import KEY_NAME_LENGTH_MAX

KEY_PREFIX: Final = "pka_"
KEY_ID_LENGTH: Final = 12

_RANDOM_BYTES: Final = 3
_NO_NAME: Final = f"must be 1 to {KEY_NAME_LENGTH_MAX} printable characters without a slash"


class AdminKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key without its text, as in its item."""

    key_id: str = field(name="SK")
    name: str
    role: Role
    org_ids: frozenset[OrgId] | None = None
    """``None`` means all."""
    created_at_epoch: int
    created_by: str
    expires_at_epoch: int | None = field(default=None, name="key_ends_at_epoch")
    rotated_at_epoch: int | None = None
    last_used_at_epoch: int | None = None
    """Of any of its texts; up to `LAST_USED_SECS` before its last use."""
    old_text_ends_at_epoch: int | None = field(default=None, name="key_previous_ends_at_epoch")

    @property
    def coverage(self) -> Coverage:
        return Coverage(self.org_ids)

    def has_ended(self, now_epoch: int) -> bool:
        return self.expires_at_epoch is not None and self.expires_at_epoch <= now_epoch

    @property
    def authority(self) -> Authority:
        return Authority(
            KeyKind.ADMIN_KEY,
            self.role,
            self.coverage,
            self.key_id,
            self.name,
            self.expires_at_epoch,
        )

    @property
    def actor(self) -> str:
        """The key as an actor in the audit trail; names contain no slash."""
        return f"key/{self.name}/{self.key_id}"


def new_key_id(now_ms: int, entropy: Entropy) -> str:
    """An id that sorts by its time of creation."""
    number = now_ms << 8 * _RANDOM_BYTES | int.from_bytes(entropy(_RANDOM_BYTES))
    return to_base62(number, KEY_ID_LENGTH)


def mint_key(key: AdminKey, by: Attribution, entropy: Entropy) -> Secret:
    """Make a text for the key, unless it is greater than the key that asks."""
    return mint(may_produce(by.authority, key.authority), KEY_PREFIX + key.key_id, entropy)


def key_id_of(text: str) -> str | None:
    """The id in the text of a key; ``None`` if the text is malformed."""
    prefix = text[: len(KEY_PREFIX) + KEY_ID_LENGTH]
    if not prefix.startswith(KEY_PREFIX) or not is_well_formed(prefix, text):
        return None
    key_id = prefix.removeprefix(KEY_PREFIX)
    return key_id if is_key_id(key_id) else None


def is_key_id(text: str) -> bool:
    """Whether the text has the form of an id."""
    return len(text) == KEY_ID_LENGTH and text.isascii() and text.isalnum()


def parse_key_name(text: str, path: str = "name") -> str:
    """Check a name and strip it; raises `InvalidValueError`."""
    name = text.strip()
    if not 1 <= len(name) <= KEY_NAME_LENGTH_MAX or not name.isprintable() or "/" in name:
        raise InvalidValueError(path, _NO_NAME)
    return name
