"""The demo organisation of ``serve --demo``: something to try every command of the README on."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console

from pricekeeper.bootstrap import Services
from pricekeeper.settings import METRICS_TOKEN
from pricekeeper.tenants import Client
from pricekeeper.values import AppId, OrgId

DEMO_KEY: Final = "demo-provisioning-key"
DEMO_METRICS_TOKEN: Final = "demo-metrics-token"  # noqa: S105 - no secret: refused elsewhere
DEMO_ORG: Final = OrgId("11111111-1111-4111-8111-111111111111")
DEMO_APP: Final = AppId("assistant")
GRACE_HOURS: Final = 24

ORG_BODY: Final[dict[str, Any]] = {
    "org_name": "Demo Company",
    "timezone": "America/New_York",
    "quota_scope": "APP",
    "model_ordering": ["premium", "standard", "economy"],
    "quotas": {"premium": 2_000_000, "standard": 1_000_000, "economy": 500_000},
    "rate_limits": {
        "*": {
            "rpm": {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60_000},
            "tpm": {"capacity": 100_000, "refill_amount": 100_000, "refill_period_ms": 60_000},
        }
    },
}


async def prepare_demo(services: Services, url: str, console: Console) -> None:
    """Create the organisation and its app, or give an existing app a new secret; print it once."""
    await services.provisioning.put_org(DEMO_ORG, ORG_BODY)
    client = Client(DEMO_ORG, DEMO_APP)
    created = await services.provisioning.put_app(DEMO_ORG, DEMO_APP, {"app_name": "Assistant"})
    retrieval = created.retrieval
    if retrieval is None:
        retrieval = (await services.credentials.rotate(client, GRACE_HOURS)).retrieval
    claimed = await services.credentials.claim(retrieval.token.reveal())
    console.print("[bold]Demo Company[/bold] is there. Paste this into another terminal, once:\n")
    metrics_token = services.settings.metrics_token
    shown = [] if metrics_token is None else [(METRICS_TOKEN, metrics_token)]
    for name, value in (
        ("URL", url),
        ("KEY", services.settings.provisioning_key),
        ("ORG", DEMO_ORG),
        ("APP", DEMO_APP),
        ("CLIENT_ID", claimed.client_id),
        ("CLIENT_SECRET", claimed.client_secret.reveal()),
        *shown,
    ):
        console.print(f"export {name}={value}", highlight=False, soft_wrap=True)
    console.print()
