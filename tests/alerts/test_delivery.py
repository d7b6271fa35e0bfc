"""Delivery: at least once to each channel under one key, through dead endpoints and instances."""

import asyncio
import contextlib
from typing import Any

import pytest

from alerts.conftest import (
    COST_USD_MICROS,
    Instance,
    Org,
    add_deployment_channel,
    budget,
)
from alerts.endpoint import Endpoint, open_endpoint
from attribution import BY
from pricekeeper.alerts import (
    AlertKind,
    ChannelKind,
    ChannelRequest,
    DeliveryState,
    delivery,
    items,
)
from pricekeeper.alerts.alert import DEPLOYMENT
from pricekeeper.alerts.delivery import BACKOFF, GIVE_UP_MS, LEASE_MS
from pricekeeper.alerts.items import OUTBOX, Receiver
from pricekeeper.errors import ConditionFailedError
from pricekeeper.storage import Query
from pricekeeper.storage.tables import ALERTS
from selection.conftest import SettableClock

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def cross(org: Org, instance: Instance, *at_pct: int) -> None:
    """Have a threshold crossed, and decided."""
    await org.configure(budgets=[budget(COST_USD_MICROS, *(at_pct or (100,)))])
    await org.spend(3)
    await instance.aggregate()


async def outbox(instance: Instance) -> list[dict[str, Any]]:
    return list((await instance.store.query(Query(ALERTS, OUTBOX))).items)


async def finish(instance: Instance, receiver: Receiver) -> None:
    """Wait until a channel that is being served was served."""
    busy = instance.alerts.courier._busy.get(receiver)
    if busy is not None:
        await busy


async def states(org: Org) -> list[DeliveryState]:
    return [one.state for one in await org.history()]


async def test_an_hour_of_a_failing_webhook_delays_and_loses_nothing(
    org: Org, instance: Instance, endpoint: Endpoint, clock: SettableClock
) -> None:
    """Every attempt has the same key and the same body, and a signature of its own moment."""
    await org.add_channel(endpoint.url)
    endpoint.answer = lambda _: 503
    await cross(org, instance)
    began_ms = clock.now_ms()
    while clock.now_ms() < began_ms + HOUR_MS:
        await instance.deliver()
        clock.advance_ms(MINUTE_MS)
    failing = len(endpoint.requests)
    assert await states(org) == [DeliveryState.PENDING]
    endpoint.answer = lambda _: 200
    clock.advance_ms(BACKOFF.longest_ms)

    await instance.deliver()

    assert 5 <= failing <= 40
    assert len(endpoint.accepted) == 1
    assert len({(one.id, one.body) for one in endpoint.requests}) == 1
    assert all(one.is_signed() for one in endpoint.requests)
    assert len({one.headers["webhook-timestamp"] for one in endpoint.requests}) == failing + 1
    assert await states(org) == [DeliveryState.DELIVERED]
    assert await outbox(instance) == []


