"""Shares and turns: what one organisation does to a queue, and what it can't do to the others."""

import asyncio
from collections import Counter, defaultdict
from random import Random

import pytest

from pricekeeper.concurrency.fairness import FairSlots, Shares, TurnQueue

PLACES = 1_000


def fill(shares: Shares, *org_ids: str) -> dict[str, int]:
    """Take one place for each in turns, until none is left."""
    held = dict.fromkeys(org_ids, 0)
    while True:
        served = [org_id for org_id in org_ids if shares.take(org_id)]
        for org_id in served:
            held[org_id] += 1
        if not served:
            return held


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_n_that_flood_get_a_part_each_and_leave_one_free(count: int) -> None:
    """One gets half, two a third each, and so on: there is room for the next one."""
    shares = Shares(PLACES)
    held = fill(shares, *(f"org-{n}" for n in range(count)))
    part = PLACES // (count + 1)
    assert all(abs(places - part) <= 1 for places in held.values())
    assert shares.room("another") >= part - 1


def test_who_floods_first_does_not_keep_its_neighbour_out() -> None:
    """The first gets nothing more until the second has as much as is left over."""
    shares = Shares(PLACES)
    first = fill(shares, "flood")["flood"]
    assert first == PLACES // 2
    second = fill(shares, "neighbour")["neighbour"]
    assert second == PLACES // 4
    assert shares.room("flood") == 0
    shares.give_back("flood", first - second)
    assert shares.room("flood") == shares.room("neighbour") == PLACES // 4


def test_places_are_taken_together_or_not_at_all() -> None:
    shares = Shares(PLACES)
    assert shares.take("org", 400)
    assert not shares.take("org", 201)
    assert shares.room("org") == 200
    assert shares.take("org", 200)
    assert shares.room("org") == 0


@pytest.mark.parametrize("seed", range(20))
def test_an_organisation_that_holds_nothing_is_refused_only_if_nothing_is_left(seed: int) -> None:
    """After any sequence; and when all is given back, everything is free again."""
    random, shares, places_max = Random(seed), Shares(60), 60
    held: Counter[str] = Counter()
    for step in range(2_000):
        org_id = f"org-{random.randrange(1 + seed)}"
        count = random.choice((1, 1, 1, 10))
        if held[org_id] and random.random() < 0.45:
            given = random.randint(1, held[org_id])
            shares.give_back(org_id, given)
            held[org_id] -= given
        elif shares.take(org_id, count):
            held[org_id] += count
        assert sum(held.values()) <= places_max
        assert shares.room(f"new-{step}") == places_max - sum(held.values())
    for org_id, count in held.items():
        if count:
            shares.give_back(org_id, count)
    assert shares.room("another") == places_max
    assert shares.held == {}


def test_turns_rotate_and_keep_the_order_of_each() -> None:
    """A few of one, then of the next; each organisation's own come in the order they came."""
    queue: TurnQueue[tuple[str, int]] = TurnQueue(2)
    for number in range(5):
        queue.append("a", ("a", number))
    queue.append("b", ("b", 0))
    for number in range(3):
        queue.append("c", ("c", number))
    assert len(queue) == 9
    order = [queue.pop() for _ in range(9)]
    assert "".join(name for name, _ in order) == "aabccaaca"
    assert not queue
    for name in "abc":
        assert [n for one, n in order if one == name] == sorted(
            n for one, n in order if one == name
        )


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_waits_for_one_turn_of_each_other_organisation(seed: int) -> None:
    random, turn = Random(seed), 3
    queue: TurnQueue[tuple[str, int]] = TurnQueue(turn)
    waiting: dict[str, list[int]] = defaultdict(list)
    others_served: Counter[str] = Counter()
    """Since the first entry of the organisation became its first."""
    for number in range(3_000):
        if random.random() < 0.5 or not queue:
            name = random.choice("aaaaaabcd")
            queue.append(name, (name, number))
            waiting[name].append(number)
            continue
        name, entry = queue.pop()
        assert entry == waiting[name].pop(0)
        for other, entries in waiting.items():
            if entries and other != name:
                others_served[other] += 1
        others_served[name] = 0
        assert all(count <= 3 * turn for count in others_served.values())


async def test_slots_are_given_by_organisation_in_turns() -> None:
    slots, order = FairSlots(1), []
    await slots.acquire("flood")

    async def work(org_id: str) -> None:
        await slots.acquire(org_id)
        order.append(org_id)
        slots.release()

    tasks = [asyncio.create_task(work("flood")) for _ in range(10)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(work("neighbour")))
    await asyncio.sleep(0)
    slots.release()
    await asyncio.gather(*tasks)
    assert order.index("neighbour") == 1
    await asyncio.wait_for(slots.acquire("another"), 1)


async def test_a_slot_is_never_lost_to_a_caller_that_is_cancelled() -> None:
    slots = FairSlots(1)
    await slots.acquire("a")
    waiting = [asyncio.create_task(slots.acquire("b")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    slots.release()  # lets the second one in, which is cancelled before it runs
    waiting[1].cancel()
    await asyncio.wait(waiting, timeout=10)
    assert [task.cancelled() for task in waiting] == [True, True, False]
    slots.release()
    await asyncio.wait_for(slots.acquire("c"), 1)
