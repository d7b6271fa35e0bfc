"""Named keys of administrators, each with a role, for some organisations or all."""

from pricekeeper.admin_keys.key import (
    KEY_PREFIX,
    AdminKey,
    is_key_id,
    parse_key_name,
)
from pricekeeper.admin_keys.service import AdminKeys, IssuedKey, list_roots

__all__ = [
    "KEY_PREFIX",
    "AdminKey",
    "AdminKeys",
    "IssuedKey",
    "is_key_id",
    "list_roots",
    "parse_key_name",
]
