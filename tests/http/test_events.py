"""The stream of events over a socket: what happens anywhere on the store, within two seconds."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from event_streams import Browser, Event, Fleet, Tenant, fleet, running_fleet, settings_for
from http_fixtures import KEY
from pricekeeper.activity import listening
from pricekeeper.activity.items import FEED_SECS, WATCH_SECS

__all__ = ["fleet"]

BEHIND_MS_MAX = 2_000
TINY = {"quotas": {"premium": 5_000, "standard": 500_000, "economy": 200_000}}


@pytest.fixture
async def lone(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    """One service, on a file."""
    settings = settings_for(request, "sqlite-file", tmp_path)
    async with running_fleet(settings, 1) as running:
        yield running


def new_id() -> str:
    return str(uuid.uuid4())


def requests_of(events: list[Event]) -> list[str]:
    """The records that these events tell of, in order."""
    return [record["request_id"] for event in events for record in event.data["records"]]


async def issue_key(fleet: Fleet, tenant: Tenant) -> str:
    issued = await fleet.call("POST", f"{tenant.org}/provisioning-key", key=KEY)
    return str(issued.json["provisioning_key"])


async def test_usage_at_another_instance_is_told_within_two_seconds(fleet: Fleet) -> None:
    tenant = await fleet.register(str(uuid.uuid4()))
    async with fleet.listen(0, token=tenant.org_token) as browser:
        body = await fleet.record(tenant, at=1, tags={"team": "red"})
        await fleet.pass_until(lambda: bool(browser.named("spend")), BEHIND_MS_MAX)
        (event,) = browser.named("spend")
    (row,), (record,) = event.data["rows"], event.data["records"]
    assert (event.data["org_id"], event.data["more"]) == (tenant.org_id, 0)
    assert (row["app_id"], row["model_label"], row["requests"]) == ("web", "premium", 1)
    assert row["cost_usd_micros"] == record["cost_usd_micros"] > 0
    assert (row["input_tokens"], row["output_tokens"]) == (1000, 500)
    assert record["request_id"] == body["request_id"]
    assert (record["tags"], record["status"]) == ({"team": "red"}, "OK")


async def test_a_denial_at_another_instance_is_told_with_its_why(fleet: Fleet) -> None:
    tenant = await fleet.register(new_id(), quota_enforcement="STRICT", **TINY)
    asked = {"model": "premium", "input_tokens": 9_000, "max_output_tokens": 900}
    async with fleet.listen(0, token=tenant.org_token) as browser:
        refused = [
            await fleet.call("POST", f"{tenant.app}/authorizations", asked | {"tags": {"a": "b"}},
                             at=1, token=tenant.app_token)
            for _ in range(3)
        ]  # fmt: skip
        await fleet.pass_until(lambda: bool(browser.named("denied")), BEHIND_MS_MAX)
        (event,) = browser.named("denied")
    told = refused[0].json
    assert {reply.status for reply in refused} == {429}
    assert (event.data["count"], event.data["kind"]) == (3, "AUTHORIZATION")
    assert (event.data["model"], event.data["code"]) == ("premium", told["code"])
    example = event.data["example"]
    assert {name: example[name] for name in ("detail", "denied_by", "considered")} == {
        name: told[name] for name in ("detail", "denied_by", "considered")
    }
    assert example["tags"] == {"a": "b"}
    assert example["client_id"].endswith("-app-web")


async def test_a_flip_at_another_instance_is_told(fleet: Fleet) -> None:
    tenant = await fleet.register(new_id(), **TINY)
    async with fleet.listen(0, key=KEY) as browser:
        await fleet.record(tenant, at=1)
        path = f"{tenant.app}/model-selection?force_check=true"
        chosen = (await fleet.call("GET", path, at=1, token=tenant.app_token)).json
        await fleet.call(
            "PUT", f"{tenant.app}/model-override", {"model_label": "economy"}, at=1, key=KEY
        )
        await fleet.pass_until(lambda: len(browser.named("flip")) == 2, BEHIND_MS_MAX)
        by_quota, by_hand = browser.named("flip")
    assert (by_quota.data["from_label"], by_quota.data["to_label"]) == ("premium", "standard")
    assert (by_quota.data["app_id"], by_quota.data["reason"]) == ("web", "QUOTA_EXCEEDED")
    (given_up,) = by_quota.data["given_up"]
    assert (given_up["label"], given_up["quota_usd_micros"]) == ("premium", 5_000)
    assert given_up["spend_usd_micros"] >= 5_000
    assert by_quota.data["until"] == chosen["resets_at"]
    assert (by_hand.data["reason"], by_hand.data["to_label"]) == ("MANUAL_OVERRIDE", "economy")


async def test_authorizations_at_another_instance_are_told(fleet: Fleet) -> None:
    """Granted, captured, voided, and expired without a settlement; with the decision."""
    tenant = await fleet.register(new_id())
    asked = {"model": "premium", "input_tokens": 900, "max_output_tokens": 90, "hold_secs": 10}
    path = f"{tenant.app}/authorizations"
    async with fleet.listen(0, token=tenant.org_token) as browser:
        ids = [
            (await fleet.call("POST", path, asked, at=1, token=tenant.app_token)).json[
                "authorization_id"
            ]
            for _ in range(3)
        ]
        used = {"input_tokens": 900, "output_tokens": 9}
        await fleet.call("POST", f"{path}/{ids[0]}/capture", used, at=1, token=tenant.app_token)
        await fleet.call("POST", f"{path}/{ids[1]}/void", {}, at=1, token=tenant.app_token)
        await fleet.pass_until(lambda: bool(browser.named("authorization")), BEHIND_MS_MAX)
        (event,) = browser.named("authorization")
        (row,) = event.data["rows"]
        entries = {one["authorization_id"]: one for one in event.data["entries"]}
        counts = [row[name] for name in ("authorized", "captured", "voided", "unsettled")]
        assert counts == [3, 1, 1, 0]
        assert entries[ids[0]]["status"] == "captured"
        assert (
            entries[ids[0]]["cost_usd_micros"]
            == browser.named("spend")[0].data["records"][0]["cost_usd_micros"]
        )
        assert entries[ids[1]]["status"] == "voided"
        assert entries[ids[2]]["considered"] == [{"label": "premium", "outcome": "CHOSEN"}]
        assert row["held_usd_micros"] == 3 * entries[ids[2]]["held_usd_micros"]
        await fleet.pass_until(lambda: len(browser.named("authorization")) == 2, 15_000)
        late = browser.named("authorization")[1].data
    assert late["rows"][0]["unsettled"] == 1
    assert late["rows"][0]["unsettled_usd_micros"] == late["entries"][0]["held_usd_micros"]


async def test_an_alert_is_told_as_it_is_listed(lone: Fleet) -> None:
    budget = {"name": "hourly", "window": "HOUR", "limit_usd_micros": 10, "alert_at_pct": [50]}
    tenant = await lone.register(new_id(), alerts={"quota_at_pct": []})
    body = {"app_name": "Web", "budgets": [budget]}
    assert (await lone.call("PUT", tenant.app, body, key=KEY)).status == 200
    async with (
        lone.listen(token=tenant.org_token) as org,
        lone.listen(token=tenant.app_token) as app,
        lone.listen(key=KEY) as deployment,
    ):
        await lone.record(tenant)
        await lone.services[0].inside.aggregator.run_once()
        readers = org, app, deployment
        await lone.pass_until(lambda: all(one.named("alert") for one in readers), BEHIND_MS_MAX)
        told = [one.named("alert")[0].data for one in readers]
    (listed,) = (await lone.call("GET", "/api/v1/alerts", token=tenant.org_token)).json["alerts"]
    assert told[0] == told[1] == told[2]
    assert (told[0]["org_id"], told[0]["app_id"]) == (tenant.org_id, "web")
    shown = ("id", "kind", "at", "title", "text", "next", "about", "org_name", "app_name")
    assert {name: told[0]["alert"][name] for name in shown} == {
        name: listed[name] for name in shown
    }


async def test_who_was_cut_off_goes_on_at_another_instance(fleet: Fleet) -> None:
    """Without a gap and without anything twice, from any event, also in the middle of a moment."""
    tenant = await fleet.register(new_id(), **TINY)
    async with fleet.listen(0, token=tenant.org_token) as browser:
        sent = []
        for number in range(6):
            sent.append((await fleet.record(tenant, at=number % 2))["request_id"])
            if number == 2:
                path = f"{tenant.app}/model-selection?force_check=true"
                await fleet.call("GET", path, at=0, token=tenant.app_token)
            await fleet.pass_ms(500)
        await fleet.pass_until(lambda: len(requests_of(browser.named("spend"))) == 6, BEHIND_MS_MAX)
        whole = list(browser.events)
    assert sorted(requests_of([one for one in whole if one.name == "spend"])) == sorted(sent)
    assert any("." in event.id for event in whole), "no moment had two events"
    for place in range(len(whole)):
        async with fleet.listen(1, token=tenant.org_token, last_id=whole[place].id) as later:
            rest = whole[place + 1 :]
            await fleet.work_until(lambda: len(later.events) >= len(rest))  # noqa: B023
            told = [(event.name, event.id, event.data) for event in later.events]
        assert told == [(event.name, event.id, event.data) for event in rest]


async def test_who_comes_too_late_is_told_so(fleet: Fleet) -> None:
    tenant = await fleet.register(new_id())
    async with fleet.listen(0, token=tenant.org_token) as browser:
        await fleet.record(tenant, at=1)
        await fleet.pass_until(lambda: bool(browser.named("spend")), BEHIND_MS_MAX)
        last_id = browser.last_id
    for away_ms in (WATCH_SECS * 1000 + 2_000, FEED_SECS * 1000 + 2_000):
        fleet.clock.advance_ms(away_ms)
        await fleet.record(tenant, at=1)
        async with fleet.listen(1, token=tenant.org_token, last_id=last_id) as late:
            await fleet.work_until(lambda: bool(late.events))
            event = late.events[0]
            assert (event.name, event.data) == ("reset", {"reason": "TOO_LATE"})
            body = await fleet.record(tenant, at=0)
            await fleet.pass_until(lambda: bool(late.named("spend")), BEHIND_MS_MAX)
            assert body["request_id"] in requests_of(late.named("spend"))
            last_id = late.last_id


async def test_a_short_absence_costs_nothing(fleet: Fleet) -> None:
    """The feed is written on for a while after the last listener has left."""
    tenant = await fleet.register(new_id())
    async with fleet.listen(0, token=tenant.org_token) as browser:
        last_id = browser.last_id
    await fleet.pass_ms(2_000)
    bodies = []
    for at in (0, 1):
        bodies.append(await fleet.record(tenant, at=at))
        await fleet.pass_ms(5_000)
    async with fleet.listen(1, token=tenant.org_token, last_id=last_id) as back:
        await fleet.work_until(lambda: len(requests_of(back.named("spend"))) == 2)
        assert not back.named("reset")
        assert requests_of(back.named("spend")) == [body["request_id"] for body in bodies]


async def test_nobody_sees_what_is_anothers(fleet: Fleet) -> None:
    mine, other = await fleet.register(new_id(), **TINY), await fleet.register(new_id(), **TINY)
    key = await issue_key(fleet, mine)
    third = await fleet.register(new_id())
    covering = {"name": "two", "role": "VIEWER", "org_ids": [mine.org_id, third.org_id]}
    two = (await fleet.call("POST", "/api/v1/admin-keys", covering, key=KEY)).json["key"]
    readers: dict[str, dict[str, str]] = {
        "deployment": {"key": KEY},
        "two": {"key": two},
        "key": {"key": key},
        "org": {"token": mine.org_token},
        "app": {"token": mine.app_token},
        "other org": {"token": other.org_token},
        "other app": {"token": other.app_token},
    }
    async with AsyncExitStack() as stack:
        browsers = {
            name: await stack.enter_async_context(fleet.listen(number % 2, **how))
            for number, (name, how) in enumerate(readers.items())
        }
        for tenant in (mine, other):
            await act(fleet, tenant)
        await fleet.pass_until(
            lambda: all(seen(browsers["deployment"], t) == KINDS for t in (mine, other)),
            BEHIND_MS_MAX,
        )
        await fleet.pass_ms(1_500)
        for name in ("deployment", "two", "key", "org", "app"):
            assert seen(browsers[name], mine) == KINDS, name
        for name in ("two", "key", "org", "app"):
            assert not seen(browsers[name], other), name
        assert not seen(browsers["other org"], mine)
        assert not seen(browsers["other app"], mine)
        assert seen(browsers["other app"], other) == KINDS
        assert not any(browser.named("reset") for browser in browsers.values())
        batch = [one for one in browsers["org"].events if "batch" in str(one.data)]
        assert batch
        assert "batch" not in str([one.data for one in browsers["app"].events])


KINDS = {"spend", "denied", "flip", "authorization"}


async def act(fleet: Fleet, tenant: Tenant) -> None:
    """Something of everything, by the app ``web``, and a record of another app."""
    await fleet.record(tenant, at=1)
    await fleet.record(tenant, at=0, app="batch")
    path = f"{tenant.app}/model-selection?force_check=true"
    await fleet.call("GET", path, at=1, token=tenant.app_token)
    asked = {"model": "economy", "input_tokens": 10, "max_output_tokens": 1}
    path = f"{tenant.app}/authorizations"
    await fleet.call("POST", path, asked, at=0, token=tenant.app_token)
    body = {"resource": "premium", "consume": {"rpm": 11}}
    await fleet.call("POST", f"{tenant.app}/limits/acquire", body, at=1, token=tenant.app_token)


def seen(browser: Browser, tenant: Tenant) -> set[str]:
    """The kinds of events that a listener got of a tenant."""
    return {event.name for event in browser.events if tenant.org_id in str(event.data)}


async def test_a_token_that_was_revoked_ends_its_stream(fleet: Fleet) -> None:
    """Wherever it was revoked, within 30 s; so do an organisation's key and an app that is gone."""
    tenant = await fleet.register(new_id())
    key = await issue_key(fleet, tenant)
    async with (
        fleet.listen(0, token=tenant.app_token) as by_app,
        fleet.listen(0, token=tenant.org_token) as by_org,
        fleet.listen(0, key=key) as by_key,
        fleet.listen(0, key=KEY) as by_deployment,
    ):
        reason = {"reason": "leaked"}
        await fleet.call("POST", f"{tenant.app}/credentials/revoke", reason, at=1, key=KEY)
        await fleet.pass_until(lambda: by_app.has_ended, 30_000)
        assert not by_org.has_ended
        await fleet.call("DELETE", f"{tenant.org}/provisioning-key", at=1, key=KEY)
        await fleet.pass_until(lambda: by_key.has_ended, 45_000)
        assert not by_org.has_ended
        await fleet.call("DELETE", tenant.org, at=1, key=KEY)
        await fleet.pass_until(lambda: by_org.has_ended, 30_000)
        assert not by_deployment.has_ended


