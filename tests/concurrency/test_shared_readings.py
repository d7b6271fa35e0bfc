"""Readings that are shared: for a moment, and for as long as they were work."""

import asyncio

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.concurrency.shared_readings import REST_TIMES, Read, SharedReadings


class Source:
    """Something that is read, and counts how often."""

    def __init__(self, clock: ManualClock, work_us: int = 0) -> None:
        self.readings: SharedReadings[str, int] = SharedReadings(
            "test", clock.monotonic_ms, entries_max=2, reuse_ms=1_000
        )
        self.reads = 0
        self.work_us = work_us
        self.gate = asyncio.Event()
        self.gate.set()

    async def _read(self) -> Read[int]:
        self.reads += 1
        count = self.reads
        await self.gate.wait()
        return Read(count, self.work_us)

    async def get(self, key: str = "a") -> int:
        return await self.readings.get(key, self._read)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_a_reading_is_used_for_a_moment(clock: ManualClock) -> None:
    source = Source(clock)
    assert {await source.get() for _ in range(5)} == {1}
    clock.advance_ms(999)
    assert await source.get() == 1
    clock.advance_ms(1)
    assert await source.get() == 2


async def test_what_has_changed_is_read_at_once(clock: ManualClock) -> None:
    """Also if it changed while the last reading was being made; another key is not concerned."""
    source = Source(clock)
    assert (await source.get(), await source.get("b")) == (1, 2)
    source.readings.outdate("a")
    assert (await source.get(), await source.get("b")) == (3, 2)
    clock.advance_ms(1_000)
    source.gate.clear()
    under_way = asyncio.create_task(source.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    source.readings.outdate("a")
    source.gate.set()
    assert (await under_way, await source.get()) == (4, 5)


async def test_much_work_is_rested_from(clock: ManualClock) -> None:
    """However much has changed meanwhile."""
    source = Source(clock, work_us=500_000)
    assert await source.get() == 1
    source.readings.outdate("a")
    clock.advance_ms(500 * REST_TIMES - 1)
    assert await source.get() == 1
    clock.advance_ms(1)
    assert await source.get() == 2


async def test_little_work_is_not_rested_from(clock: ManualClock) -> None:
    source = Source(clock, work_us=6_000)
    source.gate.clear()
    asking = [asyncio.create_task(source.get())]
    for _ in range(4):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        source.readings.outdate("a")
        asking.append(asyncio.create_task(source.get()))
    source.gate.set()
    assert await asyncio.gather(*asking) == [1, 2, 2, 2, 2]


async def test_callers_share_what_is_under_way(clock: ManualClock) -> None:
    source = Source(clock)
    assert await asyncio.gather(*(source.get() for _ in range(20))) == [1] * 20

    async def fail() -> Read[int]:
        raise RuntimeError("no")

    clock.advance_ms(1_000)
    with pytest.raises(RuntimeError):
        await source.readings.get("a", fail)
    assert await source.get() == 2


async def test_it_remembers_so_many(clock: ManualClock) -> None:
    source = Source(clock)
    for key in ("a", "b", "c"):
        await source.get(key)
    assert await source.get("c") == 3
    assert await source.get("a") == 4
