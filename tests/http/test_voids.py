"""An administrator voids usage records and authorizations: totals and budgets follow."""

import time
import uuid
from typing import Any

import pytest

from http_fixtures import KEY, Api, Reply, Tenant
from http_shop import INPUT, WORST, Shop, budget, open_shop
from minting import minted
from pricekeeper.export.manifest import final_at_ms
from pricekeeper.metering.voiding import VOIDABLE_DAYS

WHY = {"reason": "a load test by mistake"}
COST = 15_400
"""Micro-dollars of a premium call with 1,000 tokens of input and 500 of output."""


def new_id() -> str:
    return minted(int(time.time() * 1000))


def entries_of(shop: Shop, action: str) -> list[dict[str, Any]]:
    path = f"/api/v1/audit?org_id={shop.tenant.org_id}&action={action}"
    return shop.api.pages(path, "entries")


def void(shop: Shop, request_id: str, key: str = KEY) -> Reply:
    path = f"{shop.tenant.org}/usage/{request_id}/void"
    return shop.api.call("POST", path, WHY, key=key)


def revoke(shop: Shop, authorization_id: str, key: str = KEY) -> Reply:
    path = f"{shop.tenant.org}/authorizations/{authorization_id}/void"
    return shop.api.call("POST", path, WHY, key=key)


def record(shop: Shop, request_id: str) -> Reply:
    done = shop.tenant.record(request_id=request_id)
    assert done.status == 202, done.data
    return done


def listed(shop: Shop) -> list[dict[str, Any]]:
    return shop.api.pages(f"{shop.tenant.org}/usage", "records")


def spent(shop: Shop) -> int:
    """What the app has spent of its quota, as the answer to a further record says."""
    answer = record(shop, new_id())
    total: int = answer.json["daily_total"]["cost_usd_micros"]
    return total


@pytest.fixture
def shop(api: Api) -> Shop:
    return open_shop(api, budgets=[budget("monthly", 4 * COST)], quota_enforcement="STRICT")


class TestUsage:
    @pytest.mark.parametrize("kind", ["v7", "v4", "captured", "captured under its own id"])
    def test_a_record_and_its_correction_stay_visible_and_budgets_follow(
        self, shop: Shop, kind: str
    ) -> None:
        if kind.startswith("captured"):
            own = {} if kind == "captured" else {"authorization_id": str(uuid.uuid4())}
            request_id = shop.grant(**own)
            assert shop.capture(request_id, output_tokens=500).status == 200
        else:
            request_id = new_id() if kind == "v7" else str(uuid.uuid4())
            record(shop, request_id)
        assert shop.budgets()["monthly"]["spent_usd_micros"] == COST
        done = void(shop, request_id)
        assert done.status == 200, done.data
        assert done.json["request_id"] == request_id
        assert done.json["cost_usd_micros"] == COST
        assert {one["spent_usd_micros"] for one in shop.budgets().values()} == {0}
        correction, first = listed(shop)
        assert (first["request_id"], first["cost_usd_micros"]) == (request_id, COST)
        assert "voids" not in first
        told = ("voided_at", "correction_id")
        assert [first[name] for name in told] == [done.json[name] for name in told]
        assert not any(name in correction for name in told)
        assert correction["voids"] == request_id
        assert correction["request_id"] == done.json["correction_id"]
        assert correction["cost_usd_micros"] == -COST
        assert (correction["input_tokens"], correction["output_tokens"]) == (-INPUT, -500)
        assert (correction["app_id"], correction["model_label"]) == ("web", "premium")
        (entry,) = entries_of(shop, "usage.void")
        assert entry["target"] == f"usage/{request_id}"
        assert entry["before"]["cost_usd_micros"] == COST
        assert entry["after"] == {"correction_id": done.json["correction_id"]}
        assert entry["reason"] == WHY["reason"]
        assert spent(shop) == COST  # of the record that asks, alone

    def test_a_second_time_nothing_is_taken_out(self, shop: Shop) -> None:
        request_id = new_id()
        for one in (request_id, str(uuid.uuid4())):
            record(shop, one)
        assert not any("voided_at" in one for one in listed(shop))
        first, again = void(shop, request_id), void(shop, request_id)
        assert (again.status, again.json) == (200, first.json)
        assert record(shop, request_id).json["status"] == "duplicate"
        assert shop.budgets()["monthly"]["spent_usd_micros"] == COST
        assert len(listed(shop)) == 3
        (corrected,) = [one for one in listed(shop) if "voided_at" in one]
        assert corrected["voided_at"] == first.json["voided_at"]
        repeated, made = entries_of(shop, "usage.void")
        assert made["before"]["cost_usd_micros"] == COST
        assert repeated["target"] == made["target"]
        assert not {"before", "after"} & repeated.keys(), "it says that something was changed"

    def test_what_is_voided_can_be_spent_again(self, shop: Shop) -> None:
        """A hard budget that was used up lets calls through."""
        ids = [new_id() for _ in range(4)]
        for one in ids:
            record(shop, one)
        assert shop.authorize().code == "QUOTA_EXCEEDED"
        assert void(shop, ids[2]).status == 200
        assert shop.authorize().status == 201
        assert shop.authorize().code == "QUOTA_EXCEEDED"

    def test_what_is_not_there_or_a_correction_is_refused(self, shop: Shop, other: Tenant) -> None:
        """Another organisation's record is not there, and a refusal has no entry."""
        request_id = new_id()
        record(shop, request_id)
        corrected = void(shop, request_id).json["correction_id"]
        assert (void(shop, corrected).status, void(shop, "x").status) == (409, 400)
        absent = void(shop, new_id())
        assert (absent.status, absent.code) == (404, "NOT_FOUND")
        assert void(Shop(other), request_id).code == "NOT_FOUND"
        path = f"{shop.tenant.org}/usage/{request_id}/void"
        assert shop.api.provision("POST", path, {}).status == 400
        assert len(entries_of(shop, "usage.void")) == 1

    def test_who_pays_does_not_void(self, shop: Shop) -> None:
        request_id = new_id()
        record(shop, request_id)
        viewer = {"name": "looks", "role": "VIEWER"}
        made = shop.api.provision("POST", "/api/v1/admin-keys", viewer).json
        for key in (shop.tenant.issue_key(), made["key"]):
            assert void(shop, request_id, key).status == 403
            assert revoke(shop, str(uuid.uuid4()), key).status == 403
        path = f"{shop.tenant.org}/usage/{request_id}/void"
        assert shop.api.call("POST", path, WHY, token=shop.tenant.org_token).status == 401
        assert len(listed(shop)) == 1


