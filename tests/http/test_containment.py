"""A secret has leaked, over a socket and on both stores: what the thief has left after each step.

Everything here is seen on the instance that was asked, where it holds at once. What holds on other
instances, and when, is in ``test_containment_elsewhere.py``.
"""

import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from http_fixtures import FORCED, ORG, Api, Reply, Tenant, usage
from thief import EVERYTHING, NOTHING, OUTSIDE, SECRET, Thief, claim, thief_of

REASON = "found in a public repository"
WHY = {"reason": REASON}


@dataclass
class Victim:
    """An organisation or an app whose secret was stolen, by its path."""

    tenant: Tenant
    path: str
    client_id: str
    thief: Thief

    @property
    def api(self) -> Api:
        return self.tenant.api

    def do(self, method: str, rest: str, body: Any = None) -> Reply:
        """Ask the service, as its administrator."""
        return self.api.provision(method, f"{self.path}{rest}", body)

    def rotate(self, hours: int) -> Reply:
        return self.do("POST", "/credentials/rotate", {"grace_period_hours": hours})

    def owner(self) -> Thief:
        """The client with the secret that was claimed last, logged in."""
        return thief_of(self.tenant, self.client_id)

    def bystander(self) -> Thief:
        """The other client of the organisation."""
        names = {self.tenant.client_id, f"org-{self.tenant.org_id}"} - {self.client_id}
        return thief_of(self.tenant, names.pop())


@pytest.fixture(params=["org", "app"])
def victim(request: pytest.FixtureRequest, api: Api) -> Victim:
    tenant = Tenant(api).register()
    is_app = request.param == "app"
    client_id = tenant.client_id if is_app else f"org-{tenant.org_id}"
    path = tenant.app if is_app else tenant.org
    return Victim(tenant, path, client_id, thief_of(tenant, client_id))


class TestRotating:
    def test_without_grace_the_claim_ends_all_that_the_old_secret_gave(
        self, victim: Victim
    ) -> None:
        """Until then it works as ever; from then on neither it nor a token got by it does."""
        rotated = victim.rotate(0)
        assert victim.thief.ways_in() == EVERYTHING
        claimed = claim(victim.tenant, rotated)
        assert "old_secret_expires_at" not in claimed.json
        assert victim.thief.ways_in() == NOTHING
        assert victim.owner().ways_in() == EVERYTHING

    def test_with_a_grace_sessions_go_on(self, victim: Victim) -> None:
        """Other clients of the organisation do not notice, not even without one."""
        bystander = victim.bystander()
        claimed = claim(victim.tenant, victim.rotate(1))
        assert "old_secret_expires_at" in claimed.json
        assert victim.thief.ways_in() == EVERYTHING
        assert victim.owner().ways_in() == EVERYTHING
        claim(victim.tenant, victim.rotate(0))
        assert bystander.ways_in() == EVERYTHING


class TestRevoking:
    def test_everything_stops_at_once(self, victim: Victim) -> None:
        """Secrets, sessions and tokens; the owner is out as well; what could be claimed, too.

        Other clients and the provisioning key are left alone.
        """
        owner, bystander = victim.owner(), victim.bystander()
        key, rotated = victim.tenant.issue_key(), victim.rotate(1)
        revoked = victim.do("POST", "/credentials/revoke", WHY)
        assert revoked.status == 200
        assert revoked.json == {
            "client_id": victim.client_id,
            "status": "revoked",
            "secrets": "ALL",
        }
        assert victim.thief.ways_in() == NOTHING
        assert owner.ways_in() == NOTHING
        assert "client_secret_created_at" not in victim.do("GET", "").json
        claimed = victim.api.claim(rotated)
        assert (claimed.status, claimed.code) == (404, "NOT_FOUND")
        assert bystander.ways_in() == EVERYTHING
        assert victim.api.call("GET", victim.tenant.org, key=key).status == 200

    def test_a_rotation_gives_access_again(self, victim: Victim) -> None:
        for _ in range(2):
            assert victim.do("POST", "/credentials/revoke", WHY).status == 200
            claim(victim.tenant, victim.rotate(24))
            assert victim.owner().ways_in() == EVERYTHING
            assert victim.thief.ways_in() == NOTHING

    def test_the_secret_before_can_be_stopped_alone(self, victim: Victim) -> None:
        claim(victim.tenant, victim.rotate(168))
        owner = victim.owner()
        assert victim.thief.ways_in() == EVERYTHING
        body = {**WHY, "secrets": "PREVIOUS"}
        for _ in range(2):
            revoked = victim.do("POST", "/credentials/revoke", body)
            assert (revoked.status, revoked.json["secrets"]) == (200, "PREVIOUS")
            assert victim.thief.ways_in() == NOTHING
            assert owner.ways_in() == {SECRET}
            owner.enter()


