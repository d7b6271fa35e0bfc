"""Reporting: each entry reaches the service once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from client.waiting import until
from pricekeeper.client.errors import (
    ForbiddenError,
    MissingError,
    RateLimitedError,
    RejectedError,
    ServiceError,
    ServiceProblem,
    UnavailableError,
)
from pricekeeper.client.spool import Spool, SpoolEntry, find_folder, read_refused
from pricekeeper.client.telling import (
    ADOPT_EVERY_MS,
    GATHER_MS,
    VOID_UNKNOWN_MS,
    Teller,
)
from pricekeeper.clock import ManualClock
from pricekeeper.wire.bounds import BATCH_MAX

DAY_MS = 86_400_000
Outcome = Mapping[str, Any] | Exception


def problem(kind: type[ServiceError], status: int, code: str) -> ServiceError:
    return kind(ServiceProblem(status, code, "of the stand-in"))


AWAY = problem(UnavailableError, 503, "STORE_UNAVAILABLE")


class Ledger:
    """A service that counts each id once and answers by script."""

    def __init__(self) -> None:
        self.counted: dict[str, Mapping[str, Any]] = {}
        self.voided: list[str] = []
        self.requests: list[list[str]] = []
        self.outcomes: list[Outcome] = []
        """What to answer to the next requests instead."""
        self.refused: dict[str, Mapping[str, Any]] = {}
        """What to answer for entries of these ids."""
        self.spoils: Callable[[Sequence[str]], Exception | None] = lambda _: None

    async def capture_many(self, captures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self._count(captures, "authorization_id")

    async def record_many(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self._count(records, "request_id")

    async def label_of(self, model: str) -> str | None:
        raise problem(RejectedError, 400, f"INVALID_MODEL_LABEL {model}")

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None:
        del reason
        self._begin([authorization_id])
        self.voided.append(authorization_id)

    def _begin(self, ids: list[str]) -> Mapping[str, Any] | None:
        self.requests.append(ids)
        outcome = self.outcomes.pop(0) if self.outcomes else self.spoils(ids)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _count(self, bodies: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
        answered = self._begin([one[key] for one in bodies])
        if answered is not None:
            return dict(answered)
        results = [self.refused.get(one[key], {"status": "accepted"}) for one in bodies]
        for body, result in zip(bodies, results, strict=True):
            if result["status"] != "failed":
                self.counted[body[key]] = body
        return {"results": results}


class World:
    """A teller at work."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.spool = Spool(folder)
        self.folder = folder
        self.ledger = Ledger()
        self.answers = 0
        self.teller = Teller(self.spool, self.ledger, self.clock, self._note)

    def _note(self) -> None:
        self.answers += 1

    def append(
        self, name: str, kind: Literal["capture", "usage", "void"] = "capture", **body: Any
    ) -> SpoolEntry:
        kept = self.spool.append(SpoolEntry(kind, name, body, self.clock.now_ms()))
        assert kept is not None
        self.teller.hurry()
        return kept

    def leave(self, name: str) -> None:
        """An entry of a process that has ended."""
        gone = Spool(self.folder)
        gone.append(SpoolEntry("capture", name, {}, self.clock.now_ms()))
        gone.close()

    async def is_told(self, *, within_ms: int = 0) -> None:
        """Wait until no entry waits, while time passes."""
        for _ in range(0, within_ms, 500):
            await self.rest()
            self.clock.advance_ms(500)
        await until(lambda: not len(self.spool))

    async def rest(self) -> None:
        """Let it work until it sleeps; most often that takes some turns of the loop."""
        for _ in range(100):
            if self.clock.sleepers:
                return
            await asyncio.sleep(0)
        await until(lambda: self.clock.sleepers > 0)


