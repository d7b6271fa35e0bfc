"""The committer through everything that can happen to a commit.

Each test runs twice: with ids that have a time, which all are of one page of the journal, and with
ids that have none, which need a transaction.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from metering import conftest
from metering.conftest import LABELS, PREMIUM, MeteringMaker, QuickClock, a_policy
from metering.scripted_store import Held, Late, ScriptedStore, fails, reply_lost, request_lost
from minting import minted
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    ThrottledError,
    TransactionCancelledError,
    UnreadableItemError,
)
from pricekeeper.metering import Metering, Outcome, Recorded, Refused, org_day
from pricekeeper.metering.committer import ORG_WRITES_MAX, WRITES_MAX
from pricekeeper.metering.journal import (
    PAGE_DIGITS,
    JournalEntry,
    address_of,
    name_on_sheet,
)
from pricekeeper.metering.journal_items import page_key
from pricekeeper.metering.marking import SENDINGS_MAX
from pricekeeper.metering.moments import moment_key
from pricekeeper.metering.usage import Usage
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Item, Put, Set, Store, Table, Update, open_store
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy


@pytest.fixture
def clock() -> QuickClock:
    return QuickClock()


class Ids:
    """How new request ids are made in the test that runs."""

    make: Callable[[int], str]


@pytest.fixture(params=["timed", "untimed"], autouse=True)
def id_kind(
    request: pytest.FixtureRequest, clock: QuickClock, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Run the test with both kinds of ids."""
    makers: dict[str, Callable[[int], str]] = {
        "timed": lambda ago_ms: minted(clock.now_ms() - ago_ms),
        "untimed": lambda _: str(uuid.uuid4()),
    }
    monkeypatch.setattr(Ids, "make", staticmethod(makers[request.param]), raising=False)
    return str(request.param)


def a_usage(request_id: str | None = None, **changes: Any) -> Usage:
    """A record with an id of the kind that the test runs with."""
    return conftest.a_usage(request_id or Ids.make(0), **changes)


@pytest.fixture
async def memory() -> AsyncIterator[Store]:
    store = await open_store(SqliteLocation(MEMORY), clock=ManualClock())
    await store.create_tables()
    yield store
    await store.close()


@pytest.fixture
def wire(memory: Store) -> ScriptedStore:
    return ScriptedStore(memory)


@pytest.fixture
def metering(new_metering: MeteringMaker, wire: ScriptedStore, clock: QuickClock) -> Metering:
    return new_metering(wire, clock)


@dataclass
class Bench:
    """An instance, the wire to its store, and a client that reports to it."""

    metering: Metering
    wire: ScriptedStore
    policy: Policy
    clock: QuickClock

    async def record(self, usage: Usage | None = None) -> Recorded:
        return await self.metering.record(self.policy, usage or a_usage())

    async def requests(self) -> dict[str, int]:
        return await requests(self.metering, self.policy, self.clock)


@pytest.fixture
def bench(metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock) -> Bench:
    return Bench(metering, wire, policy, clock)


async def requests(metering: Metering, policy: Policy, clock: QuickClock) -> dict[str, int]:
    """How many requests the shards hold, by label."""
    day = org_day(policy.timezone, clock.now_ms())
    totals = await metering.read_totals(policy.scope_key, LABELS, day, live=True)
    return {label: total.requests for label, total in totals.items() if total.requests}


def sizes(wire: ScriptedStore) -> list[int]:
    """How many records each sending had."""
    return [len(names(wire, number)) for number in range(len(wire.sent))]


def names(wire: ScriptedStore, sending: int = -1) -> list[str]:
    """What the records of a sending are called where they are written."""
    found: list[str] = []
    for operation in wire.sent[sending]:
        if isinstance(operation, Update):
            sets = [change for change in operation.actions if isinstance(change, Set)]
            for one in sets:
                if len(one.attribute) == len(name_on_sheet(0)):
                    assert isinstance(one.value, bytes)
                    entry = msgspec.msgpack.decode(one.value, type=JournalEntry)
                    found.append(entry.request_id or one.attribute)
    return found


