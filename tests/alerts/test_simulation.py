"""Alerts under everything at once, in an order that a seed decides.

Three instances with clocks up to two seconds wrong aggregate, decide and deliver, while two apps of
an organisation spend around a midnight. The wire loses requests and replies and delivers late, up
to minutes; processes die at any call. One endpoint is dead for an hour, and endpoints lose the
replies to what they have accepted.

In the end every threshold that was crossed was decided exactly once in its window, nothing else
was, and each alert came to each channel at least once, always under the same key with the same
bytes. Nothing waits any more.
"""

import json
import random
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

import quick_loop
from alerts.conftest import PEPPERS, USD, budget
from alerts.endpoint import SECRET
from alerts.variants import BROKEN, CAUGHT_BY
from attribution import BY
from faulty_store import Crashed, Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from metering.conftest import CATALOGUE, LABELS, PREMIUM, STANDARD, a_usage
from minting import minted
from pricekeeper.alerts import ChannelKind, ChannelRequest, DeliveryState
from pricekeeper.alerts.alert import DEPLOYMENT
from pricekeeper.alerts.channels import Channels, OpenChannel
from pricekeeper.alerts.deciding import Decider
from pricekeeper.alerts.delivery import Courier
from pricekeeper.alerts.items import OUTBOX
from pricekeeper.alerts.service import AlertHistory
from pricekeeper.alerts.watching import Watcher
from pricekeeper.budgets import window_at
from pricekeeper.clock import Clock, ManualClock
from pricekeeper.credentials import Sealer
from pricekeeper.days import day_start_ms
from pricekeeper.errors import DeliveryError, OutcomeUnknownError, StoreError, StoreUnavailableError
from pricekeeper.ledger import Ledger
from pricekeeper.metering import Aggregator, Metering, WindowSpend
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Store
from pricekeeper.storage.tables import ALERTS
from pricekeeper.tenants import Tenants, Window
from pricekeeper.values import AppId, OrgId
from quick_loop import quiet
from selection.conftest import epoch_ms
from slow_wire import SkewedClock, SlowWire
from slowness import batches

__all__ = ["quiet"]

pytestmark = pytest.mark.usefixtures("quiet")
HISTORIES, HISTORIES_EACH = 40, 20
INSTANCES, SPENDERS, RECORDS, ROUNDS = 3, 2, 6, 8
SKEW_MS = 2_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
APPS = (AppId("one"), AppId("two"))
AT_PCT = (50, 80, 100, 200)
FAULTS = (
    Faults(
        refused_pct=3, request_lost_pct=4, reply_lost_pct=5, late_pct=4, resent_pct=4, crashed_pct=3
    ),
    Faults(request_lost_pct=3, reply_lost_pct=6, late_pct=5, crashed_pct=4, spare_reads=True),
)
_NO_ANSWER = (OutcomeUnknownError, StoreUnavailableError, StoreError, Crashed)


class Receivers:
    """The endpoints of all channels: what they have accepted, and when they are dead."""

    def __init__(self, clock: ManualClock, dice: Random) -> None:
        self._clock = clock
        self._random = dice
        self.dead_until_ms: dict[str, int] = {}
        self.accepted: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        self.failed = 0

    async def send(self, channel: OpenChannel, alert_id: str, body: bytes) -> None:
        name = channel.channel.name
        assert channel.address.secret == SECRET
        self._clock.advance_ms(self._random.randrange(2_000))
        if self._clock.now_ms() < self.dead_until_ms.get(name, 0):
            self.failed += 1
            raise DeliveryError("answered HTTP 503")
        self.accepted[name].append((alert_id, body))
        if self._random.random() < 0.1:  # the answer is lost
            raise DeliveryError("did not answer within 10 s")


class Instance:
    """What an instance does about alerts."""

    def __init__(self, store: Store, clock: Clock, receivers: Receivers, seed: int) -> None:
        self.tenants = Tenants(store, clock, LABELS)
        self.channels = Channels(store, clock, self.tenants, sealer=Sealer(PEPPERS))
        decider = Decider(store, clock, self.channels)
        dice = Random(seed)
        ledger = Ledger(store, clock, WindowSpend(store, clock).read_spend, randomness=dice)
        watcher = Watcher(store, self.tenants, decider, ledger)
        self.aggregator = Aggregator(store, clock, look=watcher.look, randomness=dice)
        to = {ChannelKind.WEBHOOK: receivers.send}
        self.courier = Courier(store, clock, self.channels, to, randomness=dice)
        self.history = AlertHistory(store)

    async def aggregate(self) -> None:
        await self.aggregator.run_once()

    async def deliver(self) -> None:
        await self.courier.run_once()


