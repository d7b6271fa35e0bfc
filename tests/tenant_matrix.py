"""Every operation of a tenant, as a request: for tests that try them all."""

import re
import uuid
from typing import Any

from http_fixtures import ORG, Reply, usage
from pricekeeper.http.operation import Route

CHANNEL = {"kind": "WEBHOOK", "url": "https://hooks.invalid/", "secret": "0123456789abcdef"}
"""Of a channel without a listener."""
BODIES: dict[str, Any] = {
    "recordUsage": usage(),
    "recordUsageBatch": {"requests": [usage()]},
    "acquire": {"resource": "premium", "consume": {"rpm": 1}},
    "authorize": {"input_tokens": 1000, "max_output_tokens": 500},
    "captureAuthorization": {"input_tokens": 1000, "output_tokens": 500},
    "captureAuthorizations": {
        "captures": [
            {"authorization_id": str(uuid.uuid4()), "input_tokens": 1000, "output_tokens": 500}
        ]
    },
    "extendAuthorization": {"hold_secs": 60},
    "adjustLease": {"adjustment_id": str(uuid.uuid4()), "delta": {"rpm": 1}},
    "rotateOrgCredentials": {"grace_period_hours": 1},
    "rotateAppCredentials": {"grace_period_hours": 1},
    "putOrgOverride": {"model_label": "premium"},
    "putAppOverride": {"model_label": "premium"},
    "putApp": {"app_name": "App"},
    "putOrg": ORG,
    "putOrgAlertChannel": CHANNEL,
    "putDeploymentAlertChannel": CHANNEL,
    "patchOrg": {"session_limit": 5},
    "patchApp": {"session_limit": 5},
    "createAdminKey": {"name": "another", "role": "VIEWER"},
    "rotateAdminKey": {"grace_period_hours": 1},
    "voidUsage": {"reason": "leaked"},
    "voidOrgAuthorization": {"reason": "leaked"},
    **{
        f"{verb}{kind}{what}": {"reason": "leaked"}
        for kind in ("Org", "App")
        for verb, what in (("revoke", "Credentials"), ("freeze", ""), ("reset", "Limits"))
    },
}


RANGED = re.compile("getSpend|.*InRange")


def path_of(operation: Route, org_id: str, app_id: str, **known: str) -> str:
    """The path of a request for it; ``known`` are ids of what there is."""
    named = {
        "date": "2026-01-01",
        "lease_id": str(uuid.uuid4()),
        "authorization_id": str(uuid.uuid4()),
        "request_id": str(uuid.uuid4()),
        "session_id": "x",
        "key_id": "0" * 12,
        "channel": "ops",
        **known,
    }
    path = operation.path.format(org_id=org_id, app_id=app_id, **named)
    return f"{path}?from=2026-01-01&to=2026-01-02" if RANGED.fullmatch(operation.name) else path


def without_id(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """Everything of an answer but what names the request."""
    request_id = reply.headers["x-request-id"]
    headers = {
        name: value
        for name, value in reply.headers.items()
        if name not in ("date", "x-request-id") and not name.startswith("ratelimit")
    }
    return reply.status, headers, reply.data.replace(request_id.encode(), b"")
