"""Named keys of administrators: each with a role, for some organisations or all, hashed at rest."""

from pricekeeper.admin_keys.key import (
    KEY_PREFIX,
    NAME_LENGTH_MAX,
    ORGS_MAX,
    AdminKey,
    is_key_id,
    parse_key_name,
)
from pricekeeper.admin_keys.listing import list_roots
from pricekeeper.admin_keys.service import GRACE_HOURS_MAX, AdminKeys, IssuedKey

__all__ = [
    "GRACE_HOURS_MAX",
    "KEY_PREFIX",
    "NAME_LENGTH_MAX",
    "ORGS_MAX",
    "AdminKey",
    "AdminKeys",
    "IssuedKey",
    "is_key_id",
    "list_roots",
    "parse_key_name",
]