class TestSessions:
    def test_an_administrator_sees_and_ends_one(self, victim: Victim) -> None:
        owner = victim.owner()
        listed = victim.do("GET", "/sessions")
        assert listed.status == 200
        assert listed.headers["cache-control"] == "no-store"
        shown = {one["session_id"]: one for one in listed.json["sessions"]}
        session_id = victim.thief.granted["session_id"]
        assert {session_id, owner.granted["session_id"]} <= shown.keys()
        assert shown[session_id].keys() == {
            *("session_id", "created_at", "last_used_at", "expires_at"),
            *("user_agent", "address", "current"),
        }
        assert not any(one["current"] for one in shown.values())
        assert listed.json["limit"] == 5
        ended = victim.do("DELETE", f"/sessions/{session_id}?reason=stolen%20laptop")
        assert (ended.status, ended.data) == (204, b"")
        assert victim.thief.ways_in() == {SECRET, OUTSIDE}
        assert owner.ways_in() == EVERYTHING
        left = victim.do("GET", "/sessions").json["sessions"]
        assert session_id not in {one["session_id"] for one in left}
        again = victim.do("DELETE", f"/sessions/{session_id}")
        assert (again.status, again.code) == (404, "NOT_FOUND")

    def test_all_of_them_are_ended(self, victim: Victim) -> None:
        for _ in range(2):
            assert victim.do("DELETE", "/sessions").status == 204
            assert victim.do("GET", "/sessions").json["sessions"] == []
        assert victim.thief.ways_in() == {SECRET}

    def test_another_clients_session_is_not_there(self, victim: Victim, other: Tenant) -> None:
        for bystander in (victim.bystander(), thief_of(other, other.client_id)):
            ended = victim.do("DELETE", f"/sessions/{bystander.granted['session_id']}")
            assert (ended.status, ended.code) == (404, "NOT_FOUND")
            assert bystander.ways_in() == EVERYTHING

    def test_of_a_client_that_is_gone_nothing_is_left(self, victim: Victim) -> None:
        """Though its sessions may still lie in the store."""
        session_id = victim.thief.granted["session_id"]
        assert victim.do("DELETE", "").status == 204
        for method, rest in (
            ("GET", "/sessions"),
            ("DELETE", "/sessions"),
            ("DELETE", f"/sessions/{session_id}"),
        ):
            gone = victim.do(method, rest)
            assert (gone.status, gone.code) == (404, "NOT_FOUND")


@pytest.fixture(params=["org", "app"])
def frozen(request: pytest.FixtureRequest, api: Api) -> Victim:
    """A tenant whose app is frozen: by itself, or with its organisation."""
    tenant = Tenant(api).register()
    path = tenant.app if request.param == "app" else tenant.org
    client_id = tenant.client_id if request.param == "app" else f"org-{tenant.org_id}"
    victim = Victim(tenant, path, client_id, thief_of(tenant, tenant.client_id))
    answer = victim.do("PUT", "/freeze", WHY)
    assert answer.status == 200, answer.data
    assert answer.json == {"client_id": client_id, "frozen": answer.json["frozen"]}
    return victim


