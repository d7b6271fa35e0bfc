"""A service that hangs, is down, or loses its replies: one deadline, and nothing is lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

from client.apps import Credentials
from client.conftest import Acme
from client.lossy_wire import LossyWire, lossy_wire
from client.money import BLIND_USD_MICROS, COST_USD_MICROS, HELD_USD_MICROS, Money, money_of
from client.services import Service, running_service
from client.waiting import until
from hanging_proxy import HangingProxy
from pricekeeper.client import (
    Api,
    AsyncPriceKeeper,
    BreakerOpenError,
    NoAnswerError,
    PriceKeeper,
    RejectedError,
    UnavailableError,
)
from pricekeeper.client.blind import BlindCalls
from pricekeeper.client.memory import Known, Memory
from pricekeeper.tags import BLIND_TAG, TAGS_MAX

DEADLINE_MS = 1_000
SLACK_SECS = 4.0
"""How much later than a deadline a busy machine may notice it."""
HOUR_MS = 3_600_000


pytestmark = pytest.mark.usefixtures("quick_probes")
Allowing = Callable[..., Awaitable[AsyncPriceKeeper]]


@pytest.fixture(autouse=True)
async def a_budget(acme: Acme) -> None:
    await acme.put_budget()


@pytest.fixture
async def keeper(acme: Acme, api: Api, wire: HangingProxy) -> AsyncIterator[AsyncPriceKeeper]:
    """A keeper whose deadline is short; ``api`` talks to the service past the wire."""
    async with acme.keeper(deadline_ms=DEADLINE_MS) as keeper:
        await keeper.select()
        yield keeper
        wire.go_on()


class Elapsed:
    """How long a block took."""

    def __enter__(self) -> Self:
        self._began_at = time.monotonic()
        self.secs = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self.secs = time.monotonic() - self._began_at


async def use(keeper: AsyncPriceKeeper, **more: Any) -> str:
    """Make a call of 1,000 tokens in and 100 out."""
    async with keeper.call(1_000, 500, **more) as call:
        call.used_tokens(1_000, 100)
    return call.authorization.id


async def on_loop(keeper: AsyncPriceKeeper, work: Coroutine[Any, Any, None]) -> None:
    """Run something on the keeper's own loop."""
    await asyncio.wrap_future(keeper.engine.submit(work))


async def is_settled(api: Api, spent: int) -> bool:
    return await money_of(api) == Money(spent, 0)


