"""A shop: an app with budgets and limits, and what it asks before and after its calls."""

from dataclasses import dataclass
from typing import Any

from http_fixtures import ORG, Api, Reply, Tenant

INPUT, OUTPUT = 1_000, 500
PRICES = {"premium": (4_400, 22_000), "standard": (2_200, 11_000)}
"""Nano-dollars for a token of the built-in deployment file, input and output."""
WORST = 15_400
"""Micro-dollars of a premium call with all its tokens."""
DAY_MS = 86_400_000
SLOW = {"refill_amount": 1, "refill_period_ms": DAY_MS}
"""A limit that does not refill while a test runs."""


def budget(name: str, limit_usd_micros: int, **changes: Any) -> dict[str, Any]:
    return {"name": name, "window": "MONTH", "limit_usd_micros": limit_usd_micros, **changes}


@dataclass
class Shop:
    """An app of an organisation, and what it asks."""

    tenant: Tenant

    @property
    def api(self) -> Api:
        return self.tenant.api

    def call(self, method: str, rest: str, body: Any = None) -> Reply:
        path = f"{self.tenant.app}/{rest}"
        return self.api.call(method, path, body, token=self.tenant.app_token)

    def authorize(self, **changes: Any) -> Reply:
        body = {"model": "premium", "input_tokens": INPUT, "max_output_tokens": OUTPUT, **changes}
        return self.call("POST", "authorizations", body)

    def grant(self, **changes: Any) -> str:
        """The id of an authorization that was granted."""
        granted = self.authorize(**changes)
        assert granted.status == 201, granted.data
        authorization_id: str = granted.json["authorization_id"]
        return authorization_id

    def capture(self, authorization_id: str, **changes: Any) -> Reply:
        body = {"input_tokens": INPUT, "output_tokens": 100, **changes}
        return self.call("POST", f"authorizations/{authorization_id}/capture", body)

    def void(self, authorization_id: str, body: Any = None) -> Reply:
        return self.call("POST", f"authorizations/{authorization_id}/void", body)

    def show(self, authorization_id: str) -> Any:
        shown = self.call("GET", f"authorizations/{authorization_id}")
        assert shown.status == 200, shown.data
        return shown.json

    def budgets(self) -> dict[str, Any]:
        """The budgets that apply to the app, by name."""
        shown = self.call("GET", "budgets")
        assert shown.status == 200, shown.data
        return {one["name"]: one for one in shown.json["budgets"]}

    def rpm(self) -> int:
        """What is left of the app's limit."""
        shown = self.call("GET", "limits").json
        left: int = shown["resources"]["premium"]["rpm"]["remaining"]
        return left


def open_shop(api: Api, app: dict[str, Any] | None = None, **changes: Any) -> Shop:
    """Register an organisation with these settings, and an app of it with those."""
    tenant = Tenant(api).register()
    limits = {"*": {"rpm": {"capacity": 50, **SLOW}}}
    put = api.provision("PUT", tenant.org, {**ORG, "rate_limits": limits, **changes})
    assert put.status == 200, put.data
    if app is not None:
        assert api.provision("PUT", tenant.app, {"app_name": "Web", **app}).status == 200
    return Shop(tenant)