class TestFreezing:
    def test_models_and_tokens_are_refused_with_the_reason(self, frozen: Victim) -> None:
        scope = "APP" if "-app-" in frozen.client_id else "ORG"
        shown = frozen.do("GET", "").json["frozen"]
        assert shown == {"reason": REASON, "at": shown["at"], "scope": scope}
        tenant = frozen.tenant
        for refused in (tenant.select(), tenant.select(FORCED), tenant.acquire()):
            assert (refused.status, refused.code) == (403, "FROZEN")
            extras = {name: refused.json[name] for name in ("reason", "frozen_at", "scope")}
            assert extras == {"reason": REASON, "frozen_at": shown["at"], "scope": scope}
            assert REASON in refused.json["detail"]
            assert "retry-after" not in refused.headers
            assert "www-authenticate" not in refused.headers

    def test_a_warm_answer_is_not_given_any_more(self, api: Api) -> None:
        tenant = Tenant(api).register()
        etag = {"if-none-match": tenant.select().headers["etag"]}
        path = f"{tenant.app}/model-selection"
        assert api.call("GET", path, token=tenant.app_token, headers=etag).status == 304
        assert api.provision("PUT", f"{tenant.app}/freeze", WHY).status == 200
        assert api.call("GET", path, token=tenant.app_token, headers=etag).status == 403

    def test_usage_is_counted_and_can_be_read(self, frozen: Victim) -> None:
        """One by one and in batches: money that was spent has to be known. Clients still log in."""
        tenant = frozen.tenant
        one = tenant.record()
        assert (one.status, one.json["status"]) == (202, "accepted")
        batch = tenant.record_many(usage(), usage())
        assert (batch.status, batch.json["accepted"]) == (207, 2)
        for path in (f"{tenant.app}/aggregates/today", f"{tenant.app}/limits", "/auth/sessions"):
            assert frozen.api.call("GET", path, token=tenant.app_token).status == 200
        path = f"{tenant.org}/aggregates/today"
        assert frozen.api.call("GET", path, token=tenant.org_token).status == 200
        assert frozen.thief.ways_in() == EVERYTHING

    def test_leases_from_before_are_settled(self, api: Api) -> None:
        tenant = Tenant(api).register()
        taken = [tenant.acquire().json["lease_id"] for _ in range(2)]
        assert api.provision("PUT", f"{tenant.org}/freeze", WHY).status == 200
        body = {"adjustment_id": str(uuid.uuid4()), "delta": {"rpm": 2}}
        adjusted = tenant.ask("POST", f"leases/{taken[0]}/adjust", body)
        assert (adjusted.status, adjusted.json["held"]) == (200, {"rpm": 3})
        assert tenant.ask("POST", f"leases/{taken[1]}/release").status == 204

    def test_freezing_again_keeps_the_moment_and_has_the_last_reason(self, frozen: Victim) -> None:
        """It is lifted at once, also twice."""
        first = frozen.do("GET", "").json["frozen"]
        again = frozen.do("PUT", "/freeze", {"reason": "still looking into it"})
        assert again.status == 200
        assert again.json["frozen"] == {**first, "reason": "still looking into it"}
        assert frozen.tenant.select().json["reason"] == "still looking into it"
        for _ in range(2):
            assert frozen.do("DELETE", "/freeze?reason=all%20good").status == 204
            assert frozen.tenant.select().status == 200
            assert frozen.tenant.acquire().status == 200
        assert "frozen" not in frozen.do("GET", "").json

    def test_new_settings_do_not_lift_it_and_deletion_does(self, frozen: Victim) -> None:
        is_app = "-app-" in frozen.client_id
        put = frozen.do("PUT", "", {"app_name": "New name"} if is_app else ORG)
        assert (put.status, put.json["frozen"]["reason"]) == (200, REASON)
        assert frozen.tenant.select().code == "FROZEN"
        assert frozen.do("DELETE", "").status == 204
        again = Tenant(frozen.api, frozen.tenant.org_id, frozen.tenant.app_id)
        if is_app:
            again.api.provision("PUT", again.app, {"app_name": "Web"})
            again.org_token = frozen.tenant.org_token
            path = f"{again.app}/model-selection"
            assert again.api.call("GET", path, token=again.org_token).status == 200
        else:
            assert again.register().select().status == 200

    def test_lists_show_it(self, frozen: Victim) -> None:
        """Of apps: also what they have from their organisation."""
        apps = frozen.api.provision("GET", f"{frozen.tenant.org}/apps").json["apps"]
        assert [app["frozen"]["reason"] for app in apps] == [REASON]
        orgs = {org["org_id"]: org for org in frozen.api.pages("/api/v1/orgs", "orgs")}
        assert ("frozen" in orgs[frozen.tenant.org_id]) == ("-app-" not in frozen.client_id)

    def test_an_app_that_nobody_registered_is_frozen_with_its_organisation(self, api: Api) -> None:
        """By itself it can't be: there is nothing to freeze."""
        tenant = Tenant(api).register()
        assert api.provision("PUT", tenant.org, {**ORG, "quota_scope": "ORG"}).status == 200
        path = f"{tenant.org}/apps/nightly"
        assert api.provision("PUT", f"{path}/freeze", WHY).code == "NOT_FOUND"
        selection = f"{path}/model-selection"
        assert api.call("GET", selection, token=tenant.org_token).status == 200
        assert api.provision("PUT", f"{tenant.org}/freeze", WHY).status == 200
        assert api.call("GET", selection, token=tenant.org_token).code == "FROZEN"