async def test_silence_is_told_every_ten_seconds(lone: Fleet) -> None:
    tenant = await lone.register(new_id())
    async with lone.listen(0, token=tenant.org_token) as browser:
        for count in (1, 2):
            await lone.pass_until(lambda: browser.comments == count, 11_000)  # noqa: B023
        before = browser.last_id
        await lone.pass_ms(FEED_SECS * 1000, step_ms=5_000)
        assert browser.last_id != before
        assert browser.events == []


async def test_a_token_that_expires_ends_its_stream(lone: Fleet) -> None:
    tenant = await lone.register(new_id())
    async with lone.listen(0, token=tenant.app_token) as browser:
        lone.clock.advance_ms(3_500_000)
        await lone.pass_ms(1_000)
        assert not browser.has_ended
        lone.clock.advance_ms(100_000)
        await lone.pass_until(lambda: browser.has_ended, 15_000)


async def refusal(fleet: Fleet, **headers: str) -> tuple[int, Any, Any]:
    """The answer to a caller who can't listen."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    url = fleet.services[0].url + "/api/v1/events"
    async with aiohttp.ClientSession() as session, session.get(url, headers=sent) as reply:
        return reply.status, await reply.json(content_type=None), reply.headers


async def test_there_is_room_for_so_many_and_no_more(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one caller, and of a process; room that is given back is room."""
    monkeypatch.setattr(listening, "CALLER_MAX", 3)
    settings = replace(settings_for(request, "sqlite-file", tmp_path), event_listeners_max=5)
    async with running_fleet(settings, 1) as fleet, AsyncExitStack() as stack:
        tenant = await fleet.register(new_id())
        for token in [tenant.org_token] * 3 + [tenant.app_token] * 2:
            await stack.enter_async_context(fleet.listen(0, token=token))
        for how in ({"authorization": f"Bearer {tenant.org_token}"}, {"x_api_key": KEY}):
            status, body, headers = await refusal(fleet, **how)
            assert (status, body["code"]) == (429, "RATE_LIMIT_EXCEEDED")
            assert headers["retry-after"] == "5"
            assert body["violations"][0]["limit"] == "listeners"
        await stack.aclose()
        await fleet.pass_ms(1_000)
        async with fleet.listen(0, key=KEY):
            pass


