"""Alerts and their channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
from pricekeeper.authority import Attribution, Coverage
from pricekeeper.bootstrap import Services
from pricekeeper.errors import InvalidValueError
from pricekeeper.storage import invalid_cursor
from pricekeeper.usecases.describing import describe
from pricekeeper.usecases.queries import parse_choice, parse_each
from pricekeeper.values import OrgId, parse_org_id
from pricekeeper.wire import alerts as wire


class AlertsRequest(NamedTuple):
    """A query for alerts."""

    org_id: OrgId | None = None
    kind: AlertKind | None = None
    state: DeliveryState | None = None
    after: str = ""


def parse_request(query: Mapping[str, str]) -> AlertsRequest:
    """Parse a query; every mistake is listed."""
    parsers: dict[str, Callable[[str], Any]] = {
        "org_id": parse_org_id,
        "after": _parse_cursor,
        "kind": parse_choice(AlertKind),
        "state": parse_choice(DeliveryState),
    }
    found = parse_each(query, parsers)
    return AlertsRequest(**{**found, "after": found["after"] or ""})


def _parse_cursor(text: str) -> str:
    try:
        return parse_org_id(text)
    except InvalidValueError:
        raise invalid_cursor() from None


async def list_alerts(
    services: Services, request: AlertsRequest, coverage: Coverage
) -> wire.AlertList:
    """Read a page of alerts, of one organisation or of all covered ones.

    Only a key for all organisations sees the deployment's own.
    """
    org_id, owner = request.org_id or coverage.one, None
    if org_id is not None:
        owner = await services.alerts.channels.find_owner(org_id)
    page = await services.alerts.history.read_page(
        owner, coverage, kind=request.kind, state=request.state, after=request.after
    )
    return wire.AlertList([_alert(one) for one in page.entries], page.after or UNSET)


async def list_channels(services: Services, org_id: OrgId | None) -> wire.ChannelList:
    """Read the channels of an organisation, or of the deployment."""
    owner = await services.alerts.channels.find_owner(org_id)
    found = await services.alerts.channels.read_all(owner)
    return wire.ChannelList([_channel(one) for one in found])


async def put_channel(
    services: Services, org_id: OrgId | None, name: str, body: wire.ChannelBody, by: Attribution
) -> wire.ChannelAnswer:
    """Create a channel or change it."""
    owner = await services.alerts.channels.find_owner(org_id)
    request = msgspec.convert(body, ChannelRequest, from_attributes=True)
    saved = await services.alerts.channels.put(owner, name, request, by)
    return _channel(saved.channel, "created" if saved.created else "updated")


async def delete_channel(
    services: Services, org_id: OrgId | None, name: str, by: Attribution
) -> None:
    """Remove a channel; alerts that wait for it are dropped."""
    owner = await services.alerts.channels.find_owner(org_id)
    await services.alerts.channels.remove(owner, name, by)


async def try_channel(
    services: Services, org_id: OrgId | None, name: str, by: Attribution
) -> wire.TrialAnswer:
    """Send a test through a channel, and report the outcome."""
    owner = await services.alerts.channels.find_owner(org_id)
    trial = await services.alerts.try_channel(owner, name, by)
    if trial.error is None:
        return wire.TrialAnswer(name, "delivered", trial.alert_id)
    return wire.TrialAnswer(name, "failed", trial.alert_id, trial.error)


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
