"""The pieces that many rooms share: each does its one thing."""

import asyncio
import gc
from collections.abc import Callable

import pytest

from pricekeeper.concurrency import (
    Backoff,
    BoundedCache,
    NextFlight,
    SingleFlight,
    error_copy,
    gather_in_groups,
    gather_in_turn,
    in_groups,
)
from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ConflictError,
    OutcomeUnknownError,
    PriceKeeperError,
    ReasonCode,
    StoreUnavailableError,
    TransactionCancelledError,
)


def highest(bound: int) -> int:
    """The largest number that a random one may be."""
    return bound - 1


@pytest.mark.parametrize(
    ("failures", "longest_wait_ms"), [(1, 50), (2, 100), (3, 200), (6, 1_600), (7, 2_000)]
)
def test_the_bound_of_a_wait_doubles_up_to_the_longest(failures: int, longest_wait_ms: int) -> None:
    assert Backoff(50, 2_000).pause_ms(failures, highest) == longest_wait_ms


def test_a_wait_may_be_nothing() -> None:
    """Full jitter: any time up to the bound."""
    assert Backoff(50, 2_000).pause_ms(5, lambda _: 0) == 0


def test_any_number_of_failures_has_a_wait() -> None:
    """A loop that runs for years makes no number of a million digits."""
    asked: list[int] = []

    def note(bound: int) -> int:
        asked.append(bound)
        return 0

    Backoff(1, 1_000).pause_ms(10**9, note)
    assert asked == [1_001]


def test_the_entry_used_longest_ago_makes_room() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    cache.put("a", 4)
    cache.put("d", 5)
    assert list(cache) == ["a", "d"]
    assert cache.peek("b") is None


def test_peeking_is_no_use() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    cache.put("c", 3)
    assert "a" not in cache
    assert len(cache) == 2


def test_an_entry_is_replaced_and_removed() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("a", 2)
    assert (cache.pop("a"), cache.pop("a"), len(cache)) == (2, None, 0)
    cache.put("b", 3)
    cache.clear()
    assert cache.get("b") is None


