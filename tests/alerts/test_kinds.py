"""The other alerts: fallbacks, spent models, rates, prices, lag, old secrets."""

import json
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from alerts.conftest import APP, COST_USD_MICROS, USD, Instance, Org
from metering.conftest import CATALOGUE, ECONOMY, LABELS, PREMIUM, STANDARD
from minting import minted
from pricekeeper.alerts import AlertKind
from pricekeeper.alerts.findings import ASKED_MIN, KEYS_MAX, UNSETTLED_MIN, BadShares
from pricekeeper.alerts.items import StoredAlert
from pricekeeper.errors import StoreUnavailableError, UnpricedUsageError
from pricekeeper.metering import Usage
from pricekeeper.pricing import Catalogue
from pricekeeper.storage import Set, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client
from pricekeeper.tenants.items import config_key
from pricekeeper.wire.alerts import KindName
from selection.conftest import SettableClock

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
SECS_PER_DAY = 86_400


def body(alert: StoredAlert) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(alert.body)
    return made


async def of_deployment(instance: Instance, kind: AlertKind) -> list[dict[str, Any]]:
    page = await instance.alerts.history.read_page(None, kind=kind)
    return [body(one) for one in page.entries]


def test_the_contract_names_every_kind() -> None:
    assert get_args(KindName) == tuple(AlertKind)


class TestFallback:
    """A flip alerts once, and so does the next one of the day."""

    async def select(self, org: Org, instance: Instance) -> str | None:
        policy = await instance.tenants.find_policy(org.id, APP)
        decision = await instance.selection.assess(policy, force_check=True)
        return decision.label

    async def test_each_flip_of_a_day_is_told_once(
        self, org: Org, instance: Instance, clock: SettableClock
    ) -> None:
        quotas = {PREMIUM: COST_USD_MICROS, STANDARD: 2_800, ECONOMY: USD}
        await org.configure(quotas=quotas)
        await org.spend()
        await instance.aggregate()
        assert await org.history(kind=AlertKind.FALLBACK) == []
        assert await self.select(org, instance) == STANDARD
        await org.spend(model_label=STANDARD)
        for _ in range(2):
            await instance.aggregate()
        (first,) = map(body, await org.history(kind=AlertKind.FALLBACK))
        assert await self.select(org, instance) == ECONOMY
        clock.advance_ms(1_000)
        await org.spend(model_label=ECONOMY)
        await instance.aggregate()

        second = body((await org.history(kind=AlertKind.FALLBACK))[0])

        assert first["title"] == "Web of Acme: premium is spent, standard takes over"
        assert first["about"]["from_labels"] == [PREMIUM]
        assert (first["app_id"], first["about"]["resets_at"]) == (APP, "2030-01-16T00:00:00Z")
        assert second["about"]["from_labels"] == [PREMIUM, STANDARD]
        assert second["about"]["to_label"] == ECONOMY

    async def test_a_flip_long_after_the_spending_is_told_with_the_next_usage(
        self, org: Org, instance: Instance, clock: SettableClock
    ) -> None:
        """An app that asks for a model every five minutes."""
        await org.configure(quotas={PREMIUM: COST_USD_MICROS, STANDARD: USD, ECONOMY: USD})
        await org.spend()
        await instance.aggregate()
        clock.advance_ms(10 * MINUTE_MS)
        await self.select(org, instance)
        await org.spend(model_label=STANDARD)
        await instance.aggregate()

        assert len(await org.history(kind=AlertKind.FALLBACK)) == 1

    async def test_a_model_without_text_is_none_that_is_left(
        self, org: Org, instance: Instance
    ) -> None:
        """Nothing is recommended any more, though a model of vectors has its quota."""
        models = [CATALOGUE.model(label) for label in LABELS]
        vectors = [replace(one, writes_text=one.label != ECONOMY) for one in models]
        catalogue = Catalogue({one.label: one for one in vectors}, "test")
        await org.configure(quotas={PREMIUM: COST_USD_MICROS, STANDARD: 2_800, ECONOMY: USD})
        other = Instance(instance.store, org.clock, catalogue=catalogue)
        await org.spend(instance=other)
        await org.spend(instance=other, model_label=STANDARD)
        await other.aggregate()
        await other.close()
        (told,) = map(body, await org.history(kind=AlertKind.EXHAUSTED))
        assert told["about"]["labels"] == [PREMIUM, STANDARD]

    async def test_models_that_are_all_spent(
        self, org: Org, instance: Instance, clock: SettableClock
    ) -> None:
        """Told once; again if the quotas were raised and are spent once more."""
        quotas = {PREMIUM: COST_USD_MICROS, STANDARD: 2_800, ECONOMY: 1}
        await org.configure(quotas=quotas)
        await org.spend()
        await org.spend(model_label=STANDARD)
        await instance.aggregate()
        assert await org.history(kind=AlertKind.EXHAUSTED) == []
        await org.spend(model_label=ECONOMY)
        for _ in range(2):
            await org.spend(model_label=ECONOMY)
            await instance.aggregate()
        (told,) = map(body, await org.history(kind=AlertKind.EXHAUSTED))
        clock.advance_ms(1_000)
        await org.configure(quotas={**quotas, STANDARD: 5_600})
        await org.spend(model_label=ECONOMY)
        await instance.aggregate()
        assert len(await org.history(kind=AlertKind.EXHAUSTED)) == 1
        await org.spend(model_label=STANDARD)
        await instance.aggregate()

        assert len(await org.history(kind=AlertKind.EXHAUSTED)) == 2
        assert told["title"] == "Web of Acme: every model is spent"
        assert told["about"]["labels"] == list(LABELS)
        assert told["about"]["quota_usd_micros"] == quotas
        assert told["about"]["spent_usd_micros"][PREMIUM] == COST_USD_MICROS