class TestHanging:
    async def test_it_costs_the_deadline_once(
        self, keeper: AsyncPriceKeeper, wire: HangingProxy, sent: list[str]
    ) -> None:
        wire.hang()
        with Elapsed() as first, pytest.raises(NoAnswerError):
            await keeper.authorize(1_000, 500)
        assert DEADLINE_MS / 1000 * 0.9 <= first.secs < DEADLINE_MS / 1000 + SLACK_SECS
        with Elapsed() as others:
            for _ in range(50):
                with pytest.raises(BreakerOpenError):
                    await keeper.authorize(1_000, 500)
                with pytest.raises(BreakerOpenError):
                    await keeper.select(force_check=True)
        assert others.secs < SLACK_SECS  # far less than a hundred deadlines
        assert (sent.count("authorizations"), sent.count("model-selection")) == (1, 0)

    async def test_what_is_told_by_hand_costs_it_once_too(
        self, keeper: AsyncPriceKeeper, wire: HangingProxy, api: Api
    ) -> None:
        wire.hang()
        with Elapsed() as first:
            assert await keeper.record("premium", 1_000, 100) is None
        assert first.secs < DEADLINE_MS / 1000 + SLACK_SECS
        with Elapsed() as others:
            for _ in range(50):
                assert await keeper.record("premium", 1_000, 100) is None
            assert await keeper.flush() == 51
        assert others.secs < SLACK_SECS
        wire.go_on()
        await until(lambda: keeper.untold == 0)
        assert len((await api.usage_records())["records"]) == 51

    async def test_closing_costs_it_once(self, acme: Acme, wire: HangingProxy, api: Api) -> None:
        keeper = acme.keeper(deadline_ms=DEADLINE_MS)
        async with keeper.call(1_000, 500) as call:
            wire.hang()
            call.used_tokens(1_000, 100)
        with Elapsed() as closing:
            await keeper.close()
        assert closing.secs < DEADLINE_MS / 1000 + SLACK_SECS
        wire.go_on()
        async with acme.keeper() as later:
            assert await later.flush() == 0
        assert await money_of(api) == Money(COST_USD_MICROS, 0)

    async def test_closing_costs_nothing_when_it_is_known(
        self, keeper: AsyncPriceKeeper, wire: HangingProxy
    ) -> None:
        wire.hang()
        with pytest.raises(NoAnswerError):
            await keeper.authorize(1_000, 500)
        with Elapsed() as closing:
            await keeper.close()
        assert closing.secs < DEADLINE_MS / 1000 * 0.9

    async def test_when_it_answers_again_it_is_found_out_without_a_caller(
        self, keeper: AsyncPriceKeeper, wire: HangingProxy, api: Api
    ) -> None:
        wire.hang()
        with pytest.raises(NoAnswerError):
            await keeper.authorize(1_000, 500)
        wire.go_on()
        await until(lambda: not keeper.engine.is_cut_off)
        await until(lambda: keeper.untold == 0)
        assert await money_of(api) == Money(0, 0)
        await use(keeper)

    async def test_a_flapping_service_has_one_probe(
        self, keeper: AsyncPriceKeeper, wire: HangingProxy, sent: list[str]
    ) -> None:
        """For any number of failures."""
        wire.hang()
        for _ in range(20):
            keeper.engine._loop.call(keeper.engine._fail)
            keeper.engine._loop.call(keeper.engine._note_answer)
        keeper.engine._loop.call(keeper.engine._fail)
        await until(lambda: sent.count("budgets") > 1)  # the second comes after a deadline
        assert sent.count("budgets") <= 3

    async def test_something_else_at_its_address_is_not_the_service(
        self, keeper: AsyncPriceKeeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The probe continues until the service itself answers."""
        answers: list[Any] = [{"budgets": 1}, ValueError(), KeyError()]

        async def budgets(_: Api) -> dict[str, Any]:
            answer = answers.pop()
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)

        monkeypatch.setattr(Api, "budgets", budgets)
        keeper.engine._loop.call(keeper.engine._fail)
        await until(lambda: not keeper.engine.is_cut_off and not answers)


class TestLostReplies:
    @pytest.fixture
    def lossy(self, acme: Acme) -> Iterator[LossyWire]:
        with lossy_wire(acme.url) as wire:
            yield wire

    @pytest.mark.parametrize("path", ["/authorizations", "/captures"])
    async def test_what_was_done_counts_once(
        self, acme: Acme, lossy: LossyWire, api: Api, path: str
    ) -> None:
        async with acme.keeper(url=lossy.url) as keeper:
            lossy.lose(path)
            await use(keeper)
            assert await keeper.flush() == 0
        assert (lossy.lost, lossy.asked(path)) == (1, 2)
        assert await money_of(api) == Money(COST_USD_MICROS, 0)

    async def test_a_lost_batch_and_a_lost_void(
        self, acme: Acme, lossy: LossyWire, api: Api
    ) -> None:
        async with acme.keeper(url=lossy.url) as keeper:
            lossy.lose("/usage/batch", "/void")
            await keeper.record("premium", 1_000, 100)
            allowed = await keeper.authorize(1_000, 500)
            await keeper.void(allowed.id)
            assert await keeper.flush() == 0
        assert lossy.lost == 2
        assert len((await api.usage_records())["records"]) == 1
        assert (await money_of(api)).held == 0

    async def test_a_service_that_loses_every_reply_leaves_nothing_held(
        self, acme: Acme, lossy: LossyWire, api: Api
    ) -> None:
        async with acme.keeper(url=lossy.url) as keeper:
            await keeper.select()
            lossy.lose(*["/authorizations"] * 3)
            with pytest.raises(UnavailableError):
                await keeper.authorize(1_000, 500)
            await until(lambda: keeper.untold == 0)
        assert lossy.lost == 3
        assert await money_of(api) == Money(0, 0)


class TestBlind:
    @pytest.fixture
    async def allowing(self, acme: Acme, wire: HangingProxy) -> AsyncIterator[Allowing]:
        """Make a keeper that has read what the service allows, and let the service hang."""
        made: list[AsyncPriceKeeper] = []

        async def make(*, hang: bool = True, **settings: Any) -> AsyncPriceKeeper:
            keeper = acme.keeper(deadline_ms=DEADLINE_MS, **settings)
            made.append(keeper)
            await keeper.select()
            await until(lambda: keeper.engine._blind.is_ready)
            if hang:
                wire.hang()
            return keeper

        yield make
        wire.go_on()
        for keeper in made:
            await keeper.close()

    async def test_denied_is_the_default(
        self, keeper: AsyncPriceKeeper, wire: HangingProxy
    ) -> None:
        wire.hang()
        with pytest.raises(UnavailableError):
            await use(keeper)

    async def test_allowed_usage_is_recorded_and_marked(
        self, allowing: Allowing, wire: HangingProxy, api: Api
    ) -> None:
        keeper = await allowing(on_unavailable="allow")
        used = {
            await use(keeper, model=model, tags={"team": "red"}) for model in ("auto", "premium")
        }
        by_hand = await keeper.authorize(1_000, 500)
        assert (by_hand.is_blind, by_hand.reason) == (True, "UNAVAILABLE")
        assert await keeper.capture(by_hand.id, 1_000, 100, tags={"team": "blue"}) is None
        wire.go_on()
        await until(lambda: keeper.untold == 0)
        assert await money_of(api) == Money(3 * COST_USD_MICROS, 0)
        records = (await api.usage_records(tag=f"{BLIND_TAG}:true"))["records"]
        assert {one["request_id"] for one in records} == {*used, by_hand.id}
        assert sorted(one["tags"]["team"] for one in records) == ["blue", "red", "red"]

    async def test_a_model_that_is_not_known_is_not_allowed(self, allowing: Allowing) -> None:
        with pytest.raises(UnavailableError):
            await use(await allowing(on_unavailable="allow"), model="unknown")

    async def test_a_blind_call_has_as_many_tags_as_any(
        self, allowing: Allowing, wire: HangingProxy, api: Api
    ) -> None:
        """Its own mark is additional. Tags that its record could not have are refused."""
        keeper = await allowing(on_unavailable="allow")
        tags = {f"k{number:02}": "v" for number in range(TAGS_MAX)}
        with pytest.raises(RejectedError, match="at most 16 pairs"):
            await use(keeper, tags={**tags, "one": "more"})
        used = await use(keeper, tags=tags)
        wire.go_on()
        await until(lambda: keeper.untold == 0)
        (record,) = (await api.usage_records())["records"]
        assert record["request_id"] == used
        assert record["tags"] == {**tags, BLIND_TAG: "true"}

    async def test_a_blind_call_of_unknown_usage_counts_at_its_bound(
        self, allowing: Allowing, wire: HangingProxy, api: Api
    ) -> None:
        """It has no hold that could be charged. A call that was not made counts nothing."""
        keeper = await allowing(on_unavailable="allow")
        with pytest.raises(KeyError):
            async with keeper.call(1_000, 500):
                raise KeyError("ours")
        async with keeper.call(1_000, 500) as call:
            call.used_nothing()
        by_hand = await keeper.authorize(1_000, 500)
        await keeper.void(by_hand.id)
        wire.go_on()
        await until(lambda: keeper.untold == 0)
        assert await money_of(api) == Money(HELD_USD_MICROS, 0)
        (record,) = (await api.usage_records())["records"]
        assert record["status"] == "ERROR"

    async def test_it_stays_within_what_the_budgets_last_had(
        self, allowing: Allowing, acme: Acme
    ) -> None:
        await acme.put_budget(limit_usd_micros=2 * BLIND_USD_MICROS + 1)
        keeper = await allowing(on_unavailable="allow-within", allowance_usd_micros=10**9)
        for _ in range(2):
            await use(keeper)
        with pytest.raises(UnavailableError):
            await use(keeper)

    async def test_what_was_spent_since_is_not_left(
        self, allowing: Allowing, acme: Acme, wire: HangingProxy
    ) -> None:
        """Each authorization says what is left, and the next outage starts with that."""
        await acme.put_budget(limit_usd_micros=2 * BLIND_USD_MICROS + 1)
        keeper = await allowing(
            hang=False, on_unavailable="allow-within", allowance_usd_micros=10**9
        )
        await use(keeper)
        wire.hang()
        await use(keeper)
        with pytest.raises(UnavailableError):
            await use(keeper)

    @pytest.mark.parametrize("learns", ["this process", "another process"])
    async def test_what_is_not_told_yet_is_not_left(
        self, allowing: Allowing, acme: Acme, learns: str
    ) -> None:
        """A snapshot from before the service knew of a blind call does not include it."""
        await acme.put_budget(limit_usd_micros=2 * BLIND_USD_MICROS + 1)
        within = {"on_unavailable": "allow-within", "allowance_usd_micros": 10**9}
        keeper = await allowing(**within)
        await use(keeper)
        await use(keeper)
        blind: BlindCalls = keeper.engine._blind
        snapshot = blind._snapshot
        assert snapshot is not None
        if learns == "this process":
            await on_loop(keeper, blind.learn(snapshot, frozenset()))
            begun = acme.keeper(deadline_ms=DEADLINE_MS, **within)
            with pytest.raises(UnavailableError):
                await use(begun)
            await begun.close()
        else:
            Memory(keeper.engine.spool.folder).write(Known(snapshot))
        with pytest.raises(UnavailableError):
            await use(keeper)

    @pytest.mark.usefixtures("quick_snapshots")
    async def test_what_is_told_is_left_again_as_it_was_used(
        self, allowing: Allowing, acme: Acme, wire: HangingProxy
    ) -> None:
        """The next snapshot has the real costs, which are below the maxima."""
        await acme.put_budget(limit_usd_micros=2 * BLIND_USD_MICROS + 1)
        keeper = await allowing(on_unavailable="allow-within", allowance_usd_micros=10**9)
        await use(keeper)
        await use(keeper)
        wire.go_on()
        blind: BlindCalls = keeper.engine._blind
        await until(lambda: not keeper.untold and not blind._untold)
        left = 2 * BLIND_USD_MICROS + 1 - 2 * COST_USD_MICROS
        await until(
            lambda: blind._snapshot is not None and blind._snapshot.remaining_usd_micros == left
        )
        assert blind._untold_usd_micros == 0


class TestProcesses:
    @pytest.fixture
    def service(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
        with running_service(tmp_path_factory.mktemp("service")) as service:
            yield service

    @pytest.fixture
    async def app(self, service: Service, tmp_path_factory: pytest.TempPathFactory) -> Credentials:
        return await service.register(tmp_path_factory.mktemp("spool"))

    @pytest.fixture(autouse=True)
    def a_budget(self) -> None:
        """The service has one."""

    async def test_a_restart_loses_nothing(self, service: Service, app: Credentials) -> None:
        """Killed with calls under way, down while they end, and restarted on the same file."""
        with keeper_of(app) as keeper:
            calls = [keeper.call(1_000, 500) for _ in range(10)]
            for call in calls:
                call.__enter__()
            service.kill()
            for call in calls:
                call.used_tokens(1_000, 100)
                call.__exit__(None, None, None)
            with pytest.raises(UnavailableError):
                keeper.authorize(1_000, 500)
            assert keeper.untold >= 10
            await asyncio.to_thread(service.start)
            await until(lambda: keeper.untold == 0 or is_put_off(keeper))
            async with Api(app.url, app.client_id, app.client_secret) as api:
                await until(lambda: is_settled(api, 10 * COST_USD_MICROS))
            with keeper.call(1_000, 500) as call:
                call.used_tokens(1_000, 100)

    async def test_eight_threads_and_a_service_that_stands_still(
        self, service: Service, app: Credentials
    ) -> None:
        """Each waits for one deadline, and nothing is lost or held afterwards."""
        with keeper_of(app, deadline_ms=DEADLINE_MS) as keeper, ThreadPoolExecutor(8) as threads:
            keeper.select()
            service.stop()

            def work() -> list[str]:
                kinds = []
                for _ in range(20):
                    try:
                        keeper.authorize(1_000, 500)
                    except UnavailableError as error:
                        kinds.append(type(error).__name__)
                return kinds

            with Elapsed() as elapsed:
                outcomes = [one.result() for one in [threads.submit(work) for _ in range(8)]]
                assert keeper.record("premium", 1_000, 100) is None
                assert keeper.flush() > 0
            assert elapsed.secs < DEADLINE_MS / 1000 + SLACK_SECS
            assert all(kinds.count("NoAnswerError") <= 1 for kinds in outcomes)
            assert all(set(kinds[1:]) == {"BreakerOpenError"} for kinds in outcomes)
            service.go_on()
            await until(lambda: not keeper.engine.is_cut_off)
            async with Api(app.url, app.client_id, app.client_secret) as api:
                await until(lambda: is_settled(api, COST_USD_MICROS))
                assert (await api.authorizations(status="open"))["authorizations"] == []


def keeper_of(app: Credentials, **more: Any) -> PriceKeeper:
    settings = {"deadline_ms": 10_000, "spool_dir": app.spool_dir, **more}
    return PriceKeeper(app.url, app.client_id, app.client_secret, **settings)


def is_put_off(keeper: PriceKeeper) -> bool:
    """Whether nothing waits but what the service has put off."""
    return all(one.kind == "void" for one in keeper.engine.spool.pending(100))