async def test_a_thousand_who_want_to_listen_are_mostly_refused(lone: Fleet) -> None:
    tenant = await lone.register(new_id())
    headers = {"authorization": f"Bearer {tenant.app_token}"}
    async with lone.listen(0, token=tenant.org_token) as browser:
        outcomes: list[int] = []
        connector = aiohttp.TCPConnector(limit=200)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            replies = []

            async def ask() -> None:
                reply = await session.get(lone.services[0].url + "/api/v1/events")
                outcomes.append(reply.status)
                replies.append(reply)
                if reply.status != 200:
                    reply.release()

            await asyncio.gather(*(ask() for _ in range(1000)))
            for reply in replies:
                reply.close()
        assert outcomes.count(200) == listening.CALLER_MAX
        assert outcomes.count(429) == 1000 - listening.CALLER_MAX
        await lone.record(tenant)
        await lone.pass_until(lambda: bool(browser.named("spend")), BEHIND_MS_MAX)


async def test_without_credentials_nothing_is_told(lone: Fleet) -> None:
    """And a HEAD opens no stream."""
    tenant = await lone.register(new_id())
    assert (await refusal(lone))[0] == 401
    assert (await refusal(lone, x_api_key="x" * 40))[0] == 401
    bearer = {"authorization": f"Bearer {tenant.app_token}"}
    status, body, _ = await refusal(lone, **bearer, last_event_id="yesterday")
    assert (status, body["errors"][0]["field"]) == (400, "last_event_id")
    url = lone.services[0].url + "/api/v1/events"
    async with lone.services[0].session.head(url, headers={"x-api-key": KEY}) as reply:
        assert (reply.status, reply.content_type) == (200, "text/event-stream")
        assert (reply.headers["cache-control"], await reply.read()) == ("no-store", b"")