DAILY = {"rpm": {"capacity": 10, "refill_amount": 10, "refill_period_ms": 86_400_000}}


class TestResettingLimits:
    @pytest.fixture
    def indebted(self, api: Api) -> Tenant:
        """An app that has used up its own buckets and its organisation's, of two labels."""
        tenant = Tenant(api).register()
        api.provision("PUT", tenant.org, {**ORG, "rate_limits": {"*": DAILY}})
        for label in ("premium", "economy"):
            assert self.acquire(tenant, label).status == 200
            assert self.acquire(tenant, label).status == 429
        return tenant

    def acquire(self, tenant: Tenant, label: str, app: str | None = None) -> Reply:
        body = {"resource": label, "consume": {"rpm": 10}}
        path = f"{app or tenant.app}/limits/acquire"
        return tenant.api.call("POST", path, body, token=tenant.org_token)

    def scopes(self, tenant: Tenant, label: str) -> list[str]:
        denied = self.acquire(tenant, label)
        return [one["scope"] for one in denied.json.get("violations", ())]

    def test_each_clients_buckets_are_reset_by_its_own_name(self, indebted: Tenant) -> None:
        """Of all labels; the organisation's are not the app's, nor the other way round.

        Resetting again does no harm: full is full.
        """
        labels = ["economy", "premium"]
        for reset_labels in (labels, []):
            reset = indebted.api.provision("POST", f"{indebted.app}/limits/reset", WHY)
            assert reset.status == 200
            assert reset.json == {"client_id": indebted.client_id, "labels": reset_labels}
        assert self.scopes(indebted, "premium") == ["ORG"]
        reset = indebted.api.provision("POST", f"{indebted.org}/limits/reset", WHY)
        assert reset.json["labels"] == labels
        for label in labels:
            assert self.acquire(indebted, label).status == 200

    def test_an_app_that_nobody_registered_can_be_reset(self, indebted: Tenant) -> None:
        api, app = indebted.api, f"{indebted.org}/apps/nightly"
        settings = {**ORG, "quota_scope": "ORG", "rate_limits": {"*": DAILY}}
        api.provision("PUT", indebted.org, settings)
        api.provision("POST", f"{indebted.org}/limits/reset", WHY)
        assert self.acquire(indebted, "premium", app).status == 200
        reset = api.provision("POST", f"{app}/limits/reset", WHY)
        assert (reset.status, reset.json["labels"]) == (200, ["premium"])


STEPS = (
    ("POST", "/credentials/revoke"),
    ("PUT", "/freeze"),
    ("POST", "/limits/reset"),
)


class TestReasons:
    @pytest.mark.parametrize(("method", "rest"), STEPS)
    def test_it_has_to_be_given_and_must_not_be_a_secret_or_break_lines(
        self, tenant: Tenant, method: str, rest: str
    ) -> None:
        """The field is named and nothing happens."""
        secret = tenant.secrets[tenant.client_id]
        absent = ("", "  ", None, "x" * 501)
        wrong = (f"leaked: {secret}", f"Bearer {tenant.app_token}", "one\ntwo", "a\u202eb")
        for body in ({}, *({"reason": reason} for reason in (*absent, *wrong))):
            refused = tenant.api.provision(method, f"{tenant.app}{rest}", body)
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
            assert [mistake["field"] for mistake in refused.json["errors"]] == ["reason"]
            assert secret not in refused.data.decode()
        assert tenant.select().status == 200

    def test_where_there_is_no_body_it_may_be_in_the_query(self, tenant: Tenant) -> None:
        for rest in ("/freeze", "/sessions", "/sessions/x"):
            for query in ("?reason=", "?reason=%20", f"?reason={'x' * 501}"):
                refused = tenant.api.provision("DELETE", f"{tenant.app}{rest}{query}")
                assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
                assert [mistake["field"] for mistake in refused.json["errors"]] == ["reason"]
        assert tenant.select().status == 200

    def test_the_body_of_a_delete_may_have_it(self, tenant: Tenant) -> None:
        """It is recorded; a different one in the query is refused."""
        path = f"{tenant.app}/freeze"
        assert tenant.api.provision("PUT", path, WHY).status == 200
        refused = tenant.api.provision("DELETE", f"{path}?reason=other", WHY)
        assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
        assert tenant.api.provision("DELETE", path, {"reason": "it is over"}).status == 204
        read = tenant.api.provision("GET", f"/api/v1/audit?org_id={tenant.org_id}&limit=1").json
        assert [entry["reason"] for entry in read["entries"]] == ["it is over"]
