"""What has happened: denials, each with its why, and flips from one label to another."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.authority import Role
from pricekeeper.http.operation import (
    AFTER,
    APP,
    NO_STORE,
    ORG,
    Access,
    Answer,
    Call,
    Operation,
    Parameter,
)
from pricekeeper.http.viewing import END, read_org_policy, viewer_of
from pricekeeper.usecases import denials, flips
from pricekeeper.wire import activity as wire
from pricekeeper.wire.values import APP_ID

_FROM: Final = Parameter("from", "The first day or full hour; by default all that is kept.", END)
_TO: Final = Parameter("to", "The last day, or the full hour at which the range ends.", END)
_DENIALS_AFTER: Final = AFTER(
    {"type": "string", "pattern": "^[0-9]{1,9}(-[0-9a-f]{12}-[0-9a-f-]{36})?$"}
)
_FLIPS: Final = (
    *(_FROM, _TO),
    AFTER({"type": "string", "pattern": "^[0-9]{8}-[A-Za-z0-9._-]{0,64}$"}),
)
_ALL_DENIALS: Final = (_FROM, _TO, _DENIALS_AFTER)
_ORG_DENIALS: Final = (
    *_ALL_DENIALS,
    Parameter("app_id", "Denials of this app alone.", {"type": "string", "pattern": APP_ID}),
)


async def list_all_denials(call: Call) -> Answer:
    """Denied calls of everybody that the caller covers, each with its why, the newest first."""
    request = denials.parse_request(call.query)
    listed = await denials.list_all_denials(call.services, viewer_of(call), request)
    return Answer(200, listed, NO_STORE)


async def list_denials(call: Call) -> Answer:
    """Denied calls of an organisation, each with its why, the newest minute first."""
    request = denials.parse_request(call.query)
    policy = await read_org_policy(call, request.app_id)
    return Answer(200, await denials.list_denials(call.services, policy, request), NO_STORE)


async def list_flips(call: Call) -> Answer:
    """Which labels were given up or set by hand, when, why and until when, the newest first."""
    request = flips.parse_request(call.query)
    return Answer(200, await flips.list_flips(call.services, call.policy, request), NO_STORE)


_row: Final = partial(Operation, limit="reports", tag="activity", role=Role.VIEWER)
OPERATIONS: Final = (
    _row("GET", "/api/v1/denials", "listAllDenials", list_all_denials, {200: wire.DenialList},
         Access.ANY_CLIENT, query=_ALL_DENIALS, problems=(404,)),
    _row("GET", f"{ORG}/denials", "listDenials", list_denials, {200: wire.DenialList},
         Access.ANY_CLIENT, query=_ORG_DENIALS, problems=(403, 404)),
    _row("GET", f"{ORG}/flips", "listOrgFlips", list_flips, {200: wire.FlipList},
         Access.ORG, query=_FLIPS),
    _row("GET", f"{APP}/flips", "listAppFlips", list_flips, {200: wire.FlipList},
         Access.APP, query=_FLIPS),
)  # fmt: skip