def name_of(usage: Usage) -> str:
    address = address_of(usage.request_id)
    return usage.request_id if address is None else address.name


@pytest.mark.parametrize("lost", [reply_lost, request_lost])
@pytest.mark.parametrize("times", [1, SENDINGS_MAX - 1])
async def test_a_lost_reply_counts_once_and_is_accepted(
    bench: Bench, lost: object, times: int
) -> None:
    """Applied or not, it is sent again; one's own receipt is not a duplicate."""
    bench.wire.script.extend([lost] * times)  # type: ignore[list-item]
    recorded = await bench.record()
    assert recorded.outcome is Outcome.ACCEPTED
    assert len(bench.wire.sent) == times + 1
    assert await bench.requests() == {PREMIUM: 1}
    assert recorded.daily_total is not None
    assert recorded.daily_total.requests == 1


async def test_a_commit_that_arrives_late_counts_nothing_twice(bench: Bench) -> None:
    """The records are there by then."""
    late = Late()
    bench.wire.script.append(late)
    await asyncio.gather(*(bench.record() for _ in range(5)))
    assert late.arrive is not None
    with pytest.raises((TransactionCancelledError, ConditionFailedError)):
        await late.arrive()
    assert await bench.requests() == {PREMIUM: 5}


async def test_a_duplicate_delays_the_others_by_one_sending(bench: Bench) -> None:
    """All duplicates are answered from the refusal, and the rest goes again."""
    known = [a_usage() for _ in range(3)]
    await bench.metering.record_many(bench.policy, known)
    bench.wire.sent.clear()
    usages = [a_usage(), known[0], a_usage(), known[1], known[2], a_usage()]
    answers = await asyncio.gather(*(bench.record(usage) for usage in usages))

    assert sizes(bench.wire) == [6, 3]
    assert [answer.outcome.value for answer in answers] == [
        "accepted",
        "duplicate",
        "accepted",
        "duplicate",
        "duplicate",
        "accepted",
    ]
    assert await bench.requests() == {PREMIUM: 6}
    assert bench.clock.paused_ms == []


async def test_a_lost_reply_and_a_duplicate_together(bench: Bench) -> None:
    """The duplicate stood in the way of the lost one too, so the others were not applied."""
    known = a_usage()
    await bench.record(known)
    bench.wire.script.append(reply_lost)
    answers = await asyncio.gather(
        *(bench.record(usage) for usage in (a_usage(), known, a_usage()))
    )
    assert [answer.outcome.value for answer in answers] == ["accepted", "duplicate", "accepted"]
    assert await bench.requests() == {PREMIUM: 3}


async def test_copies_in_one_commit_are_sent_once(bench: Bench) -> None:
    """The store would refuse a transaction that touches an item twice."""
    usage = a_usage()
    answers = await asyncio.gather(*(bench.record(usage) for _ in range(4)))
    assert sizes(bench.wire) == [1]
    assert sorted(answer.outcome.value for answer in answers) == ["accepted"] + ["duplicate"] * 3


async def test_who_is_contended_tries_again(bench: Bench) -> None:
    """After a pause, up to the bound."""
    bench.wire.script.extend([fails(ContendedError("scripted"))] * (SENDINGS_MAX - 1))
    recorded = await bench.record()
    assert recorded.outcome is Outcome.ACCEPTED
    assert len(bench.clock.paused_ms) == SENDINGS_MAX - 1