class TestAuthorizations:
    def test_what_was_held_goes_back(self, shop: Shop) -> None:
        before, granted = shop.rpm(), shop.grant()
        assert shop.budgets()["monthly"]["held_usd_micros"] == WORST
        done = revoke(shop, granted)
        told = {"authorization_id": granted, "status": "voided", "client_id": shop.tenant.client_id}
        assert (done.status, done.json) == (200, told)
        assert shop.budgets()["monthly"]["held_usd_micros"] == 0
        assert shop.rpm() == before
        assert shop.show(granted)["status"] == "voided"
        assert shop.capture(granted).status == 409
        again = revoke(shop, granted)
        assert (again.status, again.json) == (200, told)
        assert shop.budgets()["monthly"]["held_usd_micros"] == 0
        first, *more = entries_of(shop, "authorization.void")[::-1]
        assert len(more) == 1
        assert not {"before", "after"} & more[0].keys(), "it says that something was changed"
        assert first["target"] == f"authorization/{granted}"
        assert (first["before"]["status"], first["after"]) == ("open", {"status": "voided"})
        assert first["before"]["held_usd_micros"] == WORST

    def test_what_was_captured_is_a_record_to_void(self, shop: Shop) -> None:
        """That is said, and nothing is changed."""
        granted = shop.grant()
        assert shop.capture(granted).status == 200
        refused = revoke(shop, granted)
        assert (refused.status, refused.code) == (409, "CONFLICT")
        assert entries_of(shop, "authorization.void") == []
        assert void(shop, granted).status == 200
        assert shop.budgets()["monthly"]["spent_usd_micros"] == 0

    def test_nobody_elses(self, shop: Shop, other: Tenant) -> None:
        granted = shop.grant()
        assert revoke(Shop(other), granted).code == "NOT_FOUND"
        assert shop.show(granted)["status"] == "open"


def test_a_record_can_be_voided_until_exports_are_final() -> None:
    assert final_at_ms("19700101") == VOIDABLE_DAYS * 86_400_000
