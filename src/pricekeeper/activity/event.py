"""Events of the feed, and denials in groups, as values. No I/O, no clock.

An event combines all additions since the one before. It is a hint for a page to read, with enough
data to draw meanwhile; a lost event only costs freshness. Money is in pico-dollars.

Denials of one minute form a group if their organisation, app, requested model and obstacles are the
same. It has a count, its first and last time, and one whole example of an answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from pricekeeper.wire.activity import AuthorizationStatus, FlipReason

MINUTE_MS: Final = 60_000
WHY_BYTES_MAX: Final = 8 * 1024
"""A larger example loses the considered labels, then its tags, and never the obstacles."""
_LEFT_OUT_FIRST: Final = ("considered", "tags")


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One usage record, as a line of a log."""

    request_id: str
    app_id: str | None
    label: str
    happened_at_ms: int
    cost_usd_picos: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    is_error: bool
    tags: dict[str, str]


class SpendRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An app's usage of a label."""

    app_id: str | None
    label: str
    cost_usd_picos: int
    requests: int
    errors: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


class CountedSpend(msgspec.Struct, frozen=True, array_like=True, tag="spend", gc=False):
    """Usage of an organisation."""

    org_id: str
    at_ms: int
    rows: tuple[SpendRow, ...]
    records: tuple[Counted, ...]
    """The last records; ``more`` were counted besides."""
    more: int


class DeniedCalls(msgspec.Struct, frozen=True, array_like=True, tag="denied", gc=False):
    """Calls denied for the same reasons; ``why`` is the answer to the first."""

    org_id: str
    at_ms: int
    app_id: str | None
    kind: str
    model: str
    code: str
    count: int
    why: dict[str, Any]


class GivenUp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A label with a spent quota."""

    label: str
    spend_usd_micros: int
    quota_usd_micros: int


class Flip(msgspec.Struct, frozen=True, array_like=True, tag="flip", gc=False):
    """A quota or an administrator has changed the recommended label."""

    org_id: str
    at_ms: int
    app_id: str | None
    """The owner of the quotas or override; ``None``: the whole organisation."""
    reason: FlipReason
    from_label: str | None
    to_label: str | None
    """``None`` after an override was cleared: the quotas decide."""
    given_up: tuple[GivenUp, ...]
    until_ms: int


class AuthorizationLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An authorization after its change."""

    authorization_id: str
    app_id: str | None
    label: str
    status: AuthorizationStatus
    reason: str
    held_usd_picos: int
    cost_usd_picos: int | None
    considered: tuple[tuple[str, str], ...]
    """Each with the reason to pass it over, or an empty text."""


class AuthorizationRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The changes of the authorizations of an app and a label."""

    app_id: str | None
    label: str
    authorized: int
    captured: int
    voided: int
    unsettled: int
    held_usd_picos: int
    unsettled_usd_picos: int

    @property
    def changes(self) -> int:
        return self.authorized + self.captured + self.voided + self.unsettled


class AuthorizationChanges(
    msgspec.Struct, frozen=True, array_like=True, tag="authorization", gc=False
):
    """Authorizations were granted or settled."""

    org_id: str
    at_ms: int
    rows: tuple[AuthorizationRow, ...]
    lines: tuple[AuthorizationLine, ...]
    """The last changes; ``more`` happened besides."""
    more: int


class AlertNotice(msgspec.Struct, frozen=True, array_like=True, tag="alert", gc=False):
    """A decided alert; ``told`` is the alert as the API shows it."""

    org_id: str | None
    """``None``: for the deployment."""
    at_ms: int
    app_id: str | None
    told: dict[str, Any]


Event: TypeAlias = CountedSpend | DeniedCalls | Flip | AuthorizationChanges | AlertNotice

encode: Final = msgspec.msgpack.Encoder().encode
decode_events: Final = msgspec.msgpack.Decoder(tuple[Event, ...]).decode

decode_flip: Final = msgspec.msgpack.Decoder(Flip).decode


def seen_by_app(event: Event, app_id: str) -> Event | None:
    """The part of an event that an app may see, if any. Flips of the organisation are for all."""
    if isinstance(event, Flip):
        return event if event.app_id in (None, app_id) else None
    if isinstance(event, (DeniedCalls, AlertNotice)):
        return event if event.app_id == app_id else None
    if isinstance(event, CountedSpend):
        spent = tuple(row for row in event.rows if row.app_id == app_id)
        records = tuple(one for one in event.records if one.app_id == app_id)
        more = sum(row.requests for row in spent) - len(records)
        return CountedSpend(event.org_id, event.at_ms, spent, records, more) if spent else None
    rows = tuple(row for row in event.rows if row.app_id == app_id)
    lines = tuple(one for one in event.lines if one.app_id == app_id)
    more = sum(row.changes for row in rows) - len(lines)
    return AuthorizationChanges(event.org_id, event.at_ms, rows, lines, more) if rows else None


class DeniedKind(StrEnum):
    """The kind of a denied request."""

    AUTHORIZATION = "AUTHORIZATION"
    GATEWAY = "GATEWAY"
    LIMITS = "LIMITS"
    SELECTION = "SELECTION"


class GroupKey(NamedTuple):
    """The common part of the denials in a group."""

    app_id: str | None
    kind: str
    model: str
    code: str
    obstacles: tuple[str, ...]


class Denial(NamedTuple):
    """One denied call."""

    org_id: str
    app_id: str | None
    kind: DeniedKind
    model: str
    """As requested: ``auto``, a label or an id."""
    code: str
    at_ms: int
    obstacles: tuple[str, ...]
    why: dict[str, Any]

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.app_id, self.kind, self.model, self.code, self.obstacles)


class Group(msgspec.Struct, array_like=True):
    """The denials of one minute with the same key."""

    app_id: str | None
    kind: str
    model: str
    code: str
    count: int
    first_at_ms: int
    last_at_ms: int
    why: dict[str, Any]

    def add(self, at_ms: int) -> None:
        self.count += 1
        self.last_at_ms = max(self.last_at_ms, at_ms)

    def merged(self, other: Group) -> Group:
        """Combine the groups of two processes; the example is the earlier one."""
        earlier = self if self.first_at_ms <= other.first_at_ms else other
        last_at_ms = max(self.last_at_ms, other.last_at_ms)
        return replace(earlier, count=self.count + other.count, last_at_ms=last_at_ms)


decode_group: Final = msgspec.msgpack.Decoder(Group).decode


def bounded_why(why: dict[str, Any]) -> dict[str, Any]:
    """Remove the least important parts until it is small enough; ``left_out`` names them."""
    kept = dict(why)
    for name in _LEFT_OUT_FIRST:
        if len(encode(kept)) <= WHY_BYTES_MAX:
            break
        if kept.pop(name, None) is not None:
            kept["left_out"] = [*kept.get("left_out", ()), name]
    return kept


def minute_of(epoch_ms: int) -> int:
    """The minute since the epoch."""
    return epoch_ms // MINUTE_MS