class Work:
    """Executions that end on command."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    async def run(self) -> int:
        self.begun += 1
        number = self.begun
        await self.may_end.wait()
        return number


async def started(count: int, call: Callable[[], asyncio.Task[int]]) -> list[asyncio.Task[int]]:
    callers = [call() for _ in range(count)]
    await asyncio.sleep(0)
    return callers


async def test_callers_at_one_time_share_an_execution_and_later_ones_do_not() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    callers = await started(3, lambda: asyncio.create_task(flights.run("key", work.run)))
    other = asyncio.create_task(flights.run("other", work.run))
    await asyncio.sleep(0)
    work.may_end.set()
    assert await asyncio.gather(*callers, other) == [1, 1, 1, 2]
    assert await flights.run("key", work.run) == 3


async def test_a_caller_that_is_cancelled_leaves_the_execution_to_the_others() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    first, second = await started(2, lambda: asyncio.create_task(flights.run("key", work.run)))
    first.cancel()
    await asyncio.sleep(0)
    work.may_end.set()
    assert await second == 1
    assert first.cancelled()


async def test_a_failure_is_everybodys_and_is_not_kept() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()

    async def fail() -> int:
        await work.run()
        raise ValueError("no")

    callers = await started(2, lambda: asyncio.create_task(flights.run("key", fail)))
    work.may_end.set()
    ended = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) for one in ended] == [ValueError, ValueError]
    assert await flights.run("key", work.run) == 2


async def test_a_failure_that_nobody_waits_for_is_no_noise() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()

    async def fail() -> int:
        await work.run()
        raise ValueError("no")

    (caller,) = await started(1, lambda: asyncio.create_task(flights.run("key", fail)))
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    draining = asyncio.create_task(flights.drain())
    await asyncio.sleep(0)
    work.may_end.set()
    await draining
    del caller, draining  # their frames hold the execution
    gc.collect()
    assert not complaints


async def test_who_comes_after_a_detachment_starts_anew() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    (before,) = await started(1, lambda: asyncio.create_task(flights.run("key", work.run)))
    flights.detach_all()
    (after,) = await started(1, lambda: asyncio.create_task(flights.run("key", work.run)))
    work.may_end.set()
    assert [await before, await after] == [1, 2]


async def test_draining_waits_for_what_is_under_way() -> None:
    flights: SingleFlight[str, int] = SingleFlight("test")
    work = Work()
    await started(1, lambda: asyncio.create_task(flights.run("key", work.run)))
    draining = asyncio.create_task(flights.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    work.may_end.set()
    await draining
    await flights.drain()


async def test_who_comes_meanwhile_shares_the_next_execution() -> None:
    """It begins after they came, and there are never two at one time."""
    flights: NextFlight[str, int] = NextFlight("test")
    work = Work()
    (first,) = await started(1, lambda: asyncio.create_task(flights.run("key", work.run)))
    later = await started(5, lambda: asyncio.create_task(flights.run("key", work.run)))
    assert work.begun == 1
    work.may_end.set()
    assert await first == 1
    assert [await one for one in later] == [2] * 5
    assert await flights.run("key", work.run) == 3


async def test_the_next_execution_survives_the_failure_and_the_caller_before_it() -> None:
    flights: NextFlight[str, int] = NextFlight("test")
    work = Work()

    async def fail() -> int:
        await work.run()
        raise ValueError("no")

    (first,) = await started(1, lambda: asyncio.create_task(flights.run("key", fail)))
    second, third = await started(2, lambda: asyncio.create_task(flights.run("key", work.run)))
    second.cancel()
    work.may_end.set()
    with pytest.raises(ValueError, match="no"):
        await first
    assert await third == 2


@pytest.mark.parametrize(
    "error",
    [
        ConflictError("name", "is taken"),
        ConditionFailedError({"PK": "1"}),
        TransactionCancelledError([CancellationReason(ReasonCode.CONFLICT)]),
        OutcomeUnknownError("unknown", {"PK": "1"}),
        StoreUnavailableError("it does not answer"),
    ],
)
def test_each_caller_has_an_error_of_its_own(error: PriceKeeperError) -> None:
    try:
        raise error
    except PriceKeeperError as raised:
        copied = error_copy(raised)
    assert copied is not error
    assert type(copied) is type(error)
    assert (str(copied), vars(copied)) == (str(error), vars(error))
    assert error.__traceback__ is not None
    assert copied.__traceback__ is None


class StubbornError(Exception):
    """Its ``__init__`` wants more than it hands on."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")


def test_an_error_of_another_make_is_copied_if_it_can_be() -> None:
    error = UnicodeDecodeError("ascii", b"\xff", 0, 1, "is not ASCII")
    copied = error_copy(error)
    assert copied is not error
    assert str(copied) == str(error)
    stubborn = StubbornError("name", "is taken")
    assert error_copy(stubborn) is stubborn


async def test_what_has_one_key_follows_each_other() -> None:
    running: list[int] = []
    together: list[list[int]] = []

    async def run(number: int) -> int:
        running.append(number)
        together.append(sorted(running))
        await asyncio.sleep(0)
        running.remove(number)
        return number * 10

    assert await gather_in_turn(["a", "b", "a", "b", "a"], run) == [0, 10, 20, 30, 40]
    assert [0, 1] in together
    assert not any({0, 2} <= set(one) or {1, 3} <= set(one) for one in together)


async def test_so_many_run_at_once_and_no_more() -> None:
    running: set[int] = set()
    most = 0

    async def run(number: int) -> int:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(number)
        return number * 10

    assert await gather_in_groups(run, range(5), 2) == [0, 10, 20, 30, 40]
    assert most == 2
    assert await gather_in_groups(run, [], 2) == []
    assert [list(some) for some in in_groups(range(5), 2)] == [[0, 1], [2, 3], [4]]