class World:
    """One deployment, what is spent in it, and what came of that."""

    def __init__(self, store: MemoryStore, clock: ManualClock, seed: int) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.turns = Interleaving(seed, lambda _: clock.advance_ms(self.turns.below(4_000)))
        self.wire = SlowWire(store, self.turns, self.random.choice(FAULTS), clock)
        self.calm = FaultyStore(store, self.turns, Faults())
        self.store = store
        self.receivers = Receivers(clock, self.random)
        self.org_id = OrgId(str(uuid.UUID(int=self.random.getrandbits(128), version=4)))
        self.window = self.random.choice((Window.HOUR, Window.DAY))
        self.spent: dict[tuple[str, str, str], int] = defaultdict(int)
        """By kind, who and window: pico-dollars."""
        self.limits = {
            "org": self.random.choice((40_000, 90_000)),
            "app": self.random.choice((15_000, 60_000)),
            "quota": self.random.choice((20_000, 70_000)),
        }
        self.crashes = 0
        self.instances = [self.instance() for _ in range(INSTANCES)]

    def instance(self, store: Store | None = None) -> Instance:
        skew_ms = 0 if store else self.random.randint(-SKEW_MS, SKEW_MS)
        clock = SkewedClock(self.clock, self.turns, skew_ms)
        return Instance(store or self.wire, clock, self.receivers, self.random.getrandbits(64))

    async def prepare(self) -> None:
        """Make the organisation, its apps and its channels, and let one endpoint be dead."""
        quiet = self.instance(self.calm)
        window = self.window.value
        await quiet.tenants.put_org(
            self.org_id,
            {
                "org_name": "Acme",
                "timezone": "UTC",
                "quota_scope": "APP",
                "model_ordering": list(LABELS),
                "quotas": {**dict.fromkeys(LABELS, USD * 1_000), PREMIUM: self.limits["quota"]},
                "budgets": [budget(self.limits["org"], *AT_PCT, name="org", window=window)],
                "alerts": {"quota_at_pct": list(AT_PCT)},
            },
            BY,
        )
        own = [budget(self.limits["app"], *AT_PCT, name="app", window=window)]
        for app_id in APPS:
            await quiet.tenants.put_app(
                self.org_id, app_id, {"app_name": app_id, "budgets": own}, BY
            )
        request = ChannelRequest(ChannelKind.WEBHOOK, "https://8.8.8.8/", SECRET)
        owner = await quiet.channels.find_owner(self.org_id)
        await quiet.channels.put(owner, "ops", request, BY)
        await quiet.channels.put(DEPLOYMENT, "platform", request, BY)
        dead = self.random.choice(("ops", "platform"))
        self.receivers.dead_until_ms[dead] = self.clock.now_ms() + HOUR_MS

    async def spend(self) -> None:
        """Report usage; what is reported is counted, once."""
        clock = SkewedClock(self.clock, self.turns, 0)
        tenants = Tenants(self.calm, clock, LABELS)
        ledger = Ledger(
            self.calm, clock, WindowSpend(self.calm, clock).read_spend, randomness=self.random
        )
        prices = PriceBook(self.calm, clock, CATALOGUE)
        metering = Metering(self.calm, clock, prices, ledger=ledger, randomness=self.random)
        for _ in range(RECORDS):
            app_id = self.random.choice(APPS)
            policy = await tenants.find_policy(self.org_id, app_id)
            at_ms = self.clock.now_ms()
            usage = a_usage(
                minted(at_ms, self.random),
                model_label=self.random.choice((PREMIUM, STANDARD)),
                input_tokens=self.random.randrange(1_500),
                output_tokens=self.random.randrange(900),
                timestamp_ms=at_ms,
            )
            recorded = await metering.record(policy, usage)
            cost = recorded.receipt.cost_usd_picos
            span = window_at(self.window, "UTC", at_ms)
            self.spent["BUDGET", "org", span.name] += cost
            self.spent["BUDGET", app_id, span.name] += cost
            if usage.model_label == PREMIUM:
                day = window_at(Window.DAY, "UTC", at_ms).name
                self.spent["QUOTA", app_id, day] += cost
            for _ in range(self.random.randrange(6)):
                await self.turns.turn()
        await metering.close()
        await ledger.close()

    async def work(self, number: int) -> None:
        """One instance aggregates and delivers; when it dies, another takes its place."""
        for _ in range(ROUNDS):
            instance = self.instances[number]
            for step in (instance.aggregate, instance.deliver):
                try:
                    await step()
                except Crashed:
                    self.crashes += 1
                    self.instances[number] = self.instance()
                    break
                except _NO_ANSWER:
                    continue
            self.clock.advance_ms(self.random.choice((5_000, 30_000)))
            await self.turns.turn()

    async def finish(self) -> None:
        """Let everything arrive, then let one instance run undisturbed for some hours."""
        await self.wire.deliver()
        survivor = self.instance(self.calm)
        for _ in range(24):
            await survivor.aggregate()
            await survivor.deliver()
            self.clock.advance_ms(10 * MINUTE_MS)
        await self.check(survivor)

    async def check(self, survivor: Instance) -> None:
        owner = await survivor.channels.find_owner(self.org_id)
        page = await survivor.history.read_page(owner)
        assert page.after is None
        found: Counter[tuple[str, str, str, int]] = Counter()
        bodies = {one.id: one.body for one in page.entries}
        for one in page.entries:
            found[self.identity(json.loads(one.body))] += 1
            assert one.state is DeliveryState.DELIVERED, one
        assert set(found.values()) <= {1}, f"decided twice: {found}"
        expected = set(self.expected())
        assert set(found) == expected, (set(found) ^ expected, self.spent)
        for name in ("ops", "platform"):
            accepted = self.receivers.accepted[name]
            assert {alert_id for alert_id, _ in accepted} == set(bodies), name
            assert all(bodies[alert_id] == body for alert_id, body in accepted), name
        assert self.store.partitions.get((ALERTS.name, OUTBOX), {}) == {}

    def identity(self, body: dict[str, Any]) -> tuple[str, str, str, int]:
        about = body["about"]
        who = body["app_id"] or "org"
        if body["kind"] == "QUOTA":
            return ("QUOTA", who, "D" + about["day"].replace("-", ""), about["threshold_pct"])
        at_ms = epoch_ms(about["window_started_at"])
        return ("BUDGET", who, window_at(self.window, "UTC", at_ms).name, about["threshold_pct"])

    def expected(self) -> list[tuple[str, str, str, int]]:
        made = []
        for (kind, who, span), picos in self.spent.items():
            of = "quota" if kind == "QUOTA" else "org" if who == "org" else "app"
            limit = self.limits[of] * 1_000_000
            made += [
                (kind, who, span, pct) for pct in AT_PCT if picos and picos * 100 >= pct * limit
            ]
        return made


