"""One keeper for a whole program: any thread, any event loop, and callers that give up."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from client.conftest import Acme
from client.money import COST_USD_MICROS, Money, money_of
from client.waiting import until
from hanging_proxy import HangingProxy
from pricekeeper.client import (
    Api,
    AsyncPriceKeeper,
    Authorization,
    PriceKeeper,
    RejectedError,
    SpoolFullError,
)
from pricekeeper.client import spool as spools
from pricekeeper.client.engine import Engine
from pricekeeper.errors import InvalidValueError


@pytest.fixture(autouse=True)
async def a_budget(acme: Acme) -> None:
    await acme.put_budget()


def make_call(keeper: PriceKeeper) -> None:
    with keeper.call(1_000, 500) as call:
        call.used_tokens(1_000, 100)


async def make_call_async(keeper: AsyncPriceKeeper) -> None:
    async with keeper.call(1_000, 500) as call:
        call.used_tokens(1_000, 100)


class TestThreads:
    async def test_eight_threads_share_one(self, acme: Acme, api: Api) -> None:
        with acme.blocking_keeper() as keeper, ThreadPoolExecutor(8) as threads:
            ready = threading.Barrier(8)

            def work() -> None:
                ready.wait()
                for _ in range(10):
                    make_call(keeper)

            done = [asyncio.wrap_future(threads.submit(work)) for _ in range(8)]
            await asyncio.wait_for(asyncio.gather(*done), 60)
            assert await asyncio.to_thread(keeper.flush) == 0
            assert keeper.engine.api.tokens is not None
            assert keeper.engine.api.tokens.logins == 1
        assert await money_of(api) == Money(80 * COST_USD_MICROS, 0)

    async def test_a_thread_with_a_running_loop_may_wait(self, acme: Acme, api: Api) -> None:
        """It blocks its loop, without a deadlock."""
        with acme.blocking_keeper() as keeper:
            make_call(keeper)
            assert keeper.flush() == 0
        assert await money_of(api) == Money(COST_USD_MICROS, 0)

    async def test_what_ends_after_the_end_is_not_lost(self, acme: Acme, api: Api) -> None:
        keeper = acme.blocking_keeper()
        with keeper.call(1_000, 500) as call:
            keeper.close()
            call.used_tokens(1_000, 100)
        with pytest.raises(InvalidValueError, match="is closed"):
            keeper.authorize(1, 1)
        assert await money_of(api) == Money(0, call.authorization.held_usd_micros)
        keeper._engine.spool.close()  # type: ignore[union-attr]  # as the end of the process does
        async with acme.keeper() as later:
            await later.flush()
        assert await money_of(api) == Money(COST_USD_MICROS, 0)

    async def test_closing_twice_and_unused_is_nothing(self, acme: Acme) -> None:
        keeper = acme.blocking_keeper()
        keeper.close()
        keeper.close()
        assert not acme.spool_dir.exists()

    async def test_who_waits_when_it_is_closed_is_told(
        self, acme: Acme, wire: HangingProxy
    ) -> None:
        keeper = acme.blocking_keeper()
        await asyncio.to_thread(keeper.select)
        wire.hang()
        waiting = asyncio.create_task(asyncio.to_thread(keeper.authorize, 1_000, 500))
        await until(wire.held.is_set)
        await asyncio.to_thread(keeper.close)
        with pytest.raises(InvalidValueError, match="is closed"):
            await asyncio.wait_for(waiting, 10)


class TestLoops:
    def test_loops_one_after_another(self, acme: Acme) -> None:
        keeper = acme.keeper()
        for _ in range(3):
            asyncio.run(make_call_async(keeper))
        assert asyncio.run(keeper.flush()) == 0
        money: Money = asyncio.run(money_of(keeper))
        asyncio.run(keeper.close())
        assert money == Money(3 * COST_USD_MICROS, 0)

    async def test_loops_at_once(self, acme: Acme, api: Api) -> None:
        keeper = acme.keeper()

        async def work() -> None:
            await asyncio.gather(*(make_call_async(keeper) for _ in range(5)))

        threads = [asyncio.to_thread(asyncio.run, work()) for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*threads, work()), 60)
        assert await keeper.flush() == 0
        await keeper.close()
        assert await money_of(api) == Money(25 * COST_USD_MICROS, 0)

    async def test_the_loop_goes_on_meanwhile(
        self, wire: HangingProxy, keeper: AsyncPriceKeeper
    ) -> None:
        await keeper.select()
        wire.hang()
        asking = asyncio.create_task(keeper.authorize(1_000, 500))
        await until(wire.held.is_set)  # this loop is not blocked
        assert not asking.done()
        wire.go_on()
        await asking

    async def test_the_other_kind_beside_it_shares_its_engine(self, acme: Acme) -> None:
        keeper = acme.blocking_keeper()
        beside = AsyncPriceKeeper.beside(keeper)
        await make_call_async(beside)
        assert beside.engine is keeper.engine
        assert beside.untold == keeper.untold
        await beside.close()
        make_call(keeper)
        keeper.close()


class TestGivingUp:
    async def test_a_caller_that_is_cancelled_holds_nothing(
        self, wire: HangingProxy, keeper: AsyncPriceKeeper, api: Api
    ) -> None:
        """A grant that arrives after its caller has gone is voided."""
        await keeper.select()
        wire.hang()
        asking = asyncio.create_task(keeper.authorize(1_000, 500))
        await until(wire.held.is_set)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: keeper.untold == 1)
        wire.go_on()
        await until(lambda: keeper.untold == 0)
        assert await money_of(api) == Money(0, 0)

    async def test_a_caller_that_is_cancelled_when_the_answer_is_there(
        self, keeper: AsyncPriceKeeper, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also between the grant and its use."""
        await keeper.select()
        asked = noted_futures(monkeypatch)
        asking = asyncio.create_task(keeper.authorize(1_000, 500))
        await asyncio.sleep(0)
        wait_for(asked)  # this loop is blocked, so it is not taken yet
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: is_nothing_held(api))

    async def test_a_caller_that_gave_up_while_the_answer_was_handed_over(
        self, keeper: AsyncPriceKeeper, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The engine has the grant; the cancellation comes before the handover."""
        await keeper.select()
        asked = noted_futures(monkeypatch)
        authorize = Api.authorize

        async def cancelled_meanwhile(self: Api, *args: Any, **kwargs: Any) -> Authorization:
            granted = await authorize(self, *args, **kwargs)
            asked[-1].cancel()
            return granted

        monkeypatch.setattr(Api, "authorize", cancelled_meanwhile)
        with pytest.raises((asyncio.CancelledError, InvalidValueError)):
            await keeper.authorize(1_000, 500)
        await until(lambda: is_nothing_held(api))

    async def test_an_interrupted_thread_holds_nothing(
        self, acme: Acme, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C at any time."""
        with acme.blocking_keeper() as keeper:
            keeper.select()
            result = Future.result

            def interrupted(self: Future[Any], timeout: float | None = None) -> Any:
                patch.undo()
                result(self, timeout)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(Future, "result", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    keeper.authorize(1_000, 500)
            await until(lambda: is_nothing_held(api))

    async def test_what_can_not_be_understood_holds_nothing(
        self, keeper: AsyncPriceKeeper, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of = Authorization.of
        monkeypatch.setattr(Authorization, "of", lambda answer: of(answer.model))
        with pytest.raises(AttributeError):
            await keeper.authorize(1_000, 500)
        assert await keeper.flush() == 0
        assert await money_of(api) == Money(0, 0)


async def test_a_call_waits_for_one_round_trip(
    keeper: AsyncPriceKeeper, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authorization. Reports go in the background, several in one request."""
    await make_call_async(keeper)
    assert await keeper.flush() == 0
    sent.clear()
    waits = noted_futures(monkeypatch)
    for _ in range(10):
        await make_call_async(keeper)
    assert (len(waits), sent.count("authorizations")) == (10, 10)
    assert await keeper.flush() == 0
    assert sent.count("captures") <= 5
    assert set(sent) == {"authorizations", "captures"}


class TestByHand:
    async def test_what_was_told_has_an_answer(self, keeper: AsyncPriceKeeper) -> None:
        allowed = await keeper.authorize(1_000, 500)
        for duplicate in (False, True):
            settled = await keeper.capture(allowed.id, 1_000, 100)
            assert settled is not None
            assert (settled.duplicate, settled.cost_usd_micros) == (duplicate, COST_USD_MICROS)
        recorded = await keeper.record("premium", 1_000, 100)
        assert recorded is not None
        assert recorded.cost_usd_micros == COST_USD_MICROS

    async def test_what_is_refused_is_raised(self, keeper: AsyncPriceKeeper) -> None:
        allowed = await keeper.authorize(1_000, 500)
        await keeper.capture(allowed.id, 1_000, 100)
        with pytest.raises(RejectedError) as refused:
            await keeper.capture(allowed.id, 1_001, 100)
        assert refused.value.code == "REQUEST_ID_REUSED"

    async def test_two_captures_of_one_call_at_once_have_two_answers(
        self, keeper: AsyncPriceKeeper
    ) -> None:
        allowed = await keeper.authorize(1_000, 500)
        settled = await asyncio.gather(*(keeper.capture(allowed.id, 1_000, 100) for _ in range(4)))
        assert sorted(one.duplicate for one in settled if one) == [False, True, True, True]

    async def test_a_full_spool_refuses_calls_before_they_are_made(
        self, keeper: AsyncPriceKeeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await keeper.select()
        monkeypatch.setattr(spools, "ENTRIES_FULL", 0)
        with pytest.raises(SpoolFullError):
            await keeper.authorize(1_000, 500)
        monkeypatch.setattr(spools, "ENTRIES_MAX", 0)
        with pytest.raises(SpoolFullError):
            await keeper.record("premium", 1, 1)


async def is_nothing_held(api: Api) -> bool:
    return await money_of(api) == Money(0, 0)


def noted_futures(monkeypatch: pytest.MonkeyPatch) -> list["Future[Any]"]:
    """The outcomes of what is submitted from now on."""
    noted: list[Future[Any]] = []
    submit: Callable[..., Future[Any]] = Engine.submit

    def note(engine: Engine, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        noted.append(submit(engine, work))
        return noted[-1]

    monkeypatch.setattr(Engine, "submit", note)
    return noted


def wait_for(asked: list["Future[Any]"]) -> None:
    ends_at = time.monotonic() + 30
    while not (asked and asked[-1].done()):
        assert time.monotonic() < ends_at
