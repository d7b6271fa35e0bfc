"""Ids, names and reasons with their rules, parsed at the edge and trusted inside.

No id contains ``#``, which joins ids in stored keys: else a tenant could write into another's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from random import getrandbits
from typing import Any, Final, NewType
from uuid import UUID

from pricekeeper.errors import InvalidValueError

OrgId = NewType("OrgId", str)
AppId = NewType("AppId", str)
ModelLabel = NewType("ModelLabel", str)

REASON_LENGTH_MAX: Final = 500

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_APP_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}")
"""Not ``.`` or ``..``, which many clients remove from a path."""
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RANDOM_BITS: Final = 74
_DIGITS_MAX: Final = 18


def settings_tag(answer: Mapping[str, Any]) -> str:
    """A digest of the settings in an answer; clients and the service compute it from the JSON."""
    named = ("org_name", "app_name", "configuration", "inherited_fields")
    shown = {name: answer[name] for name in named if name in answer}
    text = json.dumps(shown, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def new_request_id(epoch_ms: int) -> str:
    """A UUID version 7 of that time, unique but no secret; its record is one plain write."""
    return _request_id(epoch_ms, getrandbits(_RANDOM_BITS))


def derived_request_id(epoch_ms: int, source: str) -> str:
    """A UUID version 7, the same for the same time and source."""
    digest = hashlib.blake2b(source.encode(), digest_size=_RANDOM_BITS // 8 + 1).digest()
    return _request_id(epoch_ms, int.from_bytes(digest) & (1 << _RANDOM_BITS) - 1)


def _request_id(epoch_ms: int, bits: int) -> str:
    value = epoch_ms << 80 | 0x7 << 76 | (bits >> 62) << 64
    return str(UUID(int=value | 0b10 << 62 | bits & (1 << 62) - 1))


def id_minted_ms(version_7: str) -> int:
    """When such an id was made, by its maker's clock."""
    return int(version_7[:8] + version_7[9:13], 16)


def parse_org_id(text: str, field: str = "org_id") -> OrgId:
    """Parse a UUID into lower case."""
    canonical = text.lower() if isinstance(text, str) else ""
    if not _UUID.fullmatch(canonical):
        raise InvalidValueError(
            field, "must be a UUID such as 550e8400-e29b-41d4-a716-446655440000"
        )
    return OrgId(canonical)


def parse_app_id(text: str, field: str = "app_id") -> AppId:
    """Parse letters, digits, dot, dash and underscore."""
    if not isinstance(text, str) or not _APP_ID.fullmatch(text):
        raise InvalidValueError(field, "must be 1 to 64 of A-Z a-z 0-9 . _ -, and not . or ..")
    return AppId(text)


def parse_model_label(text: str, field: str = "model_label") -> ModelLabel:
    """Parse a short lower-case name such as ``premium``."""
    if not isinstance(text, str) or not _LABEL.fullmatch(text):
        raise InvalidValueError(
            field, "must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit"
        )
    return ModelLabel(text)


def parse_whole(text: str) -> int | None:
    """Parse ASCII digits; ``None`` for any other text, and for more than 18 digits."""
    is_short = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if is_short else None


def parse_reason(text: str, field: str = "reason") -> str:
    """Parse and strip a line of text for people."""
    reason = text.strip() if isinstance(text, str) else ""
    if not 1 <= len(reason) <= REASON_LENGTH_MAX or not reason.isprintable():
        raise InvalidValueError(field, f"must be 1 to {REASON_LENGTH_MAX} printable characters")
    return reason
