"""Thresholds of budgets and quotas: each alerts once in its window, and none is left out."""

import json
from typing import Any

from alerts.conftest import APP, COST_USD_MICROS, USD, Instance, Org, budget
from alerts.endpoint import Endpoint
from metering.conftest import PREMIUM, STANDARD
from pricekeeper.alerts.items import StoredAlert
from pricekeeper.client_ids import Client
from pricekeeper.storage import Set, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants.items import config_key
from pricekeeper.values import AppId
from selection.conftest import SettableClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def thresholds(alerts: list[StoredAlert]) -> list[int]:
    return sorted(facts(one)["threshold_pct"] for one in alerts)


def facts(alert: StoredAlert) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(alert.body)["about"]
    return about


async def test_each_threshold_is_told_once_when_it_is_crossed(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """Half, four fifths, all: one alert each, however often it is looked at."""
    await org.configure(budgets=[budget(10 * COST_USD_MICROS, 50, 80, 100)])
    await org.add_channel(endpoint.url)
    told = []
    for _ in range(12):
        await org.spend()
        for _ in range(2):
            await instance.aggregate()
            await instance.deliver()
        told.append([one["about"]["threshold_pct"] for one in endpoint.alerts()])

    assert told[3:5] == [[], [50]]
    assert told[6:8] == [[50], [50, 80]]
    assert told[8:] == [[50, 80], *[[50, 80, 100]] * 3]
    assert len(endpoint.requests) == 3
    assert all(one.is_signed() and one.id == one.json["id"] for one in endpoint.requests)
    first = endpoint.requests[0].json
    assert first["title"] == "Acme: 50 % of the daily budget daily is spent"
    assert first["text"] == (
        "$0.05 of $0.10 (50 %) of the daily budget daily of Acme is spent. It resets at "
        "2030-01-16 00:00 UTC. Once it is spent, calls are denied."
    )
    assert f"pricekeeper budgets {org.id}" in first["next"]
    assert first["about"] == {
        "name": "daily",
        "scope": "ORG",
        "window": "DAY",
        "enforcement": "HARD",
        "threshold_pct": 50,
        "charged_pct": 50,
        "charged_usd_micros": 5 * COST_USD_MICROS,
        "limit_usd_micros": 10 * COST_USD_MICROS,
        "window_started_at": "2030-01-15T00:00:00Z",
        "resets_at": "2030-01-16T00:00:00Z",
    }


async def test_a_new_window_tells_again(org: Org, instance: Instance, clock: SettableClock) -> None:
    """The same threshold on the next day is another one."""
    await org.configure(budgets=[budget(COST_USD_MICROS, 100)])
    for _ in range(3):
        await org.spend()
        await instance.aggregate()
        clock.advance_ms(DAY_MS)

    history = await org.history()

    assert [facts(one)["window_started_at"][:10] for one in history] == [
        "2030-01-17",
        "2030-01-16",
        "2030-01-15",
    ]


async def test_what_was_spent_in_the_last_minute_of_a_window_is_told_after_it(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """The window is that of the records, not that of the look."""
    await org.configure(budgets=[budget(COST_USD_MICROS, 100, window="HOUR")])
    clock.set("2030-01-15T23:59:50Z")
    await org.spend()
    clock.set("2030-01-16T00:00:40Z")

    await instance.aggregate()

    (alert,) = await org.history()
    assert facts(alert)["window_started_at"] == "2030-01-15T23:00:00Z"


async def test_a_late_record_is_told_in_the_day_that_it_belongs_to(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """Reported at noon, of an hour of the day before. A budget whose window is over rests."""
    await org.configure(
        quotas={**org.settings["quotas"], PREMIUM: COST_USD_MICROS},
        alerts={"quota_at_pct": [100]},
        budgets=[budget(COST_USD_MICROS, 100)],
    )
    await org.spend(timestamp_ms=clock.now_ms() - 13 * HOUR_MS)

    await instance.aggregate()

    (alert,) = await org.history()
    assert (alert.kind, facts(alert)["day"]) == ("QUOTA", "2030-01-14")


async def test_a_raised_limit_is_watched_anew(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """Under the new limit four fifths are far away, and alert when they are reached."""
    await org.configure(budgets=[budget(10 * COST_USD_MICROS, 80)])
    await org.spend(8)
    await instance.aggregate()
    await org.configure(budgets=[budget(20 * COST_USD_MICROS, 80)])
    await org.spend(4)
    await instance.aggregate()
    assert len(await org.history()) == 1
    clock.advance_ms(1_000)
    await org.spend(4)

    await instance.aggregate()

    limits = [facts(one)["limit_usd_micros"] for one in await org.history()]
    assert limits == [20 * COST_USD_MICROS, 10 * COST_USD_MICROS]


async def test_several_thresholds_at_once_are_told_each(org: Org, instance: Instance) -> None:
    """One large call crosses them all, and goes beyond."""
    await org.configure(budgets=[budget(COST_USD_MICROS, 50, 100, 150, 200)])
    await org.spend(2)

    await instance.aggregate()

    assert thresholds(await org.history()) == [50, 100, 150, 200]


async def test_budgets_of_apps_labels_and_tags_are_told_apart(org: Org, instance: Instance) -> None:
    """Each is checked when something is spent from it, and only then."""
    await org.configure(
        tag_keys=["team"],
        budgets=[
            budget(COST_USD_MICROS, 100, name="standard", labels=[STANDARD]),
            budget(COST_USD_MICROS, 100, name="teams", per_tag="team"),
        ],
        app={"budgets": [budget(2 * COST_USD_MICROS, 100, name="own")]},
    )
    await org.spend(tags={"team": "red"})
    await instance.aggregate()
    red = await org.history()
    await org.spend(tags={"team": "blue"})
    await instance.aggregate()
    blue = await org.history()
    await org.spend()
    await instance.aggregate()
    none = await org.history()

    assert [(facts(one)["name"], facts(one).get("tag")) for one in red] == [
        ("teams", {"team": "red"})
    ]
    told = {(facts(one)["name"], str(facts(one).get("tag"))) for one in blue}
    assert told - {("teams", "{'team': 'red'}")} == {
        ("teams", "{'team': 'blue'}"),
        ("own", "None"),
    }
    own = next(json.loads(one.body) for one in blue if facts(one)["name"] == "own")
    assert (own["app_id"], own["about"]["scope"]) == (APP, "APP")
    assert f"pricekeeper budgets {org.id} {APP}" in own["next"]
    assert [facts(one).get("tag") for one in none if one not in blue] == [{"team": ""}]


async def test_quotas_of_apps_and_of_organisations(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """By app where each has its own, and for all together where they share them."""
    quotas = {**org.settings["quotas"], PREMIUM: 2 * COST_USD_MICROS}
    await org.configure(quotas=quotas, alerts={"quota_at_pct": [50, 100]})
    await org.spend()
    await instance.aggregate()
    by_app = [json.loads(one.body) for one in await org.history()]
    clock.advance_ms(1_000)
    await org.configure(quota_scope="ORG")
    await org.spend(app_id=AppId("other"))
    await instance.aggregate()

    shared = [json.loads(one.body) for one in await org.history()][: -len(by_app)]

    assert [(one["app_id"], one["about"]["scope"]) for one in by_app] == [(APP, "APP")]
    assert [(one["app_id"], one["about"]["scope"]) for one in shared] == [(None, "ORG")]
    assert shared[0]["kind"] == "QUOTA"
    assert shared[0]["about"] == {
        "label": "premium",
        "scope": "ORG",
        "day": "2030-01-15",
        "threshold_pct": 50,
        "charged_pct": 50,
        "charged_usd_micros": COST_USD_MICROS,
        "limit_usd_micros": 2 * COST_USD_MICROS,
        "resets_at": "2030-01-16T00:00:00Z",
    }


async def test_quotas_are_told_at_four_fifths_and_at_all_unless_somebody_says_otherwise(
    org: Org, instance: Instance
) -> None:
    quotas = {**org.settings["quotas"], PREMIUM: COST_USD_MICROS}
    await org.configure(quotas=quotas, alerts=None)
    await org.spend()

    await instance.aggregate()

    assert thresholds(await org.history()) == [80, 100]


async def test_a_zone_whose_hours_begin_at_half_past(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """An hour of UTC is in two hours there; the right budget alerts."""
    hourly = budget(COST_USD_MICROS, 100, window="HOUR")
    await org.configure(timezone="Asia/Kolkata", budgets=[hourly])
    clock.set("2030-01-15T12:10:00Z")
    await org.spend()
    clock.set("2030-01-15T12:50:00Z")
    await org.spend()

    await instance.aggregate()

    started = sorted(facts(one)["window_started_at"] for one in await org.history())
    assert started == ["2030-01-15T11:30:00Z", "2030-01-15T12:30:00Z"]


async def test_a_client_that_can_not_be_read_keeps_nobody_else_from_being_told(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """It is reported, the run is complete, and its neighbour alerts."""
    neighbour = Org(instance, clock)
    await neighbour.configure(budgets=[budget(COST_USD_MICROS, 100)])
    await org.configure(budgets=[budget(COST_USD_MICROS, 100)])
    await org.spend()
    await neighbour.spend()
    damage = Update(CONFIG, config_key(Client(org.id)), (Set("timezone", "Nowhere"),))
    await instance.store.update(damage)
    fresh = Instance(instance.store, clock)

    await fresh.aggregate()

    assert len(await neighbour.history()) == 1
    await fresh.close()


async def test_nothing_is_looked_up_for_what_has_not_moved(
    org: Org, instance: Instance, meter: Any
) -> None:
    """A second look at the same totals reads no settings and no accounts."""
    await org.configure(budgets=[budget(USD, 100)])
    await org.spend()
    await instance.aggregate()
    before = dict(meter.calls)
    await instance.aggregate()
    idle = {name: meter.calls[name] - before.get(name, 0) for name in meter.calls}
    bare = Instance(instance.store, org.clock)
    bare.aggregator = type(bare.aggregator)(instance.store, org.clock)
    before = dict(meter.calls)
    await bare.aggregate()
    without = {name: meter.calls[name] - before.get(name, 0) for name in meter.calls}

    assert idle["batch_get"] <= without["batch_get"]
    await bare.close()
