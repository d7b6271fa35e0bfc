"""A call that was denied, and how denials for the same reasons are one. No I/O, no clock.

Denials are combined by organisation, app, the model that was asked for, what denied it, and the
minute: how many, the first and the last, and one whole example of what a caller was told.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

MINUTE_MS: Final = 60_000
WHY_BYTES_MAX: Final = 8 * 1024
"""Beyond this an example loses what was considered, and then tags; what denies always stays."""
_LEFT_OUT_FIRST: Final = ("considered", "tags")


class DeniedKind(StrEnum):
    """What was asked for and denied."""

    AUTHORIZATION = "AUTHORIZATION"
    GATEWAY = "GATEWAY"
    LIMITS = "LIMITS"
    SELECTION = "SELECTION"


class GroupKey(NamedTuple):
    """What denials that are one have in common."""

    app_id: str | None
    kind: str
    model: str
    code: str
    obstacles: tuple[str, ...]
    """What denies, each as one text."""


class Denial(NamedTuple):
    """One call that was denied."""

    org_id: str
    app_id: str | None
    kind: DeniedKind
    model: str
    """As it was asked for: ``auto``, a label or an id."""
    code: str
    at_ms: int
    obstacles: tuple[str, ...]
    why: dict[str, Any]
    """What its caller was told, and what it had asked with."""

    @property
    def key(self) -> GroupKey:
        """What it has in common with others."""
        return GroupKey(self.app_id, self.kind, self.model, self.code, self.obstacles)


class Group(msgspec.Struct, array_like=True):
    """The denials of one minute that are one."""

    app_id: str | None
    kind: str
    model: str
    code: str
    count: int
    first_at_ms: int
    last_at_ms: int
    why: dict[str, Any]

    def add(self, at_ms: int) -> None:
        """Count one more."""
        self.count += 1
        self.last_at_ms = max(self.last_at_ms, at_ms)

    def merged(self, other: Group) -> Group:
        """Both together, as counted by two processes; the example is that of the earlier."""
        earlier = self if self.first_at_ms <= other.first_at_ms else other
        last_at_ms = max(self.last_at_ms, other.last_at_ms)
        return replace(earlier, count=self.count + other.count, last_at_ms=last_at_ms)


encode_group: Final = msgspec.msgpack.Encoder().encode
"""A group, as an item has it."""
decode_group: Final = msgspec.msgpack.Decoder(Group).decode
"""The group of an item; raises `msgspec.MsgspecError` for what is none."""


def bounded_why(why: dict[str, Any]) -> dict[str, Any]:
    """The same, if it is small enough; else without what matters least, which it then says."""
    kept = dict(why)
    for name in _LEFT_OUT_FIRST:
        if len(encode_group(kept)) <= WHY_BYTES_MAX:
            break
        if kept.pop(name, None) is not None:
            kept["left_out"] = [*kept.get("left_out", ()), name]
    return kept


def minute_of(epoch_ms: int) -> int:
    """The minute, since the epoch, that a moment belongs to."""
    return epoch_ms // MINUTE_MS
