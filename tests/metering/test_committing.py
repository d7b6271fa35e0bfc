"""The committer through everything that can happen to a transaction."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from metering.conftest import LABELS, PREMIUM, STANDARD, MeteringMaker, a_policy, a_usage
from metering.scripted_store import Held, Late, ScriptedStore, fails, reply_lost, request_lost
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ContendedError,
    InvalidOperationError,
    OutcomeUnknownError,
    OverloadedError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    ThrottledError,
    TransactionCancelledError,
)
from pricekeeper.metering import Metering, Outcome, Recorded, Refused, org_day, scope_key
from pricekeeper.metering.committer import LANE_BACKLOG, LANES_MAX, PENDING_MAX, SENDINGS_MAX
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import counter_key
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Put, Set, Store, Update, open_store
from pricekeeper.storage.tables import REQUEST_DEDUP, USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy


class QuickClock(ManualClock):
    """Pauses take no real time; ``paused_ms`` are those that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.paused_ms: list[int] = []

    async def sleep_ms(self, duration_ms: int) -> None:
        self.paused_ms.append(duration_ms)
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> QuickClock:
    return QuickClock()


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


async def requests(metering: Metering, policy: Policy, clock: QuickClock) -> dict[str, int]:
    """How many requests the shards hold, by label."""
    day = org_day(policy.timezone, clock.now_ms())
    totals = await metering.totals(scope_key(policy), LABELS, day, live=True)
    return {label: total.requests for label, total in totals.items() if total.requests}


def receipts(wire: ScriptedStore, sending: int = -1) -> list[Put]:
    return [
        operation
        for operation in wire.sent[sending]
        if isinstance(operation, Put) and operation.table is REQUEST_DEDUP
    ]


def shards(wire: ScriptedStore) -> list[str]:
    """The shard that each sending's first counter update went to."""
    updates = [next(one for one in sent if isinstance(one, Update)) for sent in wire.sent]
    return [update.key.pk.rpartition("#")[2] for update in updates]


@pytest.mark.parametrize("lost", [reply_lost, request_lost])
@pytest.mark.parametrize("times", [1, SENDINGS_MAX - 1])
async def test_a_lost_reply_counts_once_and_is_accepted(
    metering: Metering,
    wire: ScriptedStore,
    policy: Policy,
    clock: QuickClock,
    lost: object,
    times: int,
) -> None:
    """Applied or not, it is sent again; one's own receipt is not a duplicate."""
    wire.script.extend([lost] * times)  # type: ignore[list-item]
    recorded = await metering.record(policy, a_usage())
    assert recorded.outcome is Outcome.ACCEPTED
    assert len(wire.sent) == times + 1
    assert await requests(metering, policy, clock) == {PREMIUM: 1}
    assert recorded.daily_total is not None
    assert recorded.daily_total.requests == 1