async def simulate(seed: int) -> World:
    """One history, from two minutes before a midnight on; raises what it finds wrong."""
    random.seed(seed)  # the ids of alerts are made of it
    clock = ManualClock(day_start_ms("UTC", "20181104") - 2 * MINUTE_MS)
    store = MemoryStore(clock)
    await store.create_tables()
    world = World(store, clock, seed)
    await world.prepare()
    outcomes = await world.turns.run(
        *(world.work(number) for number in range(INSTANCES)),
        *(world.spend() for _ in range(SPENDERS)),
    )
    for one in outcomes:
        if isinstance(one, BaseException) and not isinstance(one, _NO_ANSWER):
            raise one
    await world.finish()
    return world


@pytest.mark.parametrize("first", batches(HISTORIES, HISTORIES_EACH))
def test_every_threshold_is_decided_once_and_delivered(first: int) -> None:
    """With losses, repeats, delays and deaths at every step."""
    befell: Counter[str] = Counter()
    crashes = failed = told = 0
    for seed in range(first, first + HISTORIES_EACH):
        world = quick_loop.run(simulate(seed))
        befell += world.wire.befell
        crashes += world.crashes
        failed += world.receivers.failed
        told += len(world.receivers.accepted["ops"])
    assert befell.keys() >= {"refused", "request_lost", "reply_lost", "late", "crashed"}
    assert crashes > HISTORIES_EACH // 4
    assert min(failed, told) > HISTORIES_EACH


@pytest.mark.parametrize("name", BROKEN)
def test_the_same_checks_catch_a_broken_variant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name](monkeypatch)
    with pytest.raises((AssertionError, LookupError)):
        quick_loop.run(simulate(CAUGHT_BY[name]))


def test_every_broken_variant_is_in_the_document() -> None:
    listed = (Path(__file__).parents[2] / "docs" / "proof.md").read_text()
    for name, seed in CAUGHT_BY.items():
        assert f"| {name} | {seed} |" in listed
    assert CAUGHT_BY.keys() == BROKEN.keys()
