"""The rule for tags, shared by the gateway, the clients and REST.

A bad tag is refused, never dropped: the call would count against another ``per_tag`` budget. The
bounds are those of Bedrock's ``requestMetadata``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pricekeeper.errors import InvalidValueError

TAGS_MAX: Final = 16
TAG_BYTES_MAX: Final = 256
"""For a name or a value, in UTF-8."""
BLIND_TAG: Final = "pricekeeper-blind"
"""Marks usage that a client allowed without the service; not counted in `TAGS_MAX`."""
TAG_PREFIX: Final = "x-pricekeeper-tag-"


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise `InvalidValueError` for too many, too long or non-text tags."""
    if len(tags) - (BLIND_TAG in tags) > TAGS_MAX:
        raise InvalidValueError(
            "tags", f"must be at most {TAGS_MAX} pairs, not {len(tags)}; leave some out"
        )
    for name, value in tags.items():
        try:
            fits = 1 <= len(name.encode()) <= TAG_BYTES_MAX >= len(value.encode())
        except UnicodeEncodeError as error:
            raise InvalidValueError("tags", "must be text, without lone surrogates") from error
        if not fits:
            raise InvalidValueError(
                f"tags.{name[:TAG_BYTES_MAX]}",
                f"must have a name of 1 to {TAG_BYTES_MAX} bytes, and a value of at most as many",
            )