class TestDenials:
    """Much of what an app asks for is denied."""

    def note(self, org: Org, instance: Instance, denied: int, asked: int) -> None:
        client, now_ms = Client(org.id, APP), org.clock.now_ms()
        for number in range(asked):
            instance.alerts.checks.denials.note(client, int(number < denied), 1, now_ms)

    @pytest.mark.parametrize(
        ("denied", "asked", "pct", "told"),
        [
            (ASKED_MIN // 2, ASKED_MIN, 50, True),
            (ASKED_MIN // 2 - 1, ASKED_MIN, 50, False),
            (ASKED_MIN - 1, ASKED_MIN - 1, 50, False),
            (ASKED_MIN, ASKED_MIN, 0, False),
            (1, 100, 1, True),
        ],
    )
    async def test_the_rule(
        self, org: Org, instance: Instance, denied: int, asked: int, pct: int, told: bool
    ) -> None:
        await org.configure(alerts={"denied_pct": pct})
        self.note(org, instance, denied, asked)
        await instance.alerts.checks.run_once()

        assert len(await org.history(kind=AlertKind.DENIALS)) == told

    async def test_it_is_told_once_an_hour(
        self, org: Org, instance: Instance, clock: SettableClock
    ) -> None:
        """Ten minutes that are over count no more, and the next hour tells again."""
        for _ in range(6):
            self.note(org, instance, 15, 20)
            await instance.alerts.checks.run_once()
            clock.advance_ms(10 * MINUTE_MS)
        await instance.alerts.checks.run_once()
        (alert,) = map(body, await org.history(kind=AlertKind.DENIALS))
        self.note(org, instance, 15, 20)
        await instance.alerts.checks.run_once()

        assert len(await org.history(kind=AlertKind.DENIALS)) == 2
        assert alert["title"] == "Web of Acme: 75 % of its calls are denied"
        assert (alert["about"]["denied"], alert["about"]["asked"]) == (15, 20)
        assert alert["about"]["since"] == "2030-01-15T12:00:00Z"

    def test_a_flood_of_clients_fills_a_bounded_memory(self) -> None:
        shares: BadShares[int] = BadShares(1_000)
        for number in range(KEYS_MAX + 100):
            shares.note(number, 1, 1, 0)

        assert len(list(shares.bad(0))) == KEYS_MAX
        assert list(shares.bad(1_000)) == []


class TestUnsettled:
    """Much of what is charged was never settled."""

    @pytest.mark.parametrize(
        ("unsettled", "captured", "told"),
        [(UNSETTLED_MIN, 45, True), (UNSETTLED_MIN, 46, False), (UNSETTLED_MIN - 1, 0, False)],
    )
    async def test_the_rule(
        self, org: Org, instance: Instance, unsettled: int, captured: int, told: bool
    ) -> None:
        """Ten percent of the money in an hour, and five calls at least."""
        now_ms = org.clock.now_ms()
        for number in range(unsettled + captured):
            part = 10**12 if number < unsettled else 0
            instance.alerts.checks.unsettled.note(org.id, part, 10**12, now_ms)
        for _ in range(2):
            await instance.alerts.checks.run_once()

        found = [body(one) for one in await org.history(kind=AlertKind.UNSETTLED)]
        assert len(found) == told
        if told:
            assert found[0]["about"]["unsettled_calls"] == UNSETTLED_MIN
            assert found[0]["about"]["unsettled_usd_micros"] == UNSETTLED_MIN * USD
            assert found[0]["title"] == "Acme: 10 % of what is charged was never settled"


class TestPrices:
    """A price that is not known, or was estimated, is the deployment's matter."""

    async def test_an_estimated_price_is_told_once_a_day(
        self, org: Org, instance: Instance, clock: SettableClock
    ) -> None:
        for _ in range(2):
            await org.spend(service_tier="priority")
            await instance.alerts.checks.run_once()
        (told,) = await of_deployment(instance, AlertKind.PRICE)
        clock.advance_ms(DAY_MS)
        await instance.alerts.checks.run_once()
        assert len(await of_deployment(instance, AlertKind.PRICE)) == 1
        await org.spend(service_tier="priority")
        await instance.alerts.checks.run_once()

        assert len(await of_deployment(instance, AlertKind.PRICE)) == 2
        assert told["about"] == {"label": PREMIUM, "price": "ESTIMATED", "records": 1}
        assert told["org_id"] is None
        assert await org.history(kind=AlertKind.PRICE) == []

    async def test_an_unknown_price_is_told(self, org: Org, instance: Instance) -> None:
        """It was refused, so an operator must add it."""
        policy = await instance.tenants.find_policy(org.id, APP)
        usage = Usage(
            request_id=minted(org.clock.now_ms()),
            model_label=STANDARD,
            input_tokens=1,
            output_tokens=1,
            cache_write_1h_tokens=1,
        )
        with pytest.raises(UnpricedUsageError):
            await instance.metering.record(policy, usage)
        await instance.alerts.checks.run_once()

        (told,) = await of_deployment(instance, AlertKind.PRICE)
        assert told["about"] == {"label": STANDARD, "price": "UNKNOWN", "records": 1}
        assert "PRICEKEEPER_CONFIG" in told["next"]


class TestLag:
    """Totals that are not updated."""

    async def test_each_standstill_is_told_once(
        self, instance: Instance, clock: SettableClock
    ) -> None:
        await instance.aggregate()
        clock.advance_ms(3 * MINUTE_MS - 1)
        await instance.alerts.checks.run_once()
        assert await of_deployment(instance, AlertKind.AGGREGATOR_LAG) == []
        for _ in range(3):
            clock.advance_ms(HOUR_MS)
            await instance.alerts.checks.run_once()
        (told,) = await of_deployment(instance, AlertKind.AGGREGATOR_LAG)
        await instance.aggregate()
        await instance.alerts.checks.run_once()
        clock.advance_ms(HOUR_MS)
        await instance.alerts.checks.run_once()

        assert len(await of_deployment(instance, AlertKind.AGGREGATOR_LAG)) == 2
        assert told["about"]["caught_up_at"] == "2030-01-15T12:00:00Z"
        assert told["about"]["threshold_secs"] == 180

    async def test_before_the_first_aggregation_it_is_told_as_well(
        self, instance: Instance, clock: SettableClock
    ) -> None:
        """Counted from the first request, in a deployment that never aggregates."""
        await instance.alerts.checks.run_once()
        clock.advance_ms(3 * MINUTE_MS)
        await instance.alerts.checks.run_once()

        assert len(await of_deployment(instance, AlertKind.AGGREGATOR_LAG)) == 1


class TestSecrets:
    """An old secret alerts once, and again when it is twice as old."""

    async def age(self, org: Org, instance: Instance, days: int) -> None:
        """Have the app's secret be that old."""
        created = org.clock.now_ms() // 1000 - days * SECS_PER_DAY
        change = (Set("client_secret_created_at_epoch", created),)
        key = config_key(Client(org.id, APP))
        await instance.store.update(Update(CONFIG, key, change))
        org.clock.advance_ms(DAY_MS)  # type: ignore[attr-defined]
        await instance.aggregate()
        await instance.alerts.checks.run_once()

    async def test_at_ninety_days_and_at_a_hundred_and_eighty(
        self, org: Org, instance: Instance
    ) -> None:
        await self.age(org, instance, 88)
        assert await org.history(kind=AlertKind.SECRET_AGE) == []
        await self.age(org, instance, 89)
        (told,) = map(body, await org.history(kind=AlertKind.SECRET_AGE))
        for _ in range(2):
            org.clock.advance_ms(DAY_MS)  # type: ignore[attr-defined]
            await instance.alerts.checks.run_once()
        assert len(await org.history(kind=AlertKind.SECRET_AGE)) == 1
        org.clock.advance_ms(88 * DAY_MS)  # type: ignore[attr-defined]
        await instance.alerts.checks.run_once()

        # The first was kept for 90 days.
        (again,) = map(body, await org.history(kind=AlertKind.SECRET_AGE))
        assert again["title"] == "Web of Acme: its secret is 180 days old"
        assert told["title"] == "Web of Acme: its secret is 90 days old"
        assert told["about"]["client_id"] == f"org-{org.id}-app-{APP}"
        assert f"pricekeeper credentials rotate {org.id} {APP} --grace-hours 48" in told["next"]

    async def test_one_instance_looks_on_a_day(
        self, org: Org, instance: Instance, clock: SettableClock, meter: Any
    ) -> None:
        """The first that claims the day; the others look at nothing."""
        await self.age(org, instance, 100)
        other = Instance(instance.store, clock)
        await other.alerts.checks.run_once()
        meter.clear()
        await other.alerts.checks.run_once()

        assert meter.calls["query"] == 0
        assert len(await org.history(kind=AlertKind.SECRET_AGE)) == 1
        await other.close()

    async def test_another_age_and_never(self, org: Org, instance: Instance) -> None:
        await org.configure(alerts={"secret_days": 0})
        await self.age(org, instance, 4_000)
        assert await org.history(kind=AlertKind.SECRET_AGE) == []
        await org.configure(alerts={"secret_days": 30})
        org.clock.advance_ms(DAY_MS)  # type: ignore[attr-defined]
        await instance.alerts.checks.run_once()
        assert len(await org.history(kind=AlertKind.SECRET_AGE)) == 1


async def test_a_check_that_fails_keeps_no_other_from_being_made(
    org: Org, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, and made again at the next interval."""

    async def fail() -> int:
        raise StoreUnavailableError("away")

    checks = instance.alerts.checks
    checks._sources = checks._sources._replace(read_caught_up_at_ms=fail)
    await org.spend(service_tier="priority")
    await TestSecrets().age(org, instance, 100)

    assert len(await of_deployment(instance, AlertKind.PRICE)) == 1
    assert len(await org.history(kind=AlertKind.SECRET_AGE)) == 1
