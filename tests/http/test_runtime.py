"""What an app does all day: select, record, acquire, read its totals."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from http_fixtures import FORCED, Api, Tenant, usage


def test_selection_explains_itself(api: Api, tenant: Tenant) -> None:
    """Every field of the contract, and a header for caches that follows the mode."""
    reply = tenant.select()
    assert reply.status == 200
    body = reply.json
    assert body["recommended_model"].keys() == {
        "label",
        "bedrock_model_id",
        "reason",
        "description",
        "burn_down_factor_permille",
    }
    assert body["recommended_model"]["label"] == "premium"
    assert body["recommended_model"]["reason"] == "NORMAL"
    assert body["quota_status"].keys() == {
        *("scope", "mode", "current_model", "spend_usd_micros", "quota_usd_micros", "quota_pct"),
        *("sticky_fallback_active", "models_status"),
    }
    assert body["quota_status"]["models_status"].keys() == {"premium", "standard", "economy"}
    assert body["pricing"]["input_price_usd_micros_per_1m"] > 0
    assert body["pricing"].keys() >= {"version", "source"}
    assert body["client_guidance"]["check_frequency"] == "PERIODIC_300S"
    assert body.keys() >= {"checked_at", "org_day", "org_local_time", "resets_at"}
    ends, checked = (datetime.fromisoformat(body[one]) for one in ("resets_at", "checked_at"))
    left_secs = (ends - checked).total_seconds()  # nothing is kept beyond the organisation's day
    kept_secs = int(reply.headers["cache-control"].removeprefix("private, max-age="))
    assert min(300, left_secs - 5) <= kept_secs <= min(300, left_secs)
    if left_secs < 310:  # until midnight the answer is another one every second
        return
    again = api.call(
        "GET",
        f"{tenant.app}/model-selection",
        token=tenant.app_token,
        headers={"if-none-match": reply.headers["etag"]},
    )
    assert again.status == 304
    assert again.data == b""


def test_usage_counts_once_and_says_what_it_cost(api: Api, tenant: Tenant) -> None:
    """Accepted, then a duplicate with the same answer, then a conflict for another body."""
    record = usage()
    first = tenant.record(record)
    second = tenant.record(record)
    assert (first.status, second.status) == (202, 202)
    assert (first.json["status"], second.json["status"]) == ("accepted", "duplicate")
    assert first.json.keys() == {
        *("request_id", "status", "cost_usd_micros", "pricing_version", "shard_id", "org_day"),
        *("daily_total", "price_estimated"),
    }
    assert first.json["daily_total"].keys() == {
        *("cost_usd_micros", "requests", "quota_pct", "mode", "as_of"),
    }
    assert {**second.json, "status": 0, "daily_total": 0} == {
        **first.json,
        "status": 0,
        "daily_total": 0,
    }
    changed = {**record, "output_tokens": 501}
    third = tenant.record(changed)
    assert (third.status, third.code) == (409, "REQUEST_ID_REUSED")


def test_usage_that_can_not_be_counted_is_refused(tenant: Tenant) -> None:
    """Never guessed, never zero: a 4xx that names the field."""
    mistakes: dict[str, list[Any]] = {
        "model_label": ["unheard-of"],
        "input_tokens": [-1, 10**9 + 1],
        "bedrock_model_id": ["amazon.nova-lite-v1:0"],
        "timestamp": [
            *("2020-01-01T00:00:00Z", "yesterday, around noon", "2026-02-30T00:00:00Z"),
            *("9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+00:01"),
        ],
        "unknown_field": [1],
    }
    for field, values in mistakes.items():
        code = "INVALID_MODEL_LABEL" if field == "model_label" else "INVALID_REQUEST"
        for value in values:
            reply = tenant.record(**{field: value})
            assert (reply.status, reply.code) == (400, code), value
            assert reply.json["errors"][0]["field"] == field
    reply = tenant.record(service_tier="priority", batch=True)
    assert (reply.code, reply.json["errors"][0]["field"]) == ("INVALID_REQUEST", "service_tier")


def test_the_window_of_acceptance(api: Api, tenant: Tenant) -> None:
    """Up to 24 hours old and 5 minutes ahead."""
    now = datetime.now(UTC)
    for shift, status in (
        (timedelta(hours=-23, minutes=-59), 202),
        (timedelta(hours=-24, minutes=-1), 400),
        (timedelta(minutes=4), 202),
        (timedelta(minutes=6), 400),
    ):
        record = usage(timestamp=(now + shift).strftime("%Y-%m-%dT%H:%M:%SZ"))
        reply = tenant.record(record)
        assert reply.status == status, (shift, reply.data)


def test_a_batch_judges_each_record_by_itself(tenant: Tenant) -> None:
    """One bad record never spoils the rest, and the answers are in order; up to a hundred."""
    good, twin = usage(), usage()
    records = [good, {"request_id": "x"}, twin, twin, usage(model_label="unheard-of"), 7]
    reply = tenant.record_many(*records)
    assert reply.status == 207
    body = reply.json
    assert (body["accepted"], body["duplicates"], body["failed"]) == (2, 1, 3)
    assert [result["status"] for result in body["results"]] == [
        *("accepted", "failed", "accepted", "duplicate", "failed", "failed"),
    ]
    assert body["results"][0]["request_id"] == good["request_id"]
    assert body["results"][4]["code"] == "INVALID_MODEL_LABEL"
    for count in (0, 101):
        reply = tenant.record_many(*(usage() for _ in range(count)))
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")


def test_totals_add_up_and_the_chain_falls_back(api: Api) -> None:
    tenant = Tenant(api).register()
    for label in ("premium", "standard", "economy"):
        chosen = tenant.select(FORCED)
        assert chosen.json["recommended_model"]["label"] == label
        record = usage(model_label=label, input_tokens=400_000, output_tokens=100_000)
        tenant.record(record)
    exhausted = tenant.select(FORCED)
    assert (exhausted.status, exhausted.code) == (429, "QUOTA_EXCEEDED")
    assert exhausted.json["models"].keys() == {"premium", "standard", "economy"}
    assert int(exhausted.headers["retry-after"]) > 0
    assert exhausted.json["retry_after"].endswith("Z")


def test_aggregates_have_the_fields_of_the_contract(api: Api, tenant: Tenant) -> None:
    """For an app and for an organisation, today, on a day and in a range."""
    for base, token in ((tenant.app, tenant.app_token), (tenant.org, tenant.org_token)):
        today = api.call("GET", f"{base}/aggregates/today", token=token)
        assert today.status == 200
        assert today.headers.keys() >= {"etag", "cache-control", "x-data-lag-secs"}
        assert today.json["models"]["premium"].keys() == {
            *("bedrock_model_id", "cost_usd_micros", "quota_usd_micros", "quota_pct"),
            *("quota_status", "input_tokens", "output_tokens", "cache_read_tokens"),
            *("cache_write_tokens", "requests", "average_cost_usd_micros"),
        }
        day = today.json["date"]
        same = api.call("GET", f"{base}/aggregates/{day}", token=token)
        assert same.json["models"].keys() == today.json["models"].keys()
        week_ago = (datetime.fromisoformat(day) - timedelta(days=6)).date().isoformat()
        week = api.call("GET", f"{base}/aggregates?from={week_ago}&to={day}", token=token)
        assert week.json["days"][0]["date"] == week_ago
        assert len(week.json["days"]) == 7
        assert week.json["days"][0]["total_cost_usd_micros"] == 0
        for bad in ("aggregates/2999-01-01", "aggregates/nonsense", "aggregates?from=2026-01-01"):
            refused = api.call("GET", f"{base}/{bad}", token=token)
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
        old = (datetime.fromisoformat(day) - timedelta(days=92)).date().isoformat()
        refused = api.call("GET", f"{base}/aggregates?from={old}&to={day}", token=token)
        assert refused.status == 400


def test_leases_are_taken_adjusted_and_released(tenant: Tenant) -> None:
    """Each step is idempotent by its id; a denial says which limit, how much and until when."""
    lease_id = str(uuid.uuid4())

    def shown() -> tuple[int, int]:
        """What remains of the limit, and the amount consumed over the bucket's life."""
        rpm = tenant.ask("GET", "limits").json["resources"]["standard"]["rpm"]
        return rpm["remaining"], rpm["consumed"]

    for _ in range(2):
        taken = tenant.acquire(4, "standard", lease_id=lease_id)
        assert (taken.status, taken.json["lease_id"]) == (200, lease_id)
    assert shown() == (6, 4)
    adjust = {"adjustment_id": str(uuid.uuid4()), "delta": {"rpm": 3}}
    for _ in range(2):
        assert tenant.ask("POST", f"leases/{lease_id}/adjust", adjust).status == 200
    assert shown() == (3, 7)
    denied = tenant.acquire(9, "standard")
    assert (denied.status, denied.code) == (429, "RATE_LIMIT_EXCEEDED")
    fields = {"scope", "limit", "requested", "available", "retry_after_ms"}
    assert denied.json["violations"][0].keys() == fields
    assert int(denied.headers["retry-after"]) >= 1
    assert tenant.acquire(11, "standard").json["violations"][0]["never"] is True
    for _ in range(2):
        assert tenant.ask("POST", f"leases/{lease_id}/release").status == 204
    assert shown() == (10, 0)
    assert tenant.ask("POST", f"leases/{uuid.uuid4()}/release").code == "NOT_FOUND"
    unknown = tenant.acquire(1, "unheard-of")
    assert (unknown.status, unknown.code) == (400, "INVALID_MODEL_LABEL")
    assert unknown.json["errors"][0]["field"] == "resource"


def test_both_ends_of_a_range_are_looked_at(tenant: Tenant) -> None:
    for query, fields in {
        "": ["from", "to"],
        "?from=2026-01-01": ["to"],
        "?from=x&to=y": ["from", "to"],
        "?from=2026-W01-1&to=2026-W01-2": ["from", "to"],
        "?from=2026-01-01&to=20260102": ["to"],
        "?from=2026-02-30&to=2026-01-02": ["from"],
    }.items():
        reply = tenant.ask("GET", f"aggregates{query}")
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
        assert [error["field"] for error in reply.json["errors"]] == fields
