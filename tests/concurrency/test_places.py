"""Places that are held for long: shares of clients, waits, and nothing lost by cancellation."""

import asyncio
from collections import Counter
from random import Random

import pytest

from pricekeeper.concurrency import Places
from pricekeeper.errors import OverloadedError

LONG_SECS = 3_600
ORG, CLIENT = "org", "org-app"


async def turns(count: int = 5) -> None:
    """Let what is ready in the event loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


def fill(places: Places, *clients: tuple[str, str]) -> Counter[tuple[str, str]]:
    """Take one place after the other for each client in turn, until all are refused."""
    held: Counter[tuple[str, str]] = Counter()
    while served := [client for client in clients if places.take_at_once(*client)]:
        held.update(served)
    return held


@pytest.mark.parametrize(
    ("clients", "each"),
    [
        ([("a", "a-1")], 1 / 3),
        ([("a", "a-1"), ("b", "b-1")], 1 / 4),
        ([("a", "a-1"), ("a", "a-2")], 1 / 5),
        ([("a", "a-1"), ("b", "b-1"), ("c", "c-1")], 1 / 5),
    ],
)
async def test_each_client_has_a_share_and_leaves_room(
    clients: list[tuple[str, str]], each: float
) -> None:
    places = Places(1_200, 0, 0)
    held = fill(places, *clients)
    assert all(abs(held[client] - 1_200 * each) <= 2 for client in clients)
    assert places.take_at_once("new", "new-1", 100)
    assert places.take_at_once(clients[0][0], "another", 50)


async def test_a_client_above_its_share_waits_until_a_place_is_given_back() -> None:
    places = Places(3, 9, LONG_SECS)
    await places.take(ORG, CLIENT)
    waiting = asyncio.create_task(places.take(ORG, CLIENT))
    await turns()
    assert not waiting.done()
    places.give_back(ORG, CLIENT)
    await waiting
    places.give_back(ORG, CLIENT)
    assert places.shares.held == {}


async def test_requests_of_a_client_are_admitted_in_order() -> None:
    """A small one does not overtake a large one that waits, which would wait forever."""
    places, admitted = Places(30, 30, LONG_SECS), []

    async def take(name: str, count: int) -> None:
        await places.take(ORG, CLIENT, count)
        admitted.append(name)

    await take("first", 10)
    tasks = [asyncio.create_task(take(name, count)) for name, count in [("large", 8), ("small", 1)]]
    await turns()
    assert not places.take_at_once(ORG, CLIENT)
    places.give_back(ORG, CLIENT, 1)
    await turns()
    assert admitted == ["first"]
    places.give_back(ORG, CLIENT, 9)
    await asyncio.gather(*tasks)
    assert admitted == ["first", "large", "small"]


async def test_another_client_does_not_wait_behind_a_flood() -> None:
    places = Places(9, 90, LONG_SECS)
    fill(places, (ORG, CLIENT))
    waiting = [asyncio.create_task(places.take(ORG, CLIENT)) for _ in range(10)]
    await turns()
    async with asyncio.timeout(1):
        await places.take("neighbour", "neighbour-app")
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_wait_that_takes_too_long_is_refused() -> None:
    places = Places(3, 9, 0)
    await places.take(ORG, CLIENT)
    with pytest.raises(OverloadedError, match="no place"):
        await places.take(ORG, CLIENT)
    places.give_back(ORG, CLIENT)
    await places.take(ORG, CLIENT)  # the one that was refused left nothing behind


async def test_no_more_wait_than_a_clients_share_of_the_waiting() -> None:
    places = Places(3, 9, LONG_SECS)
    await places.take(ORG, CLIENT)
    waiting = [asyncio.create_task(places.take(ORG, CLIENT)) for _ in range(3)]
    await turns()
    with pytest.raises(OverloadedError, match="too many"):
        await places.take(ORG, CLIENT)
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_request_that_is_cancelled_in_the_turn_in_which_places_come_back() -> None:
    """Cancelled first, then admitted: the place goes to the next one."""
    places = Places(3, 9, LONG_SECS)
    await places.take(ORG, CLIENT)
    first, second = (asyncio.create_task(places.take(ORG, CLIENT)) for _ in range(2))
    await turns()
    first.cancel()
    places.give_back(ORG, CLIENT)
    async with asyncio.timeout(1):
        await second
    with pytest.raises(asyncio.CancelledError):
        await first
    places.give_back(ORG, CLIENT)
    assert places.shares.held == {}


async def test_a_request_that_is_admitted_and_cancelled_in_one_turn() -> None:
    """Admitted first, then cancelled: what it got is given back."""
    places = Places(3, 9, LONG_SECS)
    await places.take(ORG, CLIENT)
    waiting = asyncio.create_task(places.take(ORG, CLIENT))
    await turns()
    places.give_back(ORG, CLIENT)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert places.shares.held == {}


@pytest.mark.parametrize("seed", range(40))
async def test_no_place_is_lost_whatever_happens(seed: int) -> None:
    random = Random(seed)
    places = Places(40, 30, LONG_SECS)
    clients = [(f"org-{n % 3}", f"org-{n % 3}-app-{n}") for n in range(7)]
    running: set[asyncio.Task[None]] = set()

    async def hold(client: tuple[str, str], count: int) -> None:
        try:
            await places.take(*client, count)
        except OverloadedError:
            return
        try:
            for _ in range(random.randrange(8)):
                await asyncio.sleep(0)
        finally:
            places.give_back(*client, count)

    for _ in range(600):
        task = asyncio.create_task(hold(random.choice(clients), random.randrange(1, 7)))
        running.add(task)
        if random.random() < 0.3:
            random.choice(sorted(running, key=id)).cancel()
        if random.random() < 0.7:
            await asyncio.sleep(0)
        assert sum(places.shares.held.get(org, 0) for org in ("org-0", "org-1", "org-2")) <= 40
        running = {task for task in running if not task.done()}
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    failed = [one for one in outcomes if not isinstance(one, asyncio.CancelledError | None)]
    assert failed == []
    assert places.shares.held == {}
    assert places._queues == {}
    assert places._waiting_shares.held == {}
