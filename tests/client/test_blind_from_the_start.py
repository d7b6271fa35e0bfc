"""A process that starts while the service is down follows the chosen mode, too."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from client.conftest import APP, Acme
from client.money import BLIND_USD_MICROS, COST_USD_MICROS, Money, money_of
from client.waiting import until
from hanging_proxy import HangingProxy
from pricekeeper.client import (
    Api,
    AsyncPriceKeeper,
    ServiceError,
    UnavailableError,
)
from pricekeeper.client.memory import Memory
from pricekeeper.client.snapshot import HOUR_MS
from pricekeeper.client.spool import find_folder, read_refused
from pricekeeper.tags import BLIND_TAG

DEADLINE_MS = 1_000
HANGING_MS = 300
"""Of a keeper that begins while nothing answers."""
PREMIUM = "us.anthropic.claude-opus-5-5"
SPELLED = "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-5-5"
"""The same model in another spelling."""
UNKNOWN = "unknown.model-v1:0"

Begin = Callable[..., AsyncPriceKeeper]


pytestmark = pytest.mark.usefixtures("quick_probes")


@pytest.fixture(autouse=True)
async def a_budget(acme: Acme) -> None:
    await acme.put_budget()


@pytest.fixture
async def begin(acme: Acme, wire: HangingProxy) -> AsyncIterator[Begin]:
    """Make a keeper as a new process does."""
    made: list[AsyncPriceKeeper] = []

    def make(on_unavailable: str = "allow", **settings: Any) -> AsyncPriceKeeper:
        deadline_ms = HANGING_MS if wire.is_hanging else DEADLINE_MS
        more = {"on_unavailable": on_unavailable, **settings}
        made.append(acme.keeper(deadline_ms=deadline_ms, **more))
        return made[-1]

    yield make
    wire.go_on()
    for keeper in made:
        await keeper.close()


async def reach(keeper: AsyncPriceKeeper) -> None:
    """Let the keeper learn what the service allows."""
    await keeper.select()
    await until(lambda: keeper.engine._blind.is_ready)


async def use(keeper: AsyncPriceKeeper, **more: Any) -> str:
    """Make a call of 1,000 tokens in and 100 out; the id of the model that was called."""
    async with keeper.call(1_000, 500, **more) as call:
        call.used_tokens(1_000, 100)
    return call.model_id


def is_told(keeper: AsyncPriceKeeper) -> bool:
    """Whether nothing waits except voids of authorizations that were never sent."""
    return all(one.kind == "void" for one in keeper.engine.spool.pending(100))


def folder_of(acme: Acme) -> Path:
    folder = find_folder(str(acme.spool_dir), acme.keeper_url, acme.client_id)
    assert folder is not None
    return folder


class TestAllow:
    @pytest.mark.parametrize("model", ["auto", "premium", PREMIUM])
    async def test_it_knows_what_an_earlier_process_has_learnt(
        self, begin: Begin, wire: HangingProxy, api: Api, model: str
    ) -> None:
        earlier = begin()
        await reach(earlier)
        await earlier.close()
        wire.hang()
        keeper = begin()
        assert await use(keeper, model=model) == PREMIUM
        wire.go_on()
        await until(lambda: is_told(keeper))
        assert await money_of(api) == Money(COST_USD_MICROS, 0)
        (record,) = (await api.usage_records(tag=f"{BLIND_TAG}:true"))["records"]
        assert record["model_label"] == "premium"

    @pytest.mark.parametrize("model", [PREMIUM, SPELLED])
    async def test_a_model_id_needs_nothing(
        self, begin: Begin, wire: HangingProxy, api: Api, model: str
    ) -> None:
        wire.hang()
        keeper = begin()
        assert [await use(keeper, model=model) for _ in range(2)] == [model] * 2
        wire.go_on()
        await until(lambda: is_told(keeper))
        assert await money_of(api) == Money(2 * COST_USD_MICROS, 0)
        records = (await api.usage_records())["records"]
        assert {one["model_label"] for one in records} == {"premium"}

    async def test_its_label_is_found_when_no_money_is_left(
        self, begin: Begin, wire: HangingProxy, api: Api, acme: Acme
    ) -> None:
        """A denial names the label, too; the budget may be overdrawn."""
        await acme.put_budget(limit_usd_micros=1)
        wire.hang()
        keeper = begin()
        await use(keeper, model=SPELLED)
        wire.go_on()
        await until(lambda: is_told(keeper))
        (record,) = (await api.usage_records())["records"]
        assert (record["model_label"], record["cost_usd_micros"]) == ("premium", COST_USD_MICROS)

    async def test_while_nobody_says_the_label_it_waits(
        self, begin: Begin, wire: HangingProxy, api: Api, acme: Acme
    ) -> None:
        """The denial of a frozen app has no label."""
        wire.hang()
        keeper = begin()
        await use(keeper, model=SPELLED)
        async with acme.admin() as admin:
            await admin.freeze(acme.org_id, APP, reason="its secret has leaked")
            wire.go_on()
            await until(lambda: keeper.engine._teller._is_through)
            assert not is_told(keeper)
            await admin.unfreeze(acme.org_id, APP, reason="it was rotated")
        await until(lambda: is_told(keeper))
        assert await money_of(api) == Money(COST_USD_MICROS, 0)

    async def test_what_the_service_does_not_know_is_set_aside(
        self, begin: Begin, wire: HangingProxy, api: Api, acme: Acme
    ) -> None:
        wire.hang()
        keeper = begin()
        await use(keeper, model=UNKNOWN)
        await use(keeper, model=PREMIUM)
        wire.go_on()
        await until(lambda: is_told(keeper))
        assert await money_of(api) == Money(COST_USD_MICROS, 0)
        (refused,) = read_refused(folder_of(acme))
        assert refused["body"]["model_label"] == UNKNOWN

    @pytest.mark.parametrize("model", ["auto", "premium"])
    async def test_a_name_that_nobody_has_learnt_is_refused_and_explained_once(
        self, begin: Begin, wire: HangingProxy, model: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        wire.hang()
        keeper = begin()
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await use(keeper, model=model)
        said = [one.getMessage() for one in caplog.records if "use a model id" in one.getMessage()]
        assert len(said) == 1

    @pytest.mark.parametrize("model", ["auto", "premium"])
    async def test_a_name_is_what_the_program_was_told_that_it_is(
        self, begin: Begin, wire: HangingProxy, api: Api, model: str
    ) -> None:
        wire.hang()
        keeper = begin(unavailable_models={model: PREMIUM})
        assert await use(keeper, model=model) == PREMIUM
        wire.go_on()
        await until(lambda: is_told(keeper))
        assert await money_of(api) == Money(COST_USD_MICROS, 0)
        (record,) = (await api.usage_records(tag=f"{BLIND_TAG}:true"))["records"]
        assert record["model_label"] == "premium"

    async def test_what_the_service_has_said_is_believed_first(
        self, begin: Begin, wire: HangingProxy
    ) -> None:
        keeper = begin(unavailable_models={"auto": UNKNOWN})
        await reach(keeper)
        wire.hang()
        assert await use(keeper) == PREMIUM

    async def test_denied_stays_denied(self, begin: Begin, wire: HangingProxy) -> None:
        earlier = begin()
        await reach(earlier)
        wire.hang()
        with pytest.raises(UnavailableError):
            await use(begin("deny"), model=PREMIUM)

    @pytest.mark.usefixtures("quick_snapshots")
    async def test_the_last_word_of_the_service_was_no(
        self, begin: Begin, wire: HangingProxy, acme: Acme
    ) -> None:
        earlier = begin()
        await reach(earlier)
        async with acme.admin() as admin:
            await admin.freeze(acme.org_id, APP, reason="its secret has leaked")
        await until(lambda: not earlier.engine._blind.is_ready)
        await until(lambda: Memory(folder_of(acme)).read().is_refused)
        wire.hang()
        for keeper in (earlier, begin()):
            for model in ("auto", PREMIUM):
                with pytest.raises(UnavailableError):
                    await use(keeper, model=model)

    async def test_a_wrong_secret_says_nothing_about_the_app(
        self, begin: Begin, wire: HangingProxy, acme: Acme
    ) -> None:
        """Another process with the right secret is not refused because of it."""
        right = begin()
        await reach(right)
        wrong = begin(client_secret="pks_wrong")
        assert not wrong.engine._blind.is_ready
        await until(lambda: wrong.engine._blind._is_refused)
        assert not Memory(folder_of(acme)).read().is_refused
        wire.hang()
        with pytest.raises(ServiceError):
            await use(wrong, model=PREMIUM)
        assert await use(begin()) == PREMIUM

    @pytest.mark.usefixtures("quick_snapshots")
    async def test_an_id_is_known_by_how_it_was_asked_for(self, begin: Begin, acme: Acme) -> None:
        keeper = begin()
        await reach(keeper)
        await use(keeper, model=SPELLED)
        await until(lambda: labels(acme).get(SPELLED) == "premium")


def labels(acme: Acme) -> dict[str, str]:
    snapshot = Memory(folder_of(acme)).read().snapshot
    return {} if snapshot is None else dict(snapshot.labels)


class TestAllowWithin:
    async def test_it_is_for_an_hour_and_holds_from_the_start(
        self, begin: Begin, wire: HangingProxy, acme: Acme
    ) -> None:
        within = {"allowance_usd_micros": 2 * BLIND_USD_MICROS + 1}
        await reach(begin("allow-within", **within))
        wire.hang()
        keeper = begin("allow-within", **within)
        for _ in range(2):
            for _ in range(2):
                await use(keeper)
            with pytest.raises(UnavailableError):
                await use(keeper)
            acme.clock.pass_ms(HOUR_MS)

    async def test_without_prices_nothing_is_allowed(
        self, begin: Begin, wire: HangingProxy
    ) -> None:
        wire.hang()
        with pytest.raises(UnavailableError):
            await use(begin("allow-within", allowance_usd_micros=10**9), model=PREMIUM)

    async def test_beginning_again_gives_no_other_allowance(
        self, begin: Begin, wire: HangingProxy, acme: Acme
    ) -> None:
        """Else a program that crashes and restarts would have no bound."""
        within = {"allowance_usd_micros": 2 * BLIND_USD_MICROS + 1}
        await reach(begin("allow-within", **within))
        wire.hang()
        for _ in range(2):
            await use(begin("allow-within", **within))
        with pytest.raises(UnavailableError):
            await use(begin("allow-within", **within))
        acme.clock.pass_ms(HOUR_MS)
        await use(begin("allow-within", **within))

    async def test_beginning_again_leaves_no_more_of_the_budgets(
        self, begin: Begin, wire: HangingProxy, acme: Acme
    ) -> None:
        await acme.put_budget(limit_usd_micros=2 * BLIND_USD_MICROS + 1)
        within = {"allowance_usd_micros": 10**9}
        await reach(begin("allow-within", **within))
        wire.hang()
        for _ in range(2):
            await use(begin("allow-within", **within))
        acme.clock.pass_ms(HOUR_MS)
        with pytest.raises(UnavailableError):
            await use(begin("allow-within", **within))

    async def test_many_at_once_take_no_more_than_it(
        self, begin: Begin, wire: HangingProxy
    ) -> None:
        within = {"allowance_usd_micros": 7 * BLIND_USD_MICROS + 1}
        keepers = [begin("allow-within", **within) for _ in range(4)]
        for keeper in keepers:
            await reach(keeper)
        wire.hang()
        calls = [use(keeper) for keeper in keepers for _ in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(one == PREMIUM for one in outcomes) == 7
