"""Spend of now over a socket: exact, at most two seconds behind, at any instance."""

import uuid
from datetime import UTC, datetime
from typing import Any

from event_streams import Fleet, Tenant, fleet
from http_fixtures import KEY
from in_loop_service import Reply

__all__ = ["fleet"]

BEHIND_MS_MAX = 2_000


def today(fleet: Fleet) -> str:
    return datetime.fromtimestamp(fleet.clock.now_ms() / 1000, UTC).date().isoformat()


async def spend(fleet: Fleet, more: str = "", at: int = 0, **how: Any) -> Reply:
    day = today(fleet)
    reply = await fleet.call(
        "GET", f"/api/v1/spend?from={day}&to={day}{more}", at=at, **(how or {"key": KEY})
    )
    assert reply.status == 200, reply.json
    return reply


def behind_ms(fleet: Fleet, reply: Reply) -> int:
    as_of = datetime.fromisoformat(reply.json["as_of"]).timestamp() * 1000
    return fleet.clock.now_ms() - int(as_of)


async def test_what_was_recorded_at_another_instance_is_seen_within_two_seconds(
    fleet: Fleet,
) -> None:
    tenant = await fleet.register(str(uuid.uuid4()), timezone="UTC", tag_keys=["team"])
    costs = 0
    for number in range(1, 4):
        await fleet.record(tenant, at=1, tags={"team": "red"})
        await fleet.record(tenant, at=1, app="batch", model_label="economy")
        await fleet.pass_ms(1_100)
        for group in ("app,label", "hour", "day", "tag:team", "org,label", ""):
            reply = await spend(fleet, f"&group_by={group}", token=tenant.org_token)
            total = reply.json["total"]
            assert total["requests"] == 2 * number, group
            assert sum(row["requests"] for row in reply.json["rows"]) == 2 * number
            assert behind_ms(fleet, reply) <= BEHIND_MS_MAX
            assert int(reply.headers["x-data-lag-secs"]) <= BEHIND_MS_MAX // 1000
            assert total["cost_usd_micros"] >= costs
        costs = total["cost_usd_micros"]
    tags = (await spend(fleet, "&group_by=tag:team", token=tenant.org_token)).json["rows"]
    assert [(row["tag:team"], row["requests"]) for row in tags] == [("", 3), ("red", 3)]


async def test_everybody_sees_their_own_and_a_filter_narrows_it(fleet: Fleet) -> None:
    mine, other = [await fleet.register(str(uuid.uuid4()), timezone="UTC") for _ in range(2)]
    for tenant, app in ((mine, "web"), (mine, "batch"), (other, "web")):
        await fleet.record(tenant, at=1, app=app)
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("", {"token": mine.app_token}, 1),
        ("", {"token": mine.org_token}, 2),
        ("", {"key": KEY}, 3),
        (f"&org_id={mine.org_id}", {}, 2),
        (f"&org_id={mine.org_id}&app_id=batch", {}, 1),
        ("&label=economy", {}, 0),
        ("&group_by=hour&label=premium", {}, 3),
    ]
    for more, how, expected in cases:
        assert (await spend(fleet, more, **how)).json["total"]["requests"] == expected, more


async def test_without_live_it_is_what_was_aggregated(fleet: Fleet) -> None:
    """Cheaper, and up to a minute old."""
    tenant = await fleet.register(str(uuid.uuid4()), timezone="UTC")
    await fleet.record(tenant)
    reply = await spend(fleet, "&live=false")
    assert (reply.json["total"]["requests"], reply.json["as_of"]) == (0, None)
    assert (await spend(fleet, "&live=true")).json["total"]["requests"] == 1
    day = today(fleet)
    bad = await fleet.call("GET", f"/api/v1/spend?from={day}&to={day}&live=yes", key=KEY)
    assert (bad.status, bad.json["errors"][0]["field"]) == (400, "live")


async def test_a_capture_under_an_id_of_the_callers_is_seen_as_soon(fleet: Fleet) -> None:
    """What is held, too. Its place on a page was read before it was filled."""
    tenant: Tenant = await fleet.register(str(uuid.uuid4()), timezone="UTC")
    name = str(uuid.uuid4())
    asked = {"authorization_id": name, "input_tokens": 900, "max_output_tokens": 90}
    path, token = f"{tenant.app}/authorizations", tenant.app_token
    made = await fleet.call("POST", path, {"model": "premium", **asked}, at=1, token=token)
    assert made.status == 201, made.json
    await fleet.record(tenant)
    await fleet.pass_ms(1_100)
    before = (await spend(fleet, token=token)).json["total"]
    assert before["held_usd_micros"] == made.json["held_usd_micros"]
    used = {"input_tokens": 900, "output_tokens": 45}
    captured = await fleet.call("POST", f"{path}/{name}/capture", used, at=1, token=token)
    await fleet.pass_ms(1_100)
    total = (await spend(fleet, token=token)).json["total"]
    cost: int = captured.json["cost_usd_micros"]
    assert (total["requests"], total["held_usd_micros"]) == (before["requests"] + 1, 0)
    assert total["cost_usd_micros"] == before["cost_usd_micros"] + cost
    listed = (await fleet.call("GET", f"{tenant.org}/usage", key=KEY)).json["records"]
    for sum_of in ("cost_usd_micros", "input_tokens", "output_tokens"):
        assert sum(one[sum_of] for one in listed) == total[sum_of]
