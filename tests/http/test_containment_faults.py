"""Containment on a store whose replies get lost, and through kill -9: nothing comes back."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from fault_proxy import Fault, FaultProxy
from http_fixtures import ENVIRONMENT, ORG, Api, Reply, Tenant, dynamodb_url, usage
from served import served
from serving import running_server
from thief import EVERYTHING, NOTHING, claim, thief_of

WHY = {"reason": "leaked"}
APPLIED = (
    *(Fault.CLOSE_AFTER, Fault.RESET_MID_BODY, Fault.SHORT_BODY),
    *(Fault.SERVER_ERROR_AFTER, Fault.CORRUPT_AFTER, Fault.NONSENSE_AFTER),
)
"""The store has done it, and its reply does not come through."""


@pytest.mark.slow
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """A revocation, a rotation without grace, ended sessions and a freeze, each killed at once."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        thief = thief_of(tenant, tenant.client_id)
    contained: dict[str, Any] = {
        "freeze": ("PUT", f"{tenant.app}/freeze", WHY),
        "end sessions": ("DELETE", f"{tenant.app}/sessions", None),
        "revoke": ("POST", f"{tenant.app}/credentials/revoke", WHY),
    }
    for method, path, body in contained.values():
        with running_server(tmp_path, environment=ENVIRONMENT) as server:
            assert Api(server.url).provision(method, path, body).status in (200, 204)
            server.kill()
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant.api = thief.api = Api(server.url)
        assert thief.ways_in() == NOTHING
        path = f"{tenant.app}/model-selection"
        assert tenant.api.call("GET", path, token=tenant.org_token).code == "FROZEN"
        rotate = f"{tenant.app}/credentials/rotate"
        claim(tenant, tenant.api.provision("POST", rotate, {"grace_period_hours": 0}))
        owner = thief_of(tenant, tenant.client_id)
        claim(tenant, tenant.api.provision("POST", rotate, {"grace_period_hours": 0}))
        server.kill()
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant.api = owner.api = Api(server.url)
        assert owner.ways_in() == NOTHING
        assert thief_of(tenant, tenant.client_id).ways_in() == EVERYTHING


def entries_of(tenant: Tenant, done: Reply) -> int:
    """How many entries the audit trail has of that request."""
    read = tenant.api.provision("GET", f"/api/v1/audit?org_id={tenant.org_id}")
    request_id = done.headers["x-request-id"]
    return sum(entry["request_id"] == request_id for entry in read.json["entries"])


def void_once(tenant: Tenant, proxy: FaultProxy, fault: Fault) -> None:
    """A usage record and an authorization; a budget says whether it was given back once."""
    api, token, request_id = tenant.api, tenant.org_token, str(uuid.uuid4())
    sent = usage(request_id=request_id)
    assert api.call("POST", f"{tenant.app}/usage", sent, token=token).status < 300
    asked = {"model": "premium", "input_tokens": 1, "max_output_tokens": 1}
    granted = api.call("POST", f"{tenant.app}/authorizations", asked, token=token).json
    open_id = granted["authorization_id"]
    for target in (f"usage/{request_id}", f"authorizations/{open_id}"):
        proxy.next("TransactWriteItems", fault)
        done = api.provision("POST", f"{tenant.org}/{target}/void", WHY)
        assert (done.status, done.json["status"]) == (200, "voided"), (fault, done.data)
        assert entries_of(tenant, done) == 1
    listed = api.provision("GET", f"{tenant.org}/usage").json["records"]
    assert sum(one.get("voids") == request_id for one in listed) == 1
    (budget,) = api.provision("GET", f"{tenant.org}/budgets").json["budgets"]
    assert (budget["spent_usd_micros"], budget["held_usd_micros"]) == (0, 0)


@pytest.mark.parametrize(
    "faults", [APPLIED[:1], pytest.param(APPLIED[1:], marks=pytest.mark.slow)], ids=len
)
@pytest.mark.timeout(300)
async def test_a_step_whose_reply_the_store_lost_is_done_and_said_so(
    tmp_path: Path, dynoxide: str, faults: tuple[Fault, ...]
) -> None:
    """It is sent again, recognises itself, and the administrator hears that it was done."""

    def contain(proxy: FaultProxy) -> None:
        with served(tmp_path, store=dynamodb_url(proxy.endpoint)) as api:
            tenant = Tenant(api).register()
            budget = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 1_000_000}
            api.provision("PUT", tenant.org, {**ORG, "budgets": [budget]})
            for fault in faults:
                contain_once(tenant, proxy, fault)
                void_once(tenant, proxy, fault)

    async with FaultProxy(dynoxide) as proxy:
        await asyncio.to_thread(contain, proxy)


def contain_once(tenant: Tenant, proxy: FaultProxy, fault: Fault) -> None:
    api, thief = tenant.api, thief_of(tenant, tenant.client_id)
    selection = f"{tenant.app}/model-selection"
    for method, rest, body in (
        ("PUT", "/freeze", WHY),
        ("DELETE", "/freeze", None),
        ("DELETE", "/sessions", None),
        ("POST", "/credentials/revoke", WHY),
    ):
        before = proxy.applied("TransactWriteItems")
        proxy.next("TransactWriteItems", fault)
        done = api.provision(method, f"{tenant.app}{rest}", body)
        assert done.status in (200, 204), (fault, rest, done.data)
        assert proxy.applied("TransactWriteItems") > before
        assert entries_of(tenant, done) == 1
        selected = api.call("GET", selection, token=tenant.org_token).status
        assert selected == (403 if (method, rest) == ("PUT", "/freeze") else 200)
    assert thief.ways_in() == NOTHING
    rotate = f"{tenant.app}/credentials/rotate"
    rotated = api.provision("POST", rotate, {"grace_period_hours": 0})
    proxy.next("TransactWriteItems", fault)
    claim(tenant, rotated)
    assert thief_of(tenant, tenant.client_id).ways_in() == EVERYTHING
    take = {"resource": "premium", "consume": {"rpm": 10}}
    acquire, reset = f"{tenant.app}/limits/acquire", f"{tenant.app}/limits/reset"
    assert api.call("POST", acquire, take, token=tenant.org_token).status == 200
    proxy.next("TransactWriteItems", fault)
    done = api.provision("POST", reset, WHY)
    assert (done.status, done.json["labels"]) == (200, ["premium"])
    assert entries_of(tenant, done) == 1
    assert api.provision("POST", f"{tenant.org}/limits/reset", WHY).status == 200