async def test_events_that_are_turned_off_are_not_there(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    settings = replace(settings_for(request, "sqlite-file", tmp_path), event_listeners_max=0)
    async with running_fleet(settings, 1) as fleet:
        tenant = await fleet.register(new_id())
        await fleet.record(tenant)
        await fleet.pass_ms(3_000)
        assert (await refusal(fleet, x_api_key=KEY))[0] == 404


async def test_who_does_not_read_is_cut_off(lone: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "WAITING_MAX", 4)
    tenant = await lone.register(new_id())
    host, port = lone.services[0].url.removeprefix("http://").split(":")
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.org_token}"
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(lazy, (host, int(port)))
        await loop.sock_sendall(lazy, f"{request}\r\n\r\n".encode())
        async with lone.listen(0, token=tenant.app_token) as honest:
            tags = {f"tag-{number}": "x" * 250 for number in range(4)}
            moments = 0
            while moments < 200 and not await lone.streams("slow"):
                moments += 1
                for _ in range(8):
                    await lone.record(tenant, tags=tags)
                await lone.pass_ms(800, step_ms=400)
            await lone.pass_ms(1_600)
            assert (await lone.streams("slow"), await lone.streams("left")) == (1, 0)
            assert not honest.has_ended
            assert not honest.named("reset")
            assert sum(event.data["more"] for event in honest.named("spend")) > 0
            counted = sum(row["requests"] for e in honest.named("spend") for row in e.data["rows"])
            assert counted == 8 * moments