async def test_a_queue_with_a_waiting_alert_is_not_removed(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """An instance that found it empty removes it a moment too late."""
    await org.add_channel(endpoint.url)
    await cross(org, instance)
    (waiting,) = await outbox(instance)
    with pytest.raises(ConditionFailedError):
        await instance.store.delete(items.emptied_delete(items.waiting_from(waiting).receiver))
    await instance.deliver()
    assert len(endpoint.accepted) == 1


async def test_what_could_not_be_delivered_in_a_day_is_given_up_loudly(
    org: Org, instance: Instance, endpoint: Endpoint, clock: SettableClock, capsys: Any
) -> None:
    """The list, the metric and the log say so; what came later is still tried."""
    await org.add_channel(endpoint.url)
    endpoint.answer = lambda _: 500
    await cross(org, instance)
    await instance.deliver()
    clock.advance_ms(GIVE_UP_MS - MINUTE_MS)
    await cross(org, instance)  # of the next day
    await instance.deliver()
    assert await states(org) == [DeliveryState.PENDING, DeliveryState.PENDING]
    clock.advance_ms(BACKOFF.longest_ms)

    await instance.deliver()

    assert await states(org) == [DeliveryState.PENDING, DeliveryState.GIVEN_UP]
    (gone,) = await org.history(state=DeliveryState.GIVEN_UP)
    assert (gone.deliveries[0].channel, gone.deliveries[0].error) == (
        "org/ops",
        "answered HTTP 500",
    )
    assert instance.alerts.meter.given_up == {"WEBHOOK": 1}
    assert "alert_given_up" in capsys.readouterr().out


async def test_a_dead_channel_holds_up_no_other_one(
    org: Org, instance: Instance, endpoint: Endpoint, clock: SettableClock
) -> None:
    """One organisation's endpoint never answers; the deployment's channel gets its alert."""
    silent = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await silent.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await org.add_channel(f"http://127.0.0.1:{port}/")
    await add_deployment_channel(instance, endpoint.url)
    await cross(org, instance)

    await instance.alerts.courier.start_due()
    await endpoint.until_accepted(1)
    await finish(instance, Receiver(DEPLOYMENT, "platform"))
    await cross(org, instance, 50, 100)
    await instance.alerts.courier.start_due()  # the first one is still at it
    await endpoint.until_accepted(2)
    await finish(instance, Receiver(DEPLOYMENT, "platform"))

    (own, *_) = await org.history()
    assert {one.channel: one.state for one in own.deliveries} == {
        "org/ops": DeliveryState.PENDING,
        "platform": DeliveryState.DELIVERED,
    }
    silent.set()
    server.close()
    await asyncio.gather(*instance.alerts.courier._busy.values())


async def test_a_channel_that_refuses_one_alert_gets_the_others(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """What it answers with 400 stays in its queue, and is tried again later."""
    await org.add_channel(endpoint.url)
    endpoint.answer = lambda one: 400 if one.json["about"]["threshold_pct"] == 50 else 200
    await cross(org, instance, 50, 100, 200)

    await instance.deliver()

    told = [one["about"]["threshold_pct"] for one in endpoint.alerts()]
    assert sorted(told) == [100, 200]
    assert sorted(await states(org)) == [
        DeliveryState.DELIVERED,
        DeliveryState.DELIVERED,
        DeliveryState.PENDING,
    ]
    assert len(await outbox(instance)) == 1


async def test_what_can_not_be_reached_is_asked_once_and_not_for_each_alert(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    await org.add_channel(endpoint.url)
    endpoint.answer = lambda _: 502
    await cross(org, instance, 50, 100, 200)

    await instance.deliver()

    assert len(endpoint.requests) == 1


async def test_one_instance_at_a_time_is_at_a_channel(
    org: Org, instance: Instance, endpoint: Endpoint, clock: SettableClock
) -> None:
    """While one waits for the answer, another finds the lease, and sends nothing."""
    await org.add_channel(endpoint.url)
    await cross(org, instance)
    other = Instance(instance.store, clock)
    seen = []

    def answer(_: Any) -> int:
        seen.append(len(other.alerts.courier._busy))
        return 200

    endpoint.answer = answer
    await asyncio.gather(instance.deliver(), other.deliver())
    await other.deliver()

    assert len(endpoint.requests) == 1
    assert seen
    await other.close()


async def test_a_lease_ends_with_its_time(
    org: Org, instance: Instance, endpoint: Endpoint, clock: SettableClock
) -> None:
    """An instance that dies with an alert in its hands is replaced, under the same key."""
    await org.add_channel(endpoint.url)
    await cross(org, instance)
    died = Instance(instance.store, clock)
    endpoint.before_answer = lambda _: _cancel_all(died)
    with contextlib.suppress(asyncio.CancelledError):
        await died.deliver()
    assert len(endpoint.accepted) == 1
    await instance.deliver()
    assert len(endpoint.accepted) == 1
    clock.advance_ms(LEASE_MS)

    await instance.deliver()

    assert len(endpoint.accepted) == 2
    assert len({one.id for one in endpoint.accepted}) == 1
    assert await states(org) == [DeliveryState.DELIVERED]
    await died.close()


def _cancel_all(instance: Instance) -> None:
    for task in instance.alerts.courier._busy.values():
        task.cancel()


async def test_an_organisation_fills_its_own_share(
    org: Org, instance: Instance, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what may wait for a channel, alerts are listed and not sent; others are sent."""
    most = 4
    monkeypatch.setattr(items, "PENDING_MAX", most)
    await org.add_channel(endpoint.url)
    await add_deployment_channel(instance, endpoint.url)
    await org.configure(tag_keys=["team"], budgets=[budget(COST_USD_MICROS, 100, per_tag="team")])
    for number in range(most + 3):
        await org.spend(tags={"team": f"team-{number}"})
    await instance.aggregate()
    waiting = await outbox(instance)
    assert sorted(one["pending"] for one in waiting) == [most, most]

    await instance.deliver()

    listed = await org.history()
    assert len(listed) == most + 3
    assert sum(one.state is DeliveryState.UNSENT for one in listed) == 3
    assert len(endpoint.alerts()) == most
    assert await outbox(instance) == []


async def test_a_channel_that_is_gone_takes_its_queue_along(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """What waited for it is given up, and says why."""
    await org.add_channel(endpoint.url)
    await cross(org, instance)
    await instance.alerts.channels.remove(await org.owner(), "ops", BY)

    await instance.deliver()

    (alert,) = await org.history()
    assert alert.deliveries[0].error == "the channel was removed"
    assert await outbox(instance) == []
    assert endpoint.requests == []


async def test_an_organisation_that_is_gone_takes_its_channels_along(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """Nothing is sent for it any more, and a new one of that id has no channels and no history."""
    await org.add_channel(endpoint.url)
    await cross(org, instance)
    await instance.tenants.delete_org(org.id, BY)
    await instance.deliver()
    await org.configure()

    assert endpoint.requests == []
    assert await outbox(instance) == []
    assert await org.history() == []
    assert await instance.alerts.channels.read_all(await org.owner()) == []


async def test_a_changed_address_gets_what_waits(
    org: Org, instance: Instance, endpoint: Endpoint, clock: SettableClock
) -> None:
    """An address that was wrong is set right, and nothing is lost."""
    await org.add_channel("http://127.0.0.1:9/")  # without a listener
    await cross(org, instance)
    await instance.deliver()
    await org.add_channel(endpoint.url)
    clock.advance_ms(BACKOFF.longest_ms)

    await instance.deliver()

    assert len(endpoint.accepted) == 1


async def test_channels_take_the_kinds_that_they_ask_for(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """A channel for quotas hears nothing of budgets."""
    await org.add_channel(endpoint.url, kinds=(AlertKind.QUOTA,))
    await org.configure(
        quotas={**org.settings["quotas"], "premium": COST_USD_MICROS},
        alerts={"quota_at_pct": [100]},
    )
    await cross(org, instance)
    await instance.deliver()

    assert [one["kind"] for one in endpoint.alerts()] == ["QUOTA"]
    assert len(await org.history()) == 2


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(
    org: Org, instance: Instance, endpoint: Endpoint, status: int
) -> None:
    """An allowed server can't redirect us to another one."""
    async with open_endpoint() as elsewhere:
        elsewhere.answer = lambda _: status
        elsewhere.url, hook = endpoint.url, elsewhere.url
        await org.add_channel(hook)
        await cross(org, instance)
        await instance.deliver()

    assert endpoint.requests == []
    assert await states(org) == [DeliveryState.PENDING]


async def test_a_job_delivers_without_being_asked(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """Alerts that are decided here are delivered at once, without waiting for an interval."""
    await org.add_channel(endpoint.url)
    running = asyncio.create_task(instance.alerts.courier.run_forever(3_600_000))
    await asyncio.sleep(0)
    await cross(org, instance)
    await endpoint.until_accepted(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert len(endpoint.accepted) == 1


async def test_a_channel_is_tried_past_the_queue(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """A test is marked, signed, and leaves nothing behind."""
    await org.add_channel(endpoint.url)
    owner = await org.owner()

    trial = await instance.alerts.try_channel(owner, "ops", BY)

    assert trial.error is None
    (taken,) = endpoint.requests
    assert taken.is_signed()
    assert (taken.json["test"], taken.json["kind"], taken.id) == (True, "TEST", trial.alert_id)
    assert await org.history() == []
    endpoint.answer = lambda _: 404
    assert (await instance.alerts.try_channel(owner, "ops", BY)).error == "answered HTTP 404"


async def test_more_channels_than_slots_are_all_served(
    org: Org, instance: Instance, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that find no slot are served when one is free."""
    monkeypatch.setattr(delivery, "SLOTS", 2)
    for number in range(6):
        await org.add_channel(endpoint.url, f"ops-{number}")
    await cross(org, instance)
    for rounds in (1, 2, 3):
        await instance.deliver()
        assert len(endpoint.accepted) == 2 * rounds


async def test_deployment_channels_hear_of_everybody(
    instance: Instance, endpoint: Endpoint, clock: SettableClock
) -> None:
    """Each organisation's alerts go to its own channels, and to those of the deployment."""
    request = ChannelRequest(ChannelKind.WEBHOOK, endpoint.url, "another-secret-of-ours")
    await instance.alerts.channels.put(DEPLOYMENT, "all", request, BY)
    for _ in range(2):
        one = Org(instance, clock)
        await one.configure()
        await cross(one, instance)
    await instance.deliver()

    assert len({one["org_id"] for one in endpoint.alerts()}) == 2
    page = await instance.alerts.history.read_page(None)
    assert len(page.entries) == 2
