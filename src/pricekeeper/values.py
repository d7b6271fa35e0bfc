"""Ids and names with their rules, parsed once at the edge and trusted inside.

Keys of stored items are built from these by joining with ``#``, so no id may contain
one: that is the whole defence against a tenant writing into another tenant's key.
"""

from __future__ import annotations

import re
from typing import NewType

from pricekeeper.errors import InvalidValueError

OrgId = NewType("OrgId", str)
AppId = NewType("AppId", str)
ModelLabel = NewType("ModelLabel", str)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_APP_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}")
"""``.`` and ``..`` are names to no one: many a client takes them out of a path by itself."""
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def parse_org_id(text: str, field: str = "org_id") -> OrgId:
    """An organisation is named by a UUID in its canonical, lower-case form."""
    canonical = text.lower() if isinstance(text, str) else ""
    if not _UUID.fullmatch(canonical):
        raise InvalidValueError(
            field, "must be a UUID such as 550e8400-e29b-41d4-a716-446655440000"
        )
    return OrgId(canonical)


def parse_app_id(text: str, field: str = "app_id") -> AppId:
    """An app is named by letters, digits, dot, dash and underscore."""
    if not isinstance(text, str) or not _APP_ID.fullmatch(text):
        raise InvalidValueError(field, "must be 1 to 64 of A-Z a-z 0-9 . _ -, and not . or ..")
    return AppId(text)


def parse_model_label(text: str, field: str = "model_label") -> ModelLabel:
    """A model label is a short lower-case name such as ``premium``."""
    if not isinstance(text, str) or not _LABEL.fullmatch(text):
        raise InvalidValueError(
            field, "must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit"
        )
    return ModelLabel(text)
