"""Whose data a caller may see, and as whom it is counted."""

from __future__ import annotations

from typing import Final

from pricekeeper.errors import NotFoundError
from pricekeeper.http.operation import Call
from pricekeeper.http.problems import WrongAudienceError
from pricekeeper.tenants import Policy
from pricekeeper.usecases.spend import Viewer
from pricekeeper.values import AppId

END: Final = {
    "type": "string",
    "anyOf": [{"format": "date"}, {"format": "date-time"}],
    "examples": ["2026-01-23", "2026-01-23T15:00:00Z"],
}
"""An end of a range, as the documentation has it."""


def viewer_of(call: Call) -> Viewer:
    """Whose data the caller may see: its own, or for a key all that the key covers."""
    return Viewer(call.coverage, None if call.principal is None else call.principal.app_id)


def caller_of(call: Call) -> str:
    """Who the caller is: its client, or its key."""
    return call.actor if call.principal is None else call.principal.client_id


async def read_org_policy(call: Call, app_id: AppId | None) -> Policy:
    """The policy of the organisation in the path; refuses an app that asks for more than its own.

    Keys were checked at the gate.
    """
    principal = call.principal
    if principal is not None:
        if principal.org_id != call.org_id:
            raise NotFoundError("org")
        if principal.app_id is not None and app_id is None:
            raise WrongAudienceError("an app's token reads what is its own; name it with app_id")
        if principal.app_id not in (None, app_id):
            raise NotFoundError("app")
    return await call.services.tenants.find_policy(call.org_id)
