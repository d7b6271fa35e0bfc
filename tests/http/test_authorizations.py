"""Authorizations over a socket: the decision before a call, its settlement, and the budgets."""

import uuid
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from http_fixtures import KEY, METRICS_TOKEN, ORG, Api, Tenant, usage
from http_shop import DAY_MS, INPUT, OUTPUT, SLOW, WORST, Shop, budget, open_shop
from in_loop_service import pass_time, register, serving
from pricekeeper.clock import ManualClock
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from scraping import scrape


@pytest.fixture
def shop(api: Api) -> Shop:
    """With one budget for all apps that two calls fit into, and not three."""
    return open_shop(api, budgets=[budget("monthly", 40_000)])


def test_a_grant_says_all_that_a_call_needs(shop: Shop) -> None:
    """Every field of the contract: the model, what is held, and how budgets and limits are now."""
    granted = shop.authorize()
    assert granted.status == 201
    body = granted.json
    month = shop.budgets()["monthly"]
    assert body == {
        "authorization_id": body["authorization_id"],
        "status": "authorized",
        "model": {
            "label": "premium",
            "bedrock_model_id": "us.anthropic.claude-opus-5-5",
            "reason": "NORMAL",
            "description": "Claude Opus 5.5 - the most capable",
        },
        "held_usd_micros": WORST,
        "max_output_tokens": OUTPUT,
        "expires_at": body["expires_at"],
        "budgets": [
            {
                "name": "monthly",
                "scope": "ORG",
                "window": "MONTH",
                "limit_usd_micros": 40_000,
                "spent_usd_micros": 0,
                "held_usd_micros": WORST,
                "remaining_usd_micros": 40_000 - WORST,
                "resets_at": month["resets_at"],
            }
        ],
        "limits": {
            "rpm": {
                "remaining": 49,
                "capacity": 50,
                "resets_at": body["limits"]["rpm"]["resets_at"],
            }
        },
        "considered": [{"label": "premium", "outcome": "CHOSEN"}],
    }
    assert uuid.UUID(body["authorization_id"])
    assert shop.rpm() == 49


def test_a_part_of_a_micro_dollar_is_shown_as_a_whole_one(shop: Shop) -> None:
    """What is held is rounded up, what remains down; a budget shows the cost of its only call."""
    body = shop.authorize(input_tokens=1, max_output_tokens=0).json  # 4.4 micro-dollars
    assert body["held_usd_micros"] == 5
    for shown in (body["budgets"][0], shop.budgets()["monthly"]):
        assert (shown["held_usd_micros"], shown["remaining_usd_micros"]) == (5, 39_995)
    captured = shop.capture(body["authorization_id"], input_tokens=1, output_tokens=0)
    assert captured.json["cost_usd_micros"] == 4
    assert shop.budgets()["monthly"]["spent_usd_micros"] == 4


def test_auto_takes_the_label_in_force_and_says_what_it_passed_over(api: Api) -> None:
    shop = open_shop(api, budgets=[budget("dear", 10_000, labels=["premium"])])
    body = shop.authorize(model="auto").json
    assert body["model"]["label"] == "standard"
    assert body["model"]["reason"] == "QUOTA_EXCEEDED"
    premium, standard = body["considered"]
    assert (premium["label"], premium["outcome"]) == ("premium", "SKIPPED")
    assert "dear" in premium["because"]
    assert standard == {"label": "standard", "outcome": "CHOSEN"}
    refused = shop.authorize(model="auto", fallback=False)
    assert refused.status == 429
    by_id = shop.authorize(model="us.anthropic.claude-sonnet-5-5")
    assert by_id.json["model"]["label"] == "standard"


class TestRepeating:
    def test_the_same_request_is_the_same_grant(self, shop: Shop) -> None:
        """It is answered with 200, holds nothing more, and shows the budgets of now."""
        authorization_id = str(uuid.uuid4())
        first = shop.authorize(authorization_id=authorization_id)
        again = shop.authorize(authorization_id=authorization_id.upper())
        assert (first.status, again.status) == (201, 200)
        assert first.json["authorization_id"] == authorization_id
        assert again.json == {**first.json, "limits": {}}
        other = shop.authorize(authorization_id=authorization_id, max_output_tokens=1)
        assert (other.status, other.code) == (409, "CONFLICT")
        assert other.json["errors"][0]["field"] == "authorization_id"
        assert shop.budgets()["monthly"]["held_usd_micros"] == WORST
        made_here = shop.grant()
        again = shop.authorize(authorization_id=made_here)
        assert (again.status, again.json["authorization_id"]) == (200, made_here)

    def test_what_is_settled_says_so(self, shop: Shop) -> None:
        captured, voided = str(uuid.uuid4()), str(uuid.uuid4())
        shop.grant(authorization_id=captured)
        shop.grant(authorization_id=voided)
        assert shop.capture(captured).status == 200
        assert shop.void(voided).status == 204
        assert shop.authorize(authorization_id=captured).json["status"] == "captured"
        assert shop.authorize(authorization_id=voided).json["status"] == "voided"