async def test_a_transaction_that_arrives_late_counts_nothing_twice(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """The receipts are there by then, whatever shard it would have gone to."""
    late = Late()
    wire.script.append(late)
    await asyncio.gather(*(metering.record(policy, a_usage()) for _ in range(5)))
    assert late.arrive is not None
    with pytest.raises(TransactionCancelledError):
        await late.arrive()
    assert await requests(metering, policy, clock) == {PREMIUM: 5}


async def test_a_duplicate_delays_the_others_by_one_sending(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """All duplicates are answered from the cancelled transaction, and the rest goes again."""
    known = [a_usage() for _ in range(3)]
    await metering.record_many(policy, known)
    wire.sent.clear()
    usages = [a_usage(), known[0], a_usage(), known[1], known[2], a_usage()]
    answers = await asyncio.gather(*(metering.record(policy, usage) for usage in usages))

    assert [len(receipts(wire, sending)) for sending in range(len(wire.sent))] == [6, 3]
    assert [answer.outcome.value for answer in answers] == [
        "accepted",
        "duplicate",
        "accepted",
        "duplicate",
        "duplicate",
        "accepted",
    ]
    assert await requests(metering, policy, clock) == {PREMIUM: 6}
    assert clock.paused_ms == []


async def test_a_lost_reply_and_a_duplicate_together(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """The duplicate stood in the way of the lost one too, so the others were not applied."""
    known = a_usage()
    await metering.record(policy, known)
    wire.script.append(reply_lost)
    answers = await asyncio.gather(
        *(metering.record(policy, usage) for usage in (a_usage(), known, a_usage()))
    )
    assert [answer.outcome.value for answer in answers] == ["accepted", "duplicate", "accepted"]
    assert await requests(metering, policy, clock) == {PREMIUM: 3}


async def test_copies_in_one_commit_are_sent_once(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """The store would refuse a transaction that touches an item twice."""
    usage = a_usage()
    answers = await asyncio.gather(*(metering.record(policy, usage) for _ in range(4)))
    assert [len(receipts(wire))] == [1]
    assert sorted(answer.outcome.value for answer in answers) == ["accepted"] + ["duplicate"] * 3


async def test_who_is_contended_goes_to_another_shard(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """After a pause; nothing depends on a record being in one particular shard."""
    wire.script.extend([fails(ContendedError("scripted"))] * (SENDINGS_MAX - 1))
    recorded = await metering.record(policy, a_usage())
    assert recorded.outcome is Outcome.ACCEPTED
    assert len(set(shards(wire))) > 1
    assert recorded.receipt.shard_id == int(shards(wire)[-1])
    assert len(clock.paused_ms) == SENDINGS_MAX - 1


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
    metering: Metering,
    wire: ScriptedStore,
    policy: Policy,
    clock: QuickClock,
    script: list[object],
    error: type[StoreError],
    sendings: int,
) -> None:
    """All in the commit are told the same, each with its own error; a retry counts once."""
    wire.script.extend(script)  # type: ignore[arg-type]
    usages = [a_usage(), a_usage()]
    outcomes = await asyncio.gather(
        *(metering.record(policy, usage) for usage in usages), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [error, error]
    assert outcomes[0] is not outcomes[1]
    assert len(wire.sent) == sendings
    for usage in usages:
        await metering.record(policy, usage)
    assert await requests(metering, policy, clock) == {PREMIUM: 2}


async def test_a_batch_tells_a_store_failure_record_by_record(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """100 records are two transactions; one of them fails."""
    await metering.record(policy, a_usage())
    wire.script.append(fails(StoreUnavailableError("scripted")))
    answers = await metering.record_many(policy, [a_usage() for _ in range(100)])
    assert [type(answer) for answer in answers] == [Refused] * 99 + [Recorded]
    failed = answers[0]
    assert isinstance(failed, Refused)
    assert failed.code == "STORE_UNAVAILABLE"


async def test_a_broken_counter_of_one_tenant_does_not_stop_the_others(
    metering: Metering, memory: Store, clock: QuickClock
) -> None:
    """The transaction is halved until the bad record is alone."""
    broken, *others = [a_policy() for _ in range(8)]
    day = org_day("UTC", clock.now_ms())
    for shard in range(8):
        key = counter_key(Account(scope_key(broken), PREMIUM, day), shard)
        await memory.update(Update(USAGE_AGG_SHARDED, key, (Set("requests", "many"),)))
    outcomes = await asyncio.gather(
        *(metering.record(policy, a_usage()) for policy in (*others[:4], broken, *others[4:])),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == (
        [Recorded] * 4 + [InvalidOperationError] + [Recorded] * 3
    )
    for policy in others:
        assert await requests(metering, policy, clock) == {PREMIUM: 1}


async def test_a_cancelled_caller_changes_nothing_for_the_others(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """Waiting or in flight, alone or with others who sent the same id."""
    held = Held()
    wire.script.append(held)
    shared = a_usage()
    in_flight = [asyncio.create_task(metering.record(policy, a_usage())) for _ in range(3)]
    await held.reached.wait()
    waiting = [asyncio.create_task(metering.record(policy, a_usage())) for _ in range(3)]
    copies = [asyncio.create_task(metering.record(policy, shared)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in (in_flight[0], waiting[1], copies[0]):
        task.cancel()
    held.let_go.set()
    await asyncio.gather(*in_flight, *waiting, *copies, return_exceptions=True)

    left = [task for task in (*in_flight, *waiting, *copies) if not task.cancelled()]
    assert len(left) == 6
    assert [task.result().outcome.value for task in left].count("duplicate") == 2
    # What the cancelled ones had submitted counts: they can find out by asking again.
    assert await requests(metering, policy, clock) == {PREMIUM: 7}


async def test_what_arrives_during_a_commit_goes_into_the_next(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """One commit in flight, however many arrive, as long as one can take them."""
    held = Held()
    wire.script.append(held)
    tasks = [asyncio.create_task(metering.record(policy, a_usage()))]
    await held.reached.wait()
    for _ in range(20):
        tasks.append(asyncio.create_task(metering.record(policy, a_usage())))
        await asyncio.sleep(0)
    held.let_go.set()
    await asyncio.gather(*tasks)
    assert [len(receipts(wire, sending)) for sending in range(2)] == [1, 20]
    assert (len(wire.sent), wire.in_flight_max) == (2, 1)


async def test_a_backlog_gets_more_lanes_up_to_the_bound(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """And none of them writes to a shard that another one is writing to."""
    held = [Held() for _ in range(LANES_MAX)]
    wire.script.extend(held)
    tasks = [
        asyncio.create_task(metering.record(policy, a_usage()))
        for _ in range((LANES_MAX + 2) * LANE_BACKLOG)
    ]
    await held[-1].reached.wait()
    assert wire.in_flight == LANES_MAX
    assert len(set(shards(wire))) == LANES_MAX
    for one in held:
        one.let_go.set()
    await asyncio.gather(*tasks)
    assert wire.in_flight_max == LANES_MAX


async def test_an_organisation_gets_its_share_of_the_queue_and_no_more(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """Alone it gets half; what it sends then is refused after a wait, and a neighbour's goes on."""
    held = Held()
    wire.script.extend([held] * LANES_MAX)
    tasks = [
        asyncio.create_task(metering.record(policy, a_usage(model_label=STANDARD)))
        for _ in range(PENDING_MAX // 2)
    ]
    await held.reached.wait()
    with pytest.raises(OverloadedError):
        await metering.record(policy, a_usage())
    with pytest.raises(OverloadedError):
        await metering.record_many(policy, [a_usage()])
    neighbour = a_policy()
    theirs = [asyncio.create_task(metering.record_many(neighbour, [a_usage(), a_usage()]))]
    held.let_go.set()
    await asyncio.gather(*tasks)
    assert [type(one) for one in await theirs[0]] == [Recorded, Recorded]
    assert (await metering.record(policy, a_usage())).outcome is Outcome.ACCEPTED
    assert metering._admission.shares.room(policy.org_id) == PENDING_MAX


async def test_a_flood_does_not_delay_a_neighbour(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """Its record goes into the next commit, however many of the flood's came before it."""
    neighbour = a_policy()
    await metering.record(neighbour, a_usage())
    await metering.record(policy, a_usage())
    held = Held()
    wire.script.extend([held] * LANES_MAX)
    wire.sent.clear()
    flood = [asyncio.create_task(metering.record(policy, a_usage())) for _ in range(4_000)]
    await held.reached.wait()
    record = a_usage()
    theirs = asyncio.create_task(metering.record(neighbour, record))
    await asyncio.sleep(0)
    in_flight = len(wire.sent)
    held.let_go.set()
    await asyncio.gather(*flood, theirs)

    (sending,) = [
        number
        for number in range(len(wire.sent))
        if any(record.request_id in put.item["PK"] for put in receipts(wire, number))
    ]
    assert in_flight == LANES_MAX
    assert sending <= in_flight
    assert len(wire.sent) > 40


async def test_closing_commits_what_was_accepted(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """Then it takes nothing more."""
    held = Held()
    wire.script.append(held)
    tasks = [asyncio.create_task(metering.record(policy, a_usage()))]
    await held.reached.wait()
    tasks += [asyncio.create_task(metering.record(policy, a_usage())) for _ in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(metering.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosedError):
        await metering.record(policy, a_usage())
    assert not closing.done()
    held.let_go.set()
    await closing
    assert all(task.done() and task.result().outcome is Outcome.ACCEPTED for task in tasks)
    assert await requests(metering, policy, clock) == {PREMIUM: 6}


async def test_an_account_is_marked_by_whoever_counts_first_and_not_again(
    new_metering: MeteringMaker, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """Every process writes the marker once; a failed commit has not marked anything."""

    def marks() -> list[int]:
        return [
            sum(isinstance(one, Put) and one.key.pk.startswith("ACTIVE#") for one in sent)
            for sent in wire.sent
        ]

    first, second = new_metering(wire, clock), new_metering(wire, clock)
    wire.script.append(fails(StoreUnavailableError("scripted")))
    with pytest.raises(StoreUnavailableError):
        await first.record(policy, a_usage())
    for metering in (first, first, second, second):
        await metering.record(policy, a_usage())
    assert marks() == [1, 1, 0, 1, 0]


async def test_what_became_of_the_records_is_counted(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """Accepted, met again, failed, and how many shared a commit; also when a reply was lost."""
    known = a_usage()
    wire.script.append(reply_lost)
    await asyncio.gather(*(metering.record(policy, one) for one in (known, a_usage(), known)))
    wire.script.append(fails(StoreUnavailableError("scripted")))
    with pytest.raises(StoreUnavailableError):
        await metering.record(policy, a_usage())
    await metering.record(policy, known)
    meter = metering.meter
    assert (meter.accepted, meter.duplicates, meter.failed) == (2, 2, 1)
    assert meter.commit_sizes.total == 2