@asynccontextmanager
async def working(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    task = asyncio.create_task(world.teller.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        world.spool.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    client = "org-550e8400-e29b-41d4-a716-446655440000-app-chat"
    found = find_folder(str(tmp_path), "http://127.0.0.1:1", client)
    assert found is not None
    return found


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    async with working(folder) as world:
        yield world


async def test_what_waits_goes_in_batches(world: World) -> None:
    for number in range(250):
        world.append(f"c{number}")
    world.append("u", "usage")
    world.append("v", "void", reason="why")
    await world.is_told()

    assert max(len(ids) for ids in world.ledger.requests) <= BATCH_MAX
    assert len(world.ledger.requests) <= 6
    assert len(world.ledger.counted) == 251
    assert world.ledger.voided == ["v"]


async def test_what_nobody_waits_for_is_gathered(world: World) -> None:
    await world.rest()

    def has_decided() -> bool:
        now_ms = world.clock.monotonic_ms()
        gathers = any(at_ms - now_ms == GATHER_MS for at_ms, _, _ in world.clock._sleepers)
        return gathers or bool(world.ledger.requests)

    for number in range(5):
        world.spool.append(SpoolEntry("capture", f"c{number}", {}, 0))
        world.teller.wake()
        await until(has_decided)
    assert world.ledger.requests == []

    def is_told() -> bool:
        world.clock.advance_ms(GATHER_MS)
        return not len(world.spool)

    await until(is_told)
    assert [len(ids) for ids in world.ledger.requests] == [5]

    for number in range(BATCH_MAX):
        world.spool.append(SpoolEntry("capture", f"d{number}", {}, 0))
    world.teller.wake()
    await until(lambda: not len(world.spool))
    assert [len(ids) for ids in world.ledger.requests] == [5, BATCH_MAX]


async def test_the_disk_keeps_it_before_the_service_hears_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a machine that stops could lose a confirmed entry."""
    order: list[str] = []
    sync = world.spool.sync

    def note_sync() -> None:
        order.append("sync")
        sync()

    def note_send(ids: Sequence[str]) -> None:
        order.append(f"send {len(ids)}")

    monkeypatch.setattr(world.spool, "sync", note_sync)
    monkeypatch.setattr(world.ledger, "spoils", note_send)
    world.append("a")
    await world.is_told()

    assert order == ["sync", "send 1"]


@pytest.mark.parametrize(
    "error",
    [
        AWAY,
        problem(RateLimitedError, 429, "RATE_LIMIT_EXCEEDED"),
        problem(ForbiddenError, 401, "UNAUTHORIZED"),
        problem(ServiceError, 500, "INTERNAL"),
        problem(MissingError, 404, "HTTP_404"),
        problem(RejectedError, 400, "HTTP_400"),
        ValueError("what answers is not the service"),
        KeyError("results"),
    ],
    ids=lambda error: getattr(error, "code", type(error).__name__),
)
async def test_nothing_that_is_answered_loses_an_entry(world: World, error: Exception) -> None:
    """A proxy without the service, a revoked secret, a bug: the entry is sent again later."""
    world.ledger.outcomes = [error] * 5
    world.append("a")
    await world.is_told(within_ms=60_000)

    assert list(world.ledger.counted) == ["a"]
    assert read_refused(world.folder) == []


@pytest.mark.parametrize("answer", [{}, {"results": []}, {"results": [{}]}, {"results": None}])
async def test_an_answer_that_says_nothing_counts_for_nothing(
    world: World, answer: Mapping[str, Any]
) -> None:
    world.ledger.outcomes = [answer]
    world.append("a")
    await world.is_told(within_ms=5_000)

    assert list(world.ledger.counted) == ["a"]


async def test_the_pauses_double_and_have_an_end(world: World) -> None:
    world.ledger.outcomes = [AWAY] * 1_000
    world.append("a")
    for _ in range(360):  # half an hour
        await world.rest()
        world.clock.advance_ms(5_000)

    assert 30 <= len(world.ledger.requests) <= 200
    world.ledger.outcomes = []
    world.teller.resume()
    await world.is_told()


async def test_a_service_that_is_back_is_told_at_once(world: World) -> None:
    world.ledger.outcomes = [AWAY]
    world.append("a")
    await world.rest()
    world.teller.resume()
    await world.is_told()

    assert world.answers == 1


async def test_one_bad_entry_does_not_spoil_the_rest(world: World) -> None:
    """A batch that is refused as a whole is halved until the bad entry is alone."""
    too_large = problem(RejectedError, 413, "HTTP_413")
    world.ledger.spoils = lambda ids: too_large if "c13" in ids else None
    for number in range(40):
        world.append(f"c{number}")
    await world.is_told()

    assert len(world.ledger.counted) == 39
    (refused,) = read_refused(world.folder)
    assert (refused["id"], refused["reason"]) == ("c13", "HTTP_413: of the stand-in")


async def test_an_entry_that_breaks_the_service_does_not_hold_up_the_rest(world: World) -> None:
    """A 500 does not say whose fault it is, so the entry is repeated, last."""
    broken = problem(ServiceError, 500, "INTERNAL")
    world.ledger.spoils = lambda ids: broken if "c13" in ids else None
    for number in range(40):
        world.append(f"c{number}")
    for _ in range(600):
        await world.rest()
        if len(world.ledger.counted) == 39:
            break
        world.clock.advance_ms(1_000)

    assert len(world.ledger.counted) == 39
    assert [one.id for one in world.spool.pending(9)] == ["c13"]


async def test_what_is_refused_for_good_is_set_aside_with_the_reason(world: World) -> None:
    world.ledger.refused = {
        "bad": {"status": "failed", "code": "CONFLICT", "detail": "was voided"},
        "later": {"status": "failed", "code": "STORE_UNAVAILABLE"},
    }
    answers = {name: world.teller.expect(world.append(name)) for name in ("good", "bad", "later")}
    assert (await answers["good"])["status"] == "accepted"
    assert (await answers["bad"])["code"] == "CONFLICT"
    await world.rest()
    assert not answers["later"].done()
    world.ledger.refused = {}
    await world.is_told(within_ms=2_000)

    assert (await answers["later"])["status"] == "accepted"
    assert [one["id"] for one in read_refused(world.folder)] == ["bad"]


async def test_the_same_id_twice_has_two_answers(world: World) -> None:
    first, second = (world.teller.expect(world.append("a", n=n)) for n in range(2))
    world.ledger.outcomes = [
        {"results": [{"status": "accepted"}, {"status": "failed", "code": "REQUEST_ID_REUSED"}]}
    ]
    assert ((await first)["status"], (await second)["status"]) == ("accepted", "failed")


class TestVoids:
    """An authorization whose answer was lost may have been granted, or may be granted later."""

    UNKNOWN = problem(MissingError, 404, "NOT_FOUND")

    async def test_one_that_is_not_known_yet_is_voided_when_it_is(self, world: World) -> None:
        world.ledger.outcomes = [self.UNKNOWN] * 3
        world.append("a", "void")
        await world.is_told(within_ms=4_000)

        assert world.ledger.voided == ["a"]

    async def test_one_that_is_never_known_is_given_up(self, world: World) -> None:
        """After two minutes of the service's saying so, not counting outages."""
        world.ledger.outcomes = [AWAY] * 40
        world.append("a", "void")
        for _ in range(400):
            await world.rest()
            if not world.ledger.outcomes:
                break
            world.clock.advance_ms(5_000)
        assert world.clock.monotonic_ms() > VOID_UNKNOWN_MS
        world.ledger.spoils = lambda _: self.UNKNOWN
        world.teller.resume()
        await until(lambda: len(world.ledger.requests) > 40)
        assert len(world.spool) == 1
        await world.is_told(within_ms=VOID_UNKNOWN_MS + 5_000)

        assert (world.ledger.voided, read_refused(world.folder)) == ([], [])

    async def test_one_that_was_captured_is_set_aside(self, world: World) -> None:
        world.ledger.outcomes = [problem(RejectedError, 409, "CONFLICT")]
        world.append("a", "void")
        await world.is_told()

        assert [one["reason"] for one in read_refused(world.folder)] == [
            "CONFLICT: of the stand-in"
        ]


class TestFlush:
    async def test_it_ends_when_all_is_told(self, world: World) -> None:
        await world.rest()
        world.leave("left")
        world.append("mine")
        await world.teller.flush()

        assert sorted(world.ledger.counted) == ["left", "mine"]

    async def test_what_is_put_off_is_not_waited_for(self, world: World) -> None:
        world.ledger.spoils = lambda ids: TestVoids.UNKNOWN if ids == ["v"] else None
        world.append("v", "void")
        world.append("c")
        await asyncio.wait_for(world.teller.flush(), 10)

        assert [one.id for one in world.spool.pending(9)] == ["v"]

    async def test_credentials_that_are_refused_are_not_waited_for(self, world: World) -> None:
        world.ledger.spoils = lambda _: problem(ForbiddenError, 401, "UNAUTHORIZED")
        world.append("c")
        await asyncio.wait_for(world.teller.flush(), 10)

        assert len(world.spool) == 1

    async def test_it_ends_a_pause(self, world: World) -> None:
        world.ledger.outcomes = [AWAY]
        world.append("a")
        await world.rest()
        await asyncio.wait_for(world.teller.flush(), 10)

        assert list(world.ledger.counted) == ["a"]


async def test_files_of_processes_that_end_later_are_found(world: World) -> None:
    await world.rest()
    world.leave("left")
    await world.rest()
    world.clock.advance_ms(ADOPT_EVERY_MS)
    await until(lambda: bool(world.ledger.counted))

    assert list(world.ledger.counted) == ["left"]


async def test_usage_that_has_waited_for_a_day_is_told_without_its_time(folder: Path) -> None:
    """The service takes no older timestamps. A younger entry keeps its own."""
    clock = ManualClock()
    gone = Spool(folder)
    for name, age_ms in (("old", DAY_MS), ("young", DAY_MS // 2)):
        body = {"timestamp": "then", "model_label": "premium"}
        gone.append(SpoolEntry("usage", name, body, clock.now_ms() - age_ms))
    gone.close()
    async with working(folder) as world:
        await until(lambda: len(world.ledger.counted) == 2)

    assert "timestamp" not in world.ledger.counted["old"]
    assert world.ledger.counted["young"]["timestamp"] == "then"


async def test_how_long_the_service_has_not_answered_is_known(world: World) -> None:
    """A caller's deadline is compared with it."""
    await world.rest()
    assert world.teller.unanswered_ms == 0
    held = asyncio.Event()

    async def never(captures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        await held.wait()
        return {"results": [{"status": "accepted"} for _ in captures]}

    world.ledger.capture_many = never  # type: ignore[method-assign]
    world.append("a")
    await until(lambda: world.teller._asked_at_ms is not None)
    world.clock.advance_ms(1_500)
    assert world.teller.unanswered_ms == 1_500
    held.set()
    await world.is_told()
    await world.rest()
    assert world.teller.unanswered_ms == 0