class TestDenied:
    @pytest.mark.parametrize("kind", ["BUDGET", "QUOTA"])
    def test_by_a_budget_or_a_strict_quota_until_its_window_ends(self, api: Api, kind: str) -> None:
        """With what is needed, what is left, and when that changes; nothing is taken."""
        if kind == "BUDGET":
            shop = open_shop(api, budgets=[budget("monthly", 20_000)])
            about = {"name": "monthly", "scope": "ORG"}
        else:
            quotas = {**ORG["quotas"], "premium": 20_000}
            shop = open_shop(api, quotas=quotas, quota_enforcement="STRICT")
            about = {"name": "quota-premium", "scope": "APP", "label": "premium"}
        shop.capture(shop.grant(), output_tokens=OUTPUT)
        denied = shop.authorize()
        assert (denied.status, denied.code) == (429, "QUOTA_EXCEEDED")
        shown = shop.budgets()[about["name"]]
        amounts = {"needed": WORST, "remaining": 20_000 - WORST}
        (by,) = denied.json["denied_by"]
        assert by == {"kind": kind, **about, **amounts, "resets_at": shown["resets_at"]}
        (considered,) = denied.json["considered"]
        assert (considered["label"], considered["outcome"]) == ("premium", "SKIPPED")
        told = "monthly" if kind == "BUDGET" else "premium"
        assert told in considered["because"]
        assert told in denied.json["detail"]
        assert int(denied.headers["retry-after"]) > 0
        assert (shown["held_usd_micros"], shown["kind"]) == (0, kind)
        assert shown["window"] == ("MONTH" if kind == "BUDGET" else "DAY")
        assert shop.rpm() == 49

    def test_by_what_others_hold_for_as_long_as_they_do(self, api: Api) -> None:
        """Such a denial is worth a try in a moment."""
        shop = open_shop(api, budgets=[budget("monthly", 20_000)])
        held = shop.grant()
        denied = shop.authorize()
        (by,) = denied.json["denied_by"]
        assert by["retry_after_ms"] > 0
        assert "resets_at" not in by
        assert int(denied.headers["retry-after"]) == -(-by["retry_after_ms"] // 1000)
        assert shop.void(held).status == 204
        assert shop.authorize().status == 201

    def test_by_a_budget_that_is_smaller_than_the_call(self, api: Api) -> None:
        """No time will help, and it says so; the header has a day."""
        shop = open_shop(api, app={"budgets": [budget("tiny", WORST - 1, window="HOUR")]})
        denied = shop.authorize()
        (by,) = denied.json["denied_by"]
        assert (by["name"], by["scope"], by["never"]) == ("tiny", "APP", True)
        assert by.keys().isdisjoint({"resets_at", "retry_after_ms"})
        assert denied.headers["retry-after"] == str(DAY_MS // 1000)

    def test_by_a_limit_alone(self, api: Api) -> None:
        """Too fast is another code than too dear, and is measured in tokens."""
        shop = open_shop(api, rate_limits={"*": {"rpm": {"capacity": 1, **SLOW}}})
        shop.grant()
        denied = shop.authorize()
        assert (denied.status, denied.code) == (429, "RATE_LIMIT_EXCEEDED")
        by_scope = {one["scope"]: one for one in denied.json["denied_by"]}
        assert by_scope.keys() == {"APP", "ORG"}
        for one in by_scope.values():
            assert 0 < one.pop("retry_after_ms") <= DAY_MS
            expected = {"kind": "LIMIT", "name": "rpm", "label": "premium"}
            assert one == {**expected, "scope": one["scope"], "needed": 1, "remaining": 0}
        assert int(denied.headers["retry-after"]) > 0

    def test_by_a_limit_that_can_never_hold_so_much(self, api: Api) -> None:
        """More tokens than the bucket has room for."""
        shop = open_shop(api, rate_limits={"*": {"tpm": {"capacity": 1_000, **SLOW}}})
        denied = shop.authorize()
        assert denied.code == "RATE_LIMIT_EXCEEDED"
        assert all(one["never"] for one in denied.json["denied_by"])
        assert denied.json["denied_by"][0]["needed"] == INPUT + OUTPUT
        assert denied.headers["retry-after"] == str(DAY_MS // 1000)

    def test_by_everything_at_once(self, api: Api) -> None:
        """All that deny are named, so that raising exactly these admits the call."""
        mine = {"budgets": [budget("mine", 10)]}
        limits = {"*": {"rpm": {"capacity": 50, **SLOW}, "tpm": {"capacity": 10, **SLOW}}}
        shop = open_shop(api, mine, budgets=[budget("ours", 20)], rate_limits=limits)
        denied = shop.authorize()
        assert denied.code == "QUOTA_EXCEEDED"
        named = {(one["kind"], one["scope"], one["name"]) for one in denied.json["denied_by"]}
        assert named == {
            ("BUDGET", "ORG", "ours"),
            ("BUDGET", "APP", "mine"),
            ("LIMIT", "APP", "tpm"),
            ("LIMIT", "ORG", "tpm"),
        }
        wide = {"*": {"rpm": {"capacity": 50, **SLOW}, "tpm": None}}
        raised = {"budgets": [budget("ours", WORST)], "rate_limits": wide}
        assert api.provision("PATCH", shop.tenant.org, raised).status == 200
        app = {"budgets": [budget("mine", WORST)]}
        assert api.provision("PATCH", shop.tenant.app, app).status == 200
        assert shop.authorize().status == 201

    def test_by_a_freeze_which_lets_calls_be_settled(self, shop: Shop) -> None:
        captured, voided = shop.grant(), shop.grant()
        path = f"{shop.tenant.app}/freeze"
        assert shop.api.provision("PUT", path, {"reason": "leaked"}).status == 200
        denied = shop.authorize()
        assert (denied.status, denied.code) == (429, "QUOTA_EXCEEDED")
        (by,) = denied.json["denied_by"]
        assert (by["kind"], by["scope"], by["never"]) == ("FROZEN", "APP", True)
        extended = shop.call("POST", f"authorizations/{captured}/extend", {"hold_secs": 3_600})
        assert extended.status == 200
        assert shop.capture(captured).status == 200
        assert shop.void(voided).status == 204


def test_a_dry_run_takes_nothing(shop: Shop) -> None:
    """It answers as the real one would, grant or denial, and can't be settled."""
    tried = shop.authorize(dry_run=True)
    assert tried.status == 200
    assert (tried.json["authorization_id"], tried.json["dry_run"]) == (None, True)
    assert (tried.json["status"], tried.json["held_usd_micros"]) == ("authorized", WORST)
    assert shop.budgets()["monthly"]["held_usd_micros"] == 0
    assert shop.rpm() == 50
    assert shop.call("GET", "authorizations").json == {"authorizations": []}
    denied = shop.authorize(dry_run=True, max_output_tokens=100_000)
    assert (denied.status, denied.code) == (429, "QUOTA_EXCEEDED")


def test_what_the_deployment_file_does_not_cover_is_refused(shop: Shop) -> None:
    """A unit without a price, or a window longer than the file says; nothing is held."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"uses": ["guardrail"]}, "models.premium.units.guardrail_text_unit:content"),
        ({"uses": ["tool_call:web_search"]}, "models.premium.units.tool_call:web_search"),
        ({"window_tokens": 10**9}, "models.premium.context_window_tokens"),
        ({"uses": [""]}, "uses"),
        ({"uses": ["x"] * 17}, "uses"),
    ]
    for more, told in cases:
        refused = shop.authorize(**more)
        assert (refused.status, told in str(refused.json)) == (400, True), refused.json
    assert shop.rpm() == 50
    assert shop.authorize(window_tokens=200_000).status == 201


def test_an_answer_is_fitted_into_what_is_left_if_the_caller_says_so(shop: Shop) -> None:
    """Never shorter than the caller can use, and never unasked."""
    wanted = {"max_output_tokens": 100_000}
    assert shop.authorize(**wanted).status == 429
    too_short = shop.authorize(**wanted, allow_lower_max_output=True, min_output_tokens=2_000)
    assert too_short.status == 429
    fitted = shop.authorize(**wanted, allow_lower_max_output=True)
    assert fitted.status == 201
    assert fitted.json["max_output_tokens"] == (40_000 - 4_400) // 22
    assert fitted.json["held_usd_micros"] <= 40_000


class TestOutputCap:
    """The caller makes the call itself, so what is lowered has to be its own wish."""

    CAP = 300

    @pytest.fixture
    def shop(self, api: Api) -> Shop:
        return open_shop(api, max_output_tokens_cap=self.CAP)

    def test_an_answer_above_it_is_refused_by_name(self, shop: Shop) -> None:
        """The message says what to do next; so it is where the caller can't use a lower one."""
        least = {"allow_lower_max_output": True, "min_output_tokens": self.CAP + 1}
        for asked, names in (
            ({}, ("max_output_tokens", "allow_lower_max_output")),
            (least, ("min_output_tokens",)),
        ):
            refused = shop.authorize(**asked)
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
            for told in (*names, "max_output_tokens_cap", "300"):
                assert told in refused.json["detail"]
        assert shop.authorize(max_output_tokens=self.CAP).status == 201

    def test_it_is_lowered_if_the_caller_allows_that(self, shop: Shop) -> None:
        held = (INPUT * 4_400 + self.CAP * 22_000) // 1_000
        for more in ({}, {"dry_run": True}, {"min_output_tokens": self.CAP}):
            granted = shop.authorize(allow_lower_max_output=True, **more).json
            assert (granted["max_output_tokens"], granted["held_usd_micros"]) == (self.CAP, held)

    @pytest.mark.parametrize("may_be_lowered", [False, True])
    def test_a_repeated_request_is_the_grant_from_before_the_cap(
        self, api: Api, may_be_lowered: bool
    ) -> None:
        shop = open_shop(api)
        call = {"authorization_id": str(uuid.uuid4()), "allow_lower_max_output": may_be_lowered}
        assert shop.authorize(**call).status == 201
        cap = {"max_output_tokens_cap": 1}
        assert api.provision("PATCH", shop.tenant.org, cap).status == 200
        again = shop.authorize(**call)
        assert (again.status, again.json["max_output_tokens"]) == (200, OUTPUT)


class TestCapturing:
    def test_it_counts_once_and_releases_what_was_held(self, shop: Shop) -> None:
        authorization_id = shop.grant()
        first = shop.capture(authorization_id)
        assert first.status == 200
        assert first.json.keys() == {
            *("request_id", "status", "cost_usd_micros", "pricing_version", "shard_id", "org_day"),
            *("daily_total", "price_estimated", "held_usd_micros", "overrun_usd_micros"),
        }
        assert first.json["request_id"] == authorization_id
        assert (first.json["status"], first.json["cost_usd_micros"]) == ("captured", 6_600)
        assert (first.json["held_usd_micros"], first.json["overrun_usd_micros"]) == (WORST, 0)
        again = shop.capture(authorization_id)
        assert (again.status, again.json["status"]) == (200, "duplicate")
        unlike = ("status", "daily_total")
        assert {**again.json, **dict.fromkeys(unlike)} == {**first.json, **dict.fromkeys(unlike)}
        month = shop.budgets()["monthly"]
        assert (month["spent_usd_micros"], month["held_usd_micros"]) == (6_600, 0)
        assert month["remaining_usd_micros"] == 40_000 - 6_600
        today = shop.call("GET", "aggregates/today").json
        assert first.json["daily_total"]["requests"] == 1
        assert today["models"].keys() >= {"premium"}

    def test_it_is_a_usage_record_under_the_authorizations_id(self, shop: Shop) -> None:
        """With the label of the grant and, if the capture has none, its tags."""
        authorization_id = shop.grant(tags={"team": "red"})
        shop.capture(authorization_id)
        path = f"{shop.tenant.org}/usage"
        (record,) = shop.api.call("GET", path, token=shop.tenant.org_token).json["records"]
        assert record["request_id"] == authorization_id
        assert (record["model_label"], record["tags"]) == ("premium", {"team": "red"})

    def test_a_call_that_costs_more_than_was_held_counts_in_full(self, shop: Shop) -> None:
        authorization_id = shop.grant()
        captured = shop.capture(authorization_id, output_tokens=10_000)
        assert captured.json["cost_usd_micros"] == 224_400
        assert captured.json["overrun_usd_micros"] == 224_400 - WORST
        assert shop.budgets()["monthly"]["remaining_usd_micros"] == 40_000 - 224_400
        assert shop.show(authorization_id)["overrun_usd_micros"] == 224_400 - WORST
        assert shop.authorize(max_output_tokens=0).status == 429

    def test_another_body_or_another_state_is_refused(self, shop: Shop) -> None:
        voided, captured = shop.grant(), shop.grant()
        shop.void(voided)
        shop.capture(captured)
        other = shop.capture(captured, output_tokens=101)
        assert (other.status, other.code) == (409, "REQUEST_ID_REUSED")
        assert shop.capture(voided).code == "CONFLICT"
        assert shop.void(captured).code == "CONFLICT"
        assert shop.budgets()["monthly"]["spent_usd_micros"] == 6_600

    def test_what_can_not_be_counted_is_refused(self, shop: Shop) -> None:
        """The field is named, and the authorization can still be captured."""
        authorization_id = shop.grant()
        for field, value in {
            "request_id": str(uuid.uuid4()),
            "model_label": "premium",
            "input_tokens": -1,
            "timestamp": "2020-01-01T00:00:00Z",
            "bedrock_model_id": "us.anthropic.claude-haiku-5-5",
        }.items():
            refused = shop.capture(authorization_id, **{field: value})
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
            assert refused.json["errors"][0]["field"] == field
        assert shop.capture(authorization_id).status == 200


def test_a_void_gives_everything_back(shop: Shop) -> None:
    """Budget and limit; a second one is no error, and the reason is kept."""
    authorization_id = shop.grant()
    assert shop.rpm() == 49
    assert shop.void(authorization_id, {"reason": "no connection"}).status == 204
    assert shop.void(authorization_id).status == 204
    month = shop.budgets()["monthly"]
    assert (month["held_usd_micros"], month["remaining_usd_micros"]) == (0, 40_000)
    assert shop.rpm() == 50
    shown = shop.show(authorization_id)
    assert (shown["status"], shown["void_reason"]) == ("voided", "no connection")
    assert shown["reason"] == "NORMAL"
    assert shown["considered"][-1] == {"label": shown["model_label"], "outcome": "CHOSEN"}
    assert "cost_usd_micros" not in shown


def test_a_reason_that_is_none_or_has_a_secret_in_it_is_refused(shop: Shop) -> None:
    authorization_id = shop.grant()
    secret = shop.tenant.secrets[shop.tenant.client_id]
    for reason in ("\n", 5, "", f"used {secret}"):
        refused = shop.void(authorization_id, {"reason": reason})
        assert refused.code == "INVALID_REQUEST"
        assert [one["field"] for one in refused.json["errors"]] == ["reason"]
    bodies: tuple[Any, ...] = ({"why": "x"}, [])
    for body in bodies:
        assert shop.void(authorization_id, body).code == "INVALID_REQUEST"
    assert shop.show(authorization_id)["status"] == "open"


def test_an_extension_is_only_ever_longer(shop: Shop) -> None:
    """The answer is the authorization; what is settled can't be extended."""
    authorization_id = shop.grant(hold_secs=60)
    before = shop.show(authorization_id)
    path = f"authorizations/{authorization_id}/extend"
    longer = shop.call("POST", path, {"hold_secs": 600})
    assert longer.status == 200
    assert longer.json["expires_at"] > before["expires_at"]
    assert {**longer.json, "expires_at": 0} == {**before, "expires_at": 0}
    assert shop.call("POST", path, {"hold_secs": 10}).json == longer.json
    for hold_secs in (9, 3_601):
        refused = shop.call("POST", path, {"hold_secs": hold_secs})
        assert [one["field"] for one in refused.json["errors"]] == ["hold_secs"]
    shop.capture(authorization_id)
    assert shop.call("POST", path, {"hold_secs": 600}).code == "CONFLICT"


def test_one_is_shown_from_grant_to_settlement(shop: Shop) -> None:
    """What it allows at first, what it cost in the end; to an administrator's key, too."""
    authorization_id = shop.grant(tags={"team": "red"})
    shown = shop.show(authorization_id)
    assert shown == {
        "authorization_id": authorization_id,
        "status": "open",
        "model_label": "premium",
        "held_usd_micros": WORST,
        "max_output_tokens": OUTPUT,
        "authorized_at": shown["authorized_at"],
        "expires_at": shown["expires_at"],
        "tags": {"team": "red"},
        "reason": "NORMAL",
        "considered": [{"label": "premium", "outcome": "CHOSEN"}],
    }
    shop.capture(authorization_id)
    settled = shop.show(authorization_id)
    more = {name: settled[name] for name in settled.keys() - shown.keys()}
    assert more.pop("settled_at") >= shown["authorized_at"]
    assert more == {"cost_usd_micros": 6_600, "overrun_usd_micros": 0}
    assert settled["status"] == "captured"
    path = f"{shop.tenant.app}/authorizations/{authorization_id}"
    assert shop.api.call("GET", path, key=KEY).json == settled


class TestListing:
    def test_what_is_open_the_newest_first(self, shop: Shop) -> None:
        """Settled ones are not in it, nor another app's."""
        first, second = shop.grant(), shop.grant(authorization_id=str(uuid.uuid4()))
        shop.capture(shop.grant(input_tokens=10, max_output_tokens=10))
        for query in ("", "?status=open"):
            listed = shop.call("GET", f"authorizations{query}").json
            assert [one["authorization_id"] for one in listed["authorizations"]] == [second, first]
            assert "next" not in listed
        assert listed["authorizations"][1] == shop.show(first)
        unsettled = shop.call("GET", "authorizations?status=unsettled").json
        assert unsettled == {"authorizations": []}

    def test_a_hundred_a_page(self, api: Api) -> None:
        limits = {"*": {"rpm": {"capacity": 1_000, **SLOW}}}
        shop = open_shop(api, rate_limits=limits)
        made = {shop.grant(input_tokens=1, max_output_tokens=1) for _ in range(103)}
        first = shop.call("GET", "authorizations").json
        second = shop.call("GET", f"authorizations?after={first['next']}").json
        assert [len(page["authorizations"]) for page in (first, second)] == [100, 3]
        both = first["authorizations"] + second["authorizations"]
        assert {one["authorization_id"] for one in both} == made
        assert "next" not in second

    def test_a_bad_query_is_refused(self, shop: Shop) -> None:
        """The parameter is named."""
        for query in ("status=captured", "status=", "after=x", "status=open&status=open"):
            refused = shop.call("GET", f"authorizations?{query}")
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
            assert refused.json["errors"][0]["field"] == query.partition("=")[0]


class TestCapturingMany:
    def test_each_is_judged_by_itself(self, shop: Shop) -> None:
        one, two = shop.grant(), shop.grant()
        tokens = {"input_tokens": INPUT, "output_tokens": 100}
        absent = str(uuid.uuid4())
        captures = [
            {"authorization_id": one, **tokens},
            {"authorization_id": absent, **tokens},
            {"authorization_id": "x", **tokens},
            {"authorization_id": two, **tokens, "more": 1},
            {"authorization_id": two, **tokens},
            {"authorization_id": two, **tokens},
            7,
        ]
        reply = shop.call("POST", "captures", {"captures": captures})
        assert reply.status == 207
        body = reply.json
        assert (body["captured"], body["duplicates"], body["failed"]) == (2, 1, 4)
        shown = [(r["authorization_id"], r["status"], r.get("code")) for r in body["results"]]
        assert shown == [
            (one, "captured", None),
            (absent, "failed", "NOT_FOUND"),
            ("x", "failed", "INVALID_REQUEST"),
            (two, "failed", "INVALID_REQUEST"),
            (two, "captured", None),
            (two, "duplicate", None),
            (None, "failed", "INVALID_REQUEST"),
        ]
        assert body["results"][0] == {
            "authorization_id": one,
            "status": "captured",
            "cost_usd_micros": 6_600,
            "held_usd_micros": WORST,
            "overrun_usd_micros": 0,
        }
        assert all(r["detail"] for r in body["results"] if r["status"] == "failed")
        assert shop.budgets()["monthly"]["spent_usd_micros"] == 2 * 6_600

    def test_there_are_1_to_100_of_them(self, shop: Shop) -> None:
        """Others are refused as a whole."""
        one = {"authorization_id": str(uuid.uuid4()), "input_tokens": 1, "output_tokens": 1}
        for count in (0, 101):
            reply = shop.call("POST", "captures", {"captures": [one] * count})
            assert (reply.status, reply.code) == (400, "INVALID_REQUEST")


class TestTenants:
    def test_anothers_authorization_is_an_absent_one(self, shop: Shop, other: Tenant) -> None:
        """To see, to capture, to void and to extend, alone and among others; or a sibling's."""
        stranger = Shop(other)
        theirs, absent = shop.grant(), str(uuid.uuid4())
        for authorization_id in (theirs, absent):
            path = f"authorizations/{authorization_id}"
            replies = [
                stranger.call("GET", path),
                stranger.capture(authorization_id),
                stranger.void(authorization_id),
                stranger.call("POST", f"{path}/extend", {"hold_secs": 60}),
            ]
            assert {(reply.status, reply.code) for reply in replies} == {(404, "NOT_FOUND")}
        capture = {"authorization_id": theirs, "input_tokens": 1, "output_tokens": 1}
        batch = stranger.call("POST", "captures", {"captures": [capture]}).json
        assert batch["results"][0]["code"] == "NOT_FOUND"
        sibling = f"{shop.tenant.org}/apps/sibling"
        shop.api.provision("PUT", sibling, {"app_name": "Sibling"})
        token = shop.tenant.org_token
        reply = shop.api.call("GET", f"{sibling}/authorizations/{theirs}", token=token)
        assert (reply.status, reply.code) == (404, "NOT_FOUND")
        assert shop.show(theirs)["status"] == "open"

    def test_an_id_that_is_none_is_refused(self, shop: Shop) -> None:
        for bad in ("x", "0" * 32, "%7B06d95659-5de6-47b2-916f-b09aba4e8b2d%7D"):
            reply = shop.call("GET", f"authorizations/{bad}")
            assert (reply.status, reply.code) == (400, "INVALID_REQUEST")


def test_a_bad_request_is_refused(shop: Shop) -> None:
    """The field is named, and nothing is held."""
    mistakes: dict[str, list[Any]] = {
        "max_tokens": [5],
        "input_tokens": [-1],
        "max_output_tokens": [10**9 + 1],
        "authorization_id": ["x"],
        "cache_write": ["2h"],
        "hold_secs": [9, 3_601],
        "consume.absent": [{"absent": 1}],
        "tags.team": [{"team": "x" * 300}],
        "model": [""],
        "fallback": ["yes"],
    }
    for field, values in mistakes.items():
        for value in values:
            refused = shop.authorize(**{field.partition(".")[0]: value})
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
            assert refused.json["errors"][0]["field"] == field
    unknown = shop.authorize(model="gold")
    assert (unknown.status, unknown.code) == (400, "INVALID_MODEL_LABEL")
    assert unknown.json["details"]["valid_labels"] == ["premium", "standard", "economy"]
    assert shop.budgets()["monthly"]["held_usd_micros"] == 0


class TestUsageBesideAuthorizations:
    def test_a_record_under_an_authorizations_id_is_its_capture(self, shop: Shop) -> None:
        """It counts once and releases the hold; of another model it is refused."""
        authorization_id = shop.grant()
        record = usage(request_id=authorization_id, input_tokens=INPUT, output_tokens=100)
        refused = shop.call("POST", "usage", record | {"model_label": "economy"})
        assert (refused.status, refused.code) == (409, "REQUEST_ID_REUSED")
        assert shop.budgets()["monthly"]["spent_usd_micros"] == 0
        assert shop.call("POST", "usage", record).json["status"] == "accepted"
        month = shop.budgets()["monthly"]
        assert (month["spent_usd_micros"], month["held_usd_micros"]) == (6_600, 0)
        assert shop.call("POST", "usage", record).json["status"] == "duplicate"
        assert shop.capture(authorization_id).json["status"] == "duplicate"
        assert shop.budgets()["monthly"]["spent_usd_micros"] == 6_600

    def test_a_batch_captures_what_it_names(self, shop: Shop) -> None:
        """The same again in one batch is a duplicate, and another body is a failure of its own."""
        record = usage(request_id=shop.grant(), input_tokens=INPUT, output_tokens=100)
        ids = (record["request_id"], str(uuid.uuid4()), record["request_id"].upper())
        records = [*(record | {"request_id": one} for one in ids), record | {"output_tokens": 1}]
        batch = shop.call("POST", "usage/batch", {"requests": records}).json
        told = [one["status"] for one in batch["results"]]
        assert told == ["accepted", "accepted", "duplicate", "failed"]
        month = shop.budgets()["monthly"]
        assert (month["spent_usd_micros"], month["held_usd_micros"]) == (2 * 6_600, 0)

    def test_an_id_of_version_8_that_is_no_authorizations_is_refused(self, shop: Shop) -> None:
        """It counts nothing: only authorizations have such ids."""
        refused = shop.tenant.record(request_id="019a8c3f-1b2c-8000-8000-0123456789ab")
        assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
        assert refused.json["errors"][0]["field"] == "request_id"

    def test_records_that_overdraw_a_budget_deny_the_next_call(self, shop: Shop) -> None:
        assert shop.tenant.record(input_tokens=10_000, output_tokens=1_000).status == 202
        month = shop.budgets()["monthly"]
        assert month["spent_usd_micros"] == 66_000
        assert month["remaining_usd_micros"] == 40_000 - 66_000
        denied = shop.authorize(input_tokens=1, max_output_tokens=0)
        (by,) = denied.json["denied_by"]
        assert (by["needed"], by["remaining"]) == (5, -26_000)
        assert by["resets_at"] == month["resets_at"]

    def test_a_budget_that_comes_later_has_what_was_spent_before(self, api: Api) -> None:
        shop = open_shop(api)
        shop.tenant.record()
        settings = {"budgets": [budget("late", 20_000)]}
        assert api.provision("PATCH", shop.tenant.org, settings).status == 200
        assert shop.budgets()["late"]["spent_usd_micros"] == WORST
        assert shop.authorize().status == 429


class TestBudgets:
    def test_every_field(self, api: Api) -> None:
        """Of the organisation and of the app, in order, with strict quotas behind them."""
        shop = open_shop(
            api,
            {"budgets": [budget("mine", 50_000, window="HOUR", enforcement="SOFT")]},
            budgets=[budget("ours", 90_000, window="WEEK")],
            quota_enforcement="STRICT",
        )
        shop.grant()
        shown = shop.call("GET", "budgets").json["budgets"]
        assert [(one["scope"], one["name"]) for one in shown] == [
            ("ORG", "ours"),
            ("APP", "mine"),
            *(("APP", f"quota-{label}") for label in ORG["model_ordering"]),
        ]
        assert shown[0] == {
            "name": "ours",
            "scope": "ORG",
            "window": "WEEK",
            "enforcement": "HARD",
            "kind": "BUDGET",
            "limit_usd_micros": 90_000,
            "spent_usd_micros": 0,
            "held_usd_micros": WORST,
            "unsettled_usd_micros": 0,
            "remaining_usd_micros": 90_000 - WORST,
            "window_started_at": shown[0]["window_started_at"],
            "resets_at": shown[0]["resets_at"],
        }
        assert shown[0]["window_started_at"] < shown[0]["resets_at"]
        assert shown[1]["enforcement"] == "SOFT"
        assert shown[2]["label"] == "premium"
        assert shown[2]["held_usd_micros"] == WORST
        by_key = api.call("GET", f"{shop.tenant.app}/budgets", key=KEY)
        assert by_key.json["budgets"] == shown

    def test_an_organisation_sees_its_own(self, api: Api) -> None:
        """With all apps in them; quotas by app are each app's, quotas by organisation its own.

        Quotas that are not strict are no budgets.
        """
        assert open_shop(api).call("GET", "budgets").json == {"budgets": []}
        shop = open_shop(api, budgets=[budget("ours", 90_000)], quota_enforcement="STRICT")
        shop.grant()
        path = f"{shop.tenant.org}/budgets"
        (ours,) = api.call("GET", path, token=shop.tenant.org_token).json["budgets"]
        assert (ours["name"], ours["held_usd_micros"]) == ("ours", WORST)
        assert api.call("GET", path, token=shop.tenant.app_token).status == 403
        shared = open_shop(api, quota_scope="ORG", quota_enforcement="STRICT")
        shared.grant()
        path = f"{shared.tenant.org}/budgets"
        quotas = api.call("GET", path, token=shared.tenant.org_token).json["budgets"]
        labels = [("ORG", label) for label in ORG["model_ordering"]]
        assert [(one["scope"], one["label"]) for one in quotas] == labels
        assert quotas[0]["held_usd_micros"] == WORST
        assert shared.budgets()["quota-premium"] == quotas[0]

    def test_one_for_each_value_of_a_tag(self, api: Api) -> None:
        """Budgets of one name differ by scope: the app's and the organisation's are both listed."""
        per_team = budget("team", 20_000, per_tag="team")
        shop = open_shop(api, {"budgets": [per_team]}, tag_keys=["team"], budgets=[per_team])
        red, blue = {"tags": {"team": "red"}}, {"tags": {"team": "blue#1"}}
        shop.grant(**red)
        denied = shop.authorize(**red)
        assert denied.json["denied_by"][0]["name"] == "team"
        shop.capture(shop.grant(**blue), output_tokens=OUTPUT)
        shop.grant()
        shown = shop.call("GET", "budgets").json["budgets"]
        for scope in ("ORG", "APP"):
            money = {
                one["tag"]["team"]: (one["spent_usd_micros"], one["held_usd_micros"])
                for one in shown
                if one["scope"] == scope
            }
            assert money == {"": (0, WORST), "blue#1": (WORST, 0), "red": (0, WORST)}
        assert ({one["name"] for one in shown}, len(shown)) == ({"team"}, 6)

    def test_at_most_a_hundred_values_of_a_tag(self, api: Api) -> None:
        shop = open_shop(api, tag_keys=["team"], budgets=[budget("team", 20_000, per_tag="team")])
        small = {"input_tokens": 1, "output_tokens": 0}
        records = [usage(**small, tags={"team": f"t{number:03}"}) for number in range(103)]
        for part in (records[:100], records[100:]):
            assert shop.tenant.record_many(*part).json["failed"] == 0
        assert len(shop.call("GET", "budgets").json["budgets"]) == 100


def test_what_became_of_authorizations_is_counted(api: Api, shop: Shop) -> None:
    """Grants, denials, and settlements by the state that they went into."""
    before = scrape(api)
    shop.capture(shop.grant())
    shop.void(shop.grant())
    assert shop.authorize(max_output_tokens=100_000).status == 429
    after = scrape(api)
    for name, count in {
        'authorizations_total{outcome="granted"}': 2,
        'authorizations_total{outcome="denied"}': 1,
        'authorizations_settled_total{state="captured"}': 1,
        'authorizations_settled_total{state="voided"}': 1,
        'limit_decisions_total{limit="rpm",outcome="granted"}': 2,
    }.items():
        whole = f"pricekeeper_{name}"
        assert after[whole] - before.get(whole, 0) == count, name


async def test_what_nobody_settles_is_charged_until_it_is(tmp_path: Path) -> None:
    """Unsettled after its time, at what it held; a late capture sets it right."""
    clock = ManualClock(1_768_000_000_000)
    settings = Settings(
        SqliteLocation(MEMORY), data_dir=tmp_path, provisioning_key=KEY, metrics_token=METRICS_TOKEN
    )
    async with serving(settings, clock) as service:
        account = await register(service, str(uuid.uuid4()))
        org = f"/api/v1/orgs/{account.org_id}"
        await service.provision("PUT", org, {**ORG, "budgets": [budget("monthly", 40_000)]})
        token = await account.login(service)

        async def ask(method: str, rest: str, body: Any = None) -> Any:
            return (await service.call(method, f"{account.path}/{rest}", body, token=token)).json

        body: dict[str, Any] = {"model": "premium", "input_tokens": INPUT}
        body |= {"max_output_tokens": OUTPUT, "hold_secs": 10}
        granted = await ask("POST", "authorizations", body)
        authorization_id = granted["authorization_id"]
        await pass_time(clock, 13_000, 1_000)
        (unsettled,) = (await ask("GET", "authorizations?status=unsettled"))["authorizations"]
        assert unsettled["authorization_id"] == authorization_id
        assert unsettled["status"] == "unsettled"
        assert (await ask("GET", "authorizations?status=open"))["authorizations"] == []
        (month,) = (await ask("GET", "budgets"))["budgets"]
        assert (month["held_usd_micros"], month["unsettled_usd_micros"]) == (0, WORST)
        assert (month["spent_usd_micros"], month["remaining_usd_micros"]) == (0, 40_000 - WORST)
        again = await ask("POST", "authorizations", body | {"authorization_id": authorization_id})
        assert again["status"] == "unsettled"
        assert again["budgets"][0]["spent_usd_micros"] == WORST
        tokens = {"input_tokens": INPUT, "output_tokens": 100}
        late = await ask("POST", f"authorizations/{authorization_id}/capture", tokens)
        assert (late["status"], late["cost_usd_micros"]) == ("captured", 6_600)
        (month,) = (await ask("GET", "budgets"))["budgets"]
        assert (month["unsettled_usd_micros"], month["spent_usd_micros"]) == (0, 6_600)


def test_what_is_held_is_part_of_the_spend(shop: Shop) -> None:
    first, second = shop.grant(tags={"team": "red"}), shop.grant()
    authorized_at = datetime.fromisoformat(shop.show(first)["authorized_at"])
    day = authorized_at.astimezone(ZoneInfo(ORG["timezone"])).date()
    whole = shop.show(first)["held_usd_micros"]

    def read(group_by: str) -> Any:
        path = f"/api/v1/spend?from={day}&to={day}&group_by={group_by}"
        shown = shop.api.call("GET", path, token=shop.tenant.app_token)
        assert shown.status == 200, shown.data
        return shown.json

    by_tag = {row["tag:team"]: row["held_usd_micros"] for row in read("tag:team")["rows"]}
    assert by_tag == {"red": whole, "": whole}
    (row,) = read("label,app")["rows"]
    assert (row["label"], row["held_usd_micros"], row["requests"]) == ("premium", 2 * whole, 0)
    assert shop.void(second).status == 204
    assert read("day")["total"]["held_usd_micros"] == whole
    assert shop.capture(first).status == 200
    assert read("day")["total"]["held_usd_micros"] == 0
