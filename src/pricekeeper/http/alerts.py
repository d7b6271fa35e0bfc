"""Alerts: those that there were, and the channels that they go to."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.alerts import AlertKind, DeliveryState
from pricekeeper.authority import Role
from pricekeeper.errors import NotFoundError
from pricekeeper.http.gate import attribution_of
from pricekeeper.http.operation import (
    AFTER,
    NO_STORE,
    ORG,
    Access,
    Answer,
    Call,
    Operation,
    Parameter,
)
from pricekeeper.http.problems import WrongAudienceError
from pricekeeper.usecases import alerts as cases
from pricekeeper.values import OrgId
from pricekeeper.wire import alerts as wire

_UUID: Final = {"type": "string", "format": "uuid"}
_QUERY: Final = (
    Parameter("org_id", "Alerts of this organisation alone.", _UUID),
    Parameter("kind", "Alerts of this kind alone.", {"type": "string", "enum": list(AlertKind)}),
    Parameter(
        "state",
        "Alerts with this state of delivery alone.",
        {"type": "string", "enum": list(DeliveryState)},
    ),
    AFTER(_UUID),
)


async def list_alerts(call: Call) -> Answer:
    """Alerts that were decided, the newest first; a page may be empty and have a next."""
    request = cases.parse_request(call.query)
    if call.principal is not None and call.principal.app_id is not None:
        raise WrongAudienceError("an app's token does not read what is the organisation's")
    if request.org_id is not None and request.org_id not in call.coverage:
        raise NotFoundError("org")
    return Answer(200, await cases.list_alerts(call.services, request, call.coverage), NO_STORE)


async def list_channels(call: Call) -> Answer:
    """The channels that alerts go to, without their secrets."""
    return Answer(200, await cases.list_channels(call.services, _org_of(call)), NO_STORE)


async def put_channel(call: Call) -> Answer:
    """Create a channel for alerts or change it; its address and its secret are never shown."""
    name, by = call.path["channel"], attribution_of(call)
    saved = await cases.put_channel(call.services, _org_of(call), name, call.body, by)
    return Answer(201 if saved.status == "created" else 200, saved, NO_STORE)


async def delete_channel(call: Call) -> Answer:
    """Remove a channel; alerts that wait for it are given up."""
    name, by = call.path["channel"], attribution_of(call)
    await cases.delete_channel(call.services, _org_of(call), name, by)
    return Answer(204)


async def try_channel(call: Call) -> Answer:
    """Send a test through a channel now, and say what came of it."""
    name, by = call.path["channel"], attribution_of(call)
    trial = await cases.try_channel(call.services, _org_of(call), name, by)
    return Answer(200, trial, NO_STORE)


def _org_of(call: Call) -> OrgId | None:
    """The organisation in the path; ``None`` is the deployment, for who covers all of it."""
    if "org_id" in call.path:
        return call.org_id
    if not call.coverage.is_all:
        raise WrongAudienceError("this takes a key for all organisations", by_key=True)
    return None


_row: Final = partial(Operation, tag="alerts")


def _channels(kind: str, base: str, access: Access) -> tuple[Operation, ...]:
    row = partial(_row, access=access, role=Role.ADMIN, limit="provisioning", problems=(404,))
    one = f"{base}/{{channel}}"
    saved = {200: wire.ChannelAnswer, 201: wire.ChannelAnswer}
    return (
        row("GET", base, f"list{kind}AlertChannels", list_channels, {200: wire.ChannelList},
            role=Role.VIEWER),
        row("PUT", one, f"put{kind}AlertChannel", put_channel, saved, body=wire.ChannelBody,
            problems=(404, 409)),
        row("DELETE", one, f"delete{kind}AlertChannel", delete_channel, {204: None}),
        row("POST", f"{one}/test", f"test{kind}AlertChannel", try_channel,
            {200: wire.TrialAnswer}, bounds_itself=True, role=Role.OPERATOR),
    )  # fmt: skip


OPERATIONS: Final = (
    _row("GET", "/api/v1/alerts", "listAlerts", list_alerts, {200: wire.AlertList},
         Access.ANY_CLIENT, query=_QUERY, limit="aggregates", role=Role.VIEWER,
         problems=(403, 404)),
    *_channels("Deployment", "/api/v1/alert-channels", Access.DEPLOYMENT),
    *_channels("Org", f"{ORG}/alert-channels", Access.PROVISIONING),
)  # fmt: skip
