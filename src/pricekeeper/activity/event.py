"""What happened, as it is told to those who watch: the values of the feed. No I/O, no clock.

An event says what was added since the one before it, combined over a moment. It is a hint to look,
with what a page needs to draw itself meanwhile. The truth is in the journal, the accounts and the
authorizations; an event that is lost costs freshness, and nothing else.

Money is in pico-dollars here, and moments are milliseconds.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from pricekeeper.wire.activity import AuthorizationStatus, FlipReason


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One usage record that was counted, as a line of a log."""

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
    """What an app has used of a label."""

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
    """Usage was counted."""

    org_id: str
    at_ms: int
    rows: tuple[SpendRow, ...]
    records: tuple[Counted, ...]
    """The last of them; ``more`` were counted besides."""
    more: int


class DeniedCalls(msgspec.Struct, frozen=True, array_like=True, tag="denied", gc=False):
    """Calls were denied, all for the same reasons; ``why`` is what the first of them was told."""

    org_id: str
    at_ms: int
    app_id: str | None
    kind: str
    model: str
    code: str
    count: int
    why: dict[str, Any]


class GivenUp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A label whose quota was found spent, and how much of it was."""

    label: str
    spend_usd_micros: int
    quota_usd_micros: int


class Flip(msgspec.Struct, frozen=True, array_like=True, tag="flip", gc=False):
    """Another label is recommended from now on, because of a quota or of an administrator."""

    org_id: str
    at_ms: int
    app_id: str | None
    """Whose quotas or override it is; ``None`` is the whole organisation."""
    reason: FlipReason
    from_label: str | None
    to_label: str | None
    """``None`` after an override was cleared: the quotas decide again."""
    given_up: tuple[GivenUp, ...]
    until_ms: int
    """When the organisation's day ends, and with it what was given up or set."""


class AuthorizationLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An authorization as it became."""

    authorization_id: str
    app_id: str | None
    label: str
    status: AuthorizationStatus
    reason: str
    """Why this label was chosen."""
    held_usd_picos: int
    cost_usd_picos: int | None
    considered: tuple[tuple[str, str], ...]
    """The labels that were looked at, each with why it was passed over, or nothing."""


class AuthorizationRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many authorizations of an app and a label became what."""

    app_id: str | None
    label: str
    authorized: int
    captured: int
    voided: int
    unsettled: int
    held_usd_picos: int
    """What those that were authorized hold."""
    unsettled_usd_picos: int
    """What is charged for those that nobody has settled in time."""

    @property
    def changes(self) -> int:
        """How many changed."""
        return self.authorized + self.captured + self.voided + self.unsettled


class AuthorizationChanges(
    msgspec.Struct, frozen=True, array_like=True, tag="authorization", gc=False
):
    """Authorizations were granted, or settled."""

    org_id: str
    at_ms: int
    rows: tuple[AuthorizationRow, ...]
    lines: tuple[AuthorizationLine, ...]
    """The last of them; ``more`` changed besides."""
    more: int


class AlertNotice(msgspec.Struct, frozen=True, array_like=True, tag="alert", gc=False):
    """Somebody is told something; ``told`` is what, as the alert's own part of the API tells it."""

    org_id: str | None
    """``None``: it is about the deployment, and for whoever covers all of it."""
    at_ms: int
    app_id: str | None
    told: dict[str, Any]


Event: TypeAlias = CountedSpend | DeniedCalls | Flip | AuthorizationChanges | AlertNotice

encode_events: Final = msgspec.msgpack.Encoder().encode
"""Several events, as an item of the feed has them."""
decode_events: Final = msgspec.msgpack.Decoder(tuple[Event, ...]).decode
"""The events of an item; raises `msgspec.MsgspecError` for what is none."""
encode_flip: Final = msgspec.msgpack.Encoder().encode
"""A flip, as its history has it."""
decode_flip: Final = msgspec.msgpack.Decoder(Flip).decode
"""A flip of the history; raises `msgspec.MsgspecError` for what is none."""


def seen_by_app(event: Event, app_id: str) -> Event | None:
    """What an app may see of an event: its own part; ``None`` if there is none.

    A flip of the whole organisation concerns each of its apps.
    """
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
