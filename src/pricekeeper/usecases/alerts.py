"""Alerts and their channels."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET

from pricekeeper.alerts import (
    AlertKind,
    Channel,
    ChannelRequest,
    DeliveryState,
    StoredAlert,
)
from pricekeeper.alerts.alert import parse_body
from pricekeeper.errors import InvalidValueError, NotFoundError
from pricekeeper.storage import invalid_cursor
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.describing import describe
from pricekeeper.usecases.queries import parse_choice, parse_each
from pricekeeper.values import parse_org_id
from pricekeeper.wire import alerts as wire


def _parse_cursor(text: str) -> str:
    try:
        return parse_org_id(text)
    except InvalidValueError:
        raise invalid_cursor() from None


async def list_alerts(ask: Ask) -> wire.AlertList:
    """Read a page of alerts, of one organisation or of all covered ones.

    Only a key for all organisations sees the deployment's own.
    """
    found = parse_each(
        ask.query,
        {
            "org_id": parse_org_id,
            "after": _parse_cursor,
            "kind": parse_choice(AlertKind),
            "state": parse_choice(DeliveryState),
        },
    )
    ask.require_org_reader()
    if found["org_id"] is not None and found["org_id"] not in ask.coverage:
        raise NotFoundError("org")
    org_id, owner, alerts = found["org_id"] or ask.coverage.one, None, ask.services.alerts
    if org_id is not None:
        owner = await alerts.channels.find_owner(org_id)
    page = await alerts.history.read_page(
        owner, ask.coverage, kind=found["kind"], state=found["state"], after=found["after"] or ""
    )
    return wire.AlertList([_alert(one) for one in page.entries], page.after or UNSET)


async def list_channels(ask: Ask) -> wire.ChannelList:
    """Read the channels of an organisation, or of the deployment."""
    channels = ask.services.alerts.channels
    found = await channels.read_all(await channels.find_owner(ask.channel_owner))
    return wire.ChannelList([_channel(one) for one in found])


async def put_channel(ask: Ask) -> wire.ChannelAnswer:
    """Create a channel or change it."""
    channels = ask.services.alerts.channels
    owner = await channels.find_owner(ask.channel_owner)
    request = msgspec.convert(ask.body, ChannelRequest, from_attributes=True)
    saved = await channels.put(owner, ask.path["channel"], request, ask.by())
    return _channel(saved.channel, "created" if saved.created else "updated")


async def delete_channel(ask: Ask) -> None:
    """Remove a channel; alerts that wait for it are dropped."""
    channels = ask.services.alerts.channels
    owner = await channels.find_owner(ask.channel_owner)
    await channels.remove(owner, ask.path["channel"], ask.by())


async def try_channel(ask: Ask) -> wire.TrialAnswer:
    """Send a test through a channel, and report the outcome."""
    alerts, name = ask.services.alerts, ask.path["channel"]
    owner = await alerts.channels.find_owner(ask.channel_owner)
    trial = await alerts.try_channel(owner, name, ask.by())
    outcome: Literal["delivered", "failed"] = "delivered" if trial.error is None else "failed"
    return wire.TrialAnswer(name, outcome, trial.alert_id, trial.error or UNSET)


def _channel(channel: Channel, status: str | None = None) -> wire.ChannelAnswer:
    return describe(
        wire.ChannelAnswer, channel, channel=channel.name, address=channel.shown, status=status
    )


def _alert(alert: StoredAlert) -> wire.AlertAnswer:
    deliveries = [
        describe(wire.DeliveryAnswer, one, error=one.error or None) for one in alert.deliveries
    ]
    body = parse_body(alert.body)
    return describe(wire.AlertAnswer, body, state=alert.state, deliveries=deliveries)