@pytest.mark.parametrize(
    ("script", "error", "sendings"),
    [
        ([fails(ContendedError("scripted"))] * SENDINGS_MAX, ContendedError, SENDINGS_MAX),
        ([request_lost] * SENDINGS_MAX, OutcomeUnknownError, SENDINGS_MAX),
        ([fails(StoreUnavailableError("scripted"))], StoreUnavailableError, 1),
        ([fails(ThrottledError("scripted"))], ThrottledError, 1),
        # Once a reply was lost, no other failure proves that nothing was applied.
        ([request_lost, fails(ThrottledError("scripted"))], OutcomeUnknownError, 2),
        ([reply_lost, fails(StoreUnavailableError("scripted"))], OutcomeUnknownError, 2),
        (
            [request_lost] + [fails(ContendedError("scripted"))] * (SENDINGS_MAX - 1),
            OutcomeUnknownError,
            SENDINGS_MAX,
        ),
    ],
)
async def test_giving_up_is_bounded_and_honest(
    bench: Bench, script: list[object], error: type[StoreError], sendings: int
) -> None:
    """All records of the commit get an error of their own; a retry counts once."""
    bench.wire.script.extend(script)  # type: ignore[arg-type]
    usages = [a_usage(), a_usage()]
    outcomes = await asyncio.gather(
        *(bench.record(usage) for usage in usages), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [error, error]
    assert outcomes[0] is not outcomes[1]
    assert len(bench.wire.sent) == sendings
    for usage in usages:
        await bench.record(usage)
    assert await bench.requests() == {PREMIUM: 2}


async def test_a_batch_tells_a_store_failure_record_by_record(bench: Bench) -> None:
    """100 records are one update."""
    await bench.record()
    bench.wire.script.append(fails(StoreUnavailableError("scripted")))
    answers = await bench.metering.record_many(bench.policy, [a_usage() for _ in range(100)])
    assert [type(answer) for answer in answers] == [Refused] * 100
    first = answers[0]
    assert isinstance(first, Refused)
    assert first.code == "STORE_UNAVAILABLE"


async def test_a_damaged_record_of_one_tenant_does_not_stop_the_others(
    bench: Bench, memory: Store
) -> None:
    """Its outcome is unknown, and the error says so; its neighbours are counted."""
    broken, *others = [a_policy() for _ in range(8)]
    usages = [a_usage(), a_usage()]
    await memory.put(Put(*damaged(broken, usages[0])))
    outcomes = await asyncio.gather(
        *(bench.metering.record(broken, usage) for usage in usages),
        *(bench.metering.record(policy, a_usage()) for policy in others),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [UnreadableItemError] + [Recorded] * 8
    for policy in others:
        assert await requests(bench.metering, policy, bench.clock) == {PREMIUM: 1}


def damaged(policy: Policy, usage: Usage) -> tuple[Table, Item]:
    """What is where the record should be, and is none."""
    address = address_of(usage.request_id)
    if address is None:
        table, key = moment_key(policy.org_id, usage.request_id)
        return table, {"PK": key.pk, "minted_ms": "noon"}
    key = page_key(policy.org_id, address.region, 0, address.digits[:PAGE_DIGITS])
    return USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, address.name: b"no record", "n": 1}


async def test_a_cancelled_caller_changes_nothing_for_the_others(bench: Bench) -> None:
    """Waiting or in flight, alone or with others who sent the same id."""
    held = Held()
    bench.wire.script.append(held)
    shared = a_usage()
    in_flight = [asyncio.create_task(bench.record()) for _ in range(3)]
    await held.reached.wait()
    waiting = [asyncio.create_task(bench.record()) for _ in range(3)]
    copies = [asyncio.create_task(bench.record(shared)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in (in_flight[0], waiting[1], copies[0]):
        task.cancel()
    held.let_go.set()
    await asyncio.gather(*in_flight, *waiting, *copies, return_exceptions=True)

    left = [task for task in (*in_flight, *waiting, *copies) if not task.cancelled()]
    assert len(left) == 6
    assert [task.result().outcome.value for task in left].count("duplicate") == 2
    # What the cancelled ones had submitted counts: they can find out by asking again.
    assert await bench.requests() == {PREMIUM: 7}


async def test_what_arrives_during_a_commit_goes_into_the_next(bench: Bench) -> None:
    """One commit in flight, however many arrive, as long as one can take them."""
    held = Held()
    bench.wire.script.append(held)
    tasks = [asyncio.create_task(bench.record())]
    await held.reached.wait()
    for _ in range(20):
        tasks.append(asyncio.create_task(bench.record()))
        await asyncio.sleep(0)
    held.let_go.set()
    await asyncio.gather(*tasks)
    assert sizes(bench.wire) == [1, 20]
    assert bench.wire.in_flight_max == 1


async def test_so_many_writes_are_under_way_at_once(bench: Bench) -> None:
    """One of each page or organisation, and `WRITES_MAX` of all."""
    held = [Held() for _ in range(WRITES_MAX)]
    bench.wire.script.extend(held)
    policies = [a_policy() for _ in range(WRITES_MAX + 5)]
    tasks = [
        asyncio.create_task(bench.metering.record(policy, a_usage()))
        for policy in policies
        for _ in range(3)
    ]
    await held[-1].reached.wait()
    assert bench.wire.in_flight == WRITES_MAX
    for one in held:
        one.let_go.set()
    await asyncio.gather(*tasks)
    assert bench.wire.in_flight_max == WRITES_MAX
    assert sizes(bench.wire) == [3] * len(policies)


async def test_an_organisation_whose_writes_hang_leaves_the_others_room(bench: Bench) -> None:
    """It has a quarter of the writes under way; neighbours are answered meanwhile."""
    neighbour, held = a_policy(), Held()
    await bench.metering.record(neighbour, a_usage())
    await bench.record()
    bench.wire.script.extend([held] * ORG_WRITES_MAX)
    hanging = [
        asyncio.create_task(bench.record(conftest.a_usage(minted(bench.clock.now_ms() - 16 * n))))
        for n in range(2 * WRITES_MAX)
    ]
    await held.reached.wait()
    for _ in range(20):
        await bench.metering.record(neighbour, a_usage())
    assert bench.wire.in_flight == ORG_WRITES_MAX
    assert not any(one.done() for one in hanging)
    held.let_go.set()
    outcomes = [(await one).outcome for one in hanging]
    assert outcomes == [Outcome.ACCEPTED] * len(hanging)


async def test_a_flood_does_not_delay_a_neighbour(bench: Bench) -> None:
    """Its record goes into the next commit, however many of the flood's came before it."""
    neighbour = a_policy()
    await bench.metering.record(neighbour, a_usage())
    await bench.record()
    held = Held()
    bench.wire.script.extend([held] * WRITES_MAX)
    bench.wire.sent.clear()
    flood = [  # each on a page of its own, if the id has a time
        asyncio.create_task(bench.record(a_usage(Ids.make(number * 16)))) for number in range(2_000)
    ]
    await held.reached.wait()
    record = a_usage()
    theirs = asyncio.create_task(bench.metering.record(neighbour, record))
    await asyncio.sleep(0)
    in_flight = len(bench.wire.sent)
    held.let_go.set()
    await asyncio.gather(*flood, theirs)

    (sending,) = [
        number
        for number in range(len(bench.wire.sent))
        if name_of(record) in names(bench.wire, number)
    ]
    assert in_flight <= WRITES_MAX
    assert sending <= in_flight + 1  # organisations take turns, and it may be the other one's
    assert len(bench.wire.sent) > 20


async def test_closing_commits_what_was_accepted(bench: Bench) -> None:
    """Then it takes nothing more."""
    held = Held()
    bench.wire.script.append(held)
    tasks = [asyncio.create_task(bench.record())]
    await held.reached.wait()
    tasks += [asyncio.create_task(bench.record()) for _ in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(bench.metering.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosedError):
        await bench.record()
    assert not closing.done()
    held.let_go.set()
    await closing
    assert all(task.done() and task.result().outcome is Outcome.ACCEPTED for task in tasks)
    assert await bench.requests() == {PREMIUM: 6}


async def test_what_became_of_the_records_is_counted(bench: Bench) -> None:
    """Accepted, met again, failed, and how many shared a commit; also when a reply was lost."""
    known = a_usage()
    bench.wire.script.append(reply_lost)
    await asyncio.gather(*(bench.record(one) for one in (known, a_usage(), known)))
    bench.wire.script.append(fails(StoreUnavailableError("scripted")))
    with pytest.raises(StoreUnavailableError):
        await bench.record()
    await bench.record(known)
    meter = bench.metering.meter
    assert (meter.accepted, meter.duplicates, meter.failed) == (2, 2, 1)
    assert meter.commit_sizes.total == 2
