"""Recording usage: counted once, on its own day, at its price, for the right scope."""

import asyncio
import uuid

import pytest

from metering.conftest import (
    APP,
    COST_USD_PICOS,
    ECONOMY,
    LABELS,
    PREMIUM,
    STANDARD,
    MeteringMaker,
    World,
    a_policy,
    a_usage,
    today,
    told,
)
from minting import minted
from pricekeeper.errors import (
    InvalidValueError,
    ModelMismatchError,
    RequestIdReusedError,
    UnknownModelLabelError,
    UnpricedUsageError,
)
from pricekeeper.metering import (
    Counters,
    Metering,
    Outcome,
    Recorded,
    Refused,
    Total,
    UsageStatus,
    org_day,
)
from pricekeeper.metering.journal import (
    JournalEntry,
    Terms,
    address_at,
    encode_entry,
    encode_terms,
)
from pricekeeper.metering.journal_items import page_key
from pricekeeper.metering.marking import NONCE_BYTES
from pricekeeper.metering.moments import moment_key
from pricekeeper.metering.receipt import SOURCE_LENGTH_MAX
from pricekeeper.metering.usage import MOMENT_LIFE_SECS
from pricekeeper.storage import Item, Store
from pricekeeper.storage.values import item_bytes
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy, QuotaScope
from pricekeeper.values import AppId

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def live(world: World, policy: Policy | None = None, day: str = "") -> dict[str, Counters]:
    """The live requests of the labels that have any."""
    scope_key, day = (policy or world.policy).scope_key, day or today(world.clock)
    totals = await world.metering.read_totals(scope_key, LABELS, day, live=True)
    return {label: total.counters for label, total in totals.items() if total.requests}


async def moment_of(store: Store, policy: Policy, request_id: str) -> Item | None:
    return await store.get(*moment_key(policy.org_id, request_id))


async def test_a_record_is_counted_at_its_price(world: World) -> None:
    """Cost, tokens of every kind, and the request itself."""
    usage = a_usage(
        cache_read_tokens=10, cache_write_5m_tokens=3, cache_write_1h_tokens=4, tags={"a": "b"}
    )
    recorded = await world.record(usage)
    cost = COST_USD_PICOS + 10 * 300_000 + 3 * 3_750_000 + 4 * 6_000_000

    assert recorded.outcome is Outcome.ACCEPTED
    assert recorded.request_id == usage.request_id
    assert recorded.receipt.cost_usd_picos == cost
    assert recorded.cost_usd_micros == cost // 1_000_000
    assert recorded.receipt.org_day == today(world.clock)
    assert await live(world) == {PREMIUM: Counters(cost, 1_000, 500, 10, 7, requests=1)}


async def test_a_failed_call_counts_what_it_used(world: World) -> None:
    """And is an error too."""
    await world.record(a_usage(status=UsageStatus.ERROR, output_tokens=0))
    await world.record()
    total = (await live(world))[PREMIUM]
    assert (total.requests, total.errors, total.input_tokens) == (2, 1, 2_000)


async def test_a_duplicate_gets_the_original_answer(
    world: World, new_metering: MeteringMaker
) -> None:
    """From this instance and any other, also on the next day; it counts nothing."""
    usage = a_usage()
    first = await world.record(usage)
    world.clock.shift_ms += 23 * HOUR_MS
    for instance in (world.metering, new_metering(world.store, world.clock)):
        again = await instance.record(world.policy, usage)
        assert again.outcome is Outcome.DUPLICATE
        assert again.receipt == first.receipt
    assert (await live(world, day=first.receipt.org_day))[PREMIUM].requests == 1


async def test_concurrent_copies_of_a_record_count_once(
    world: World, new_metering: MeteringMaker
) -> None:
    """One of them is accepted, on any instance; all get the same answer."""
    instances = [new_metering(world.store, world.clock) for _ in range(3)]
    usage = a_usage()
    answers = await asyncio.gather(
        *(instance.record(world.policy, usage) for instance in instances for _ in range(5))
    )
    assert [answer.outcome for answer in answers].count(Outcome.ACCEPTED) == 1
    assert len({answer.receipt.commit_id for answer in answers}) == 1
    assert (await live(world))[PREMIUM].requests == 1


async def test_a_request_id_with_another_body_is_a_conflict(world: World) -> None:
    """For any difference, now or at the same moment; the first record stays."""
    request_id = str(uuid.uuid4())
    await world.record(a_usage(request_id))
    with pytest.raises(RequestIdReusedError) as reused:
        await world.record(a_usage(request_id, output_tokens=501))
    with pytest.raises(RequestIdReusedError):
        await world.record(a_usage(request_id, model_label=STANDARD))
    assert reused.value.request_id == request_id
    assert list(await live(world)) == [PREMIUM]

    at_once = str(uuid.uuid4())
    outcomes = await asyncio.gather(
        world.record(a_usage(at_once)),
        world.record(a_usage(at_once, output_tokens=501)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Recorded, RequestIdReusedError]
    assert (await live(world))[PREMIUM].requests == 2


async def test_a_request_id_belongs_to_the_whole_organisation(world: World) -> None:
    """Another app of it can't use the id again, nor learn what it cost; another one can."""
    usage = a_usage()
    for one in (world.policy, a_policy()):
        assert (await world.metering.record(one, usage)).outcome is Outcome.ACCEPTED
    with pytest.raises(RequestIdReusedError):
        await world.metering.record(a_policy(AppId("other"), org_id=world.policy.org_id), usage)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles", "Pacific/Kiritimati"])
async def test_the_day_is_that_of_the_event_in_the_organisations_zone(
    world: World, zone: str
) -> None:
    """Not of its arrival, and not of ours."""
    policy = a_policy(timezone=zone)
    for hours in (-23, -12, -1, 0):
        at_ms = world.clock.now_ms() + hours * HOUR_MS
        recorded = await world.metering.record(policy, a_usage(timestamp_ms=at_ms))
        assert recorded.receipt.org_day == org_day(zone, at_ms)


@pytest.mark.parametrize("offset_ms", [-DAY_MS - 10_000, 5 * 60_000 + 10_000])
async def test_an_event_outside_of_the_window_is_refused(world: World, offset_ms: int) -> None:
    """And leaves no moment, so that it can be reported with the right time."""
    usage = a_usage(timestamp_ms=world.clock.now_ms() + offset_ms)
    with pytest.raises(InvalidValueError, match="timestamp"):
        await world.record(usage)
    assert await moment_of(world.store, world.policy, usage.request_id) is None


async def test_what_has_no_price_is_refused_and_not_counted(world: World) -> None:
    """An unknown label, another model, a tier of batch inference: each by its own error."""
    refused = {
        UnknownModelLabelError: a_usage(model_label="unheard-of"),
        ModelMismatchError: a_usage(bedrock_model_id="amazon.nova-micro-v1:0"),
        UnpricedUsageError: a_usage(service_tier="flex", batch=True),
    }
    for error, usage in refused.items():
        with pytest.raises(error):
            await world.record(usage)
        assert await moment_of(world.store, world.policy, usage.request_id) is None
    assert await live(world) == {}


async def test_a_label_outside_of_the_ordering_is_counted_all_the_same(world: World) -> None:
    """The money is spent; only a label without a price can't be."""
    policy = a_policy(model_ordering=(STANDARD,))
    await world.metering.record(policy, a_usage())
    assert list(await live(world, policy)) == [PREMIUM]
    await world.aggregate()
    assert await world.metering.read_labels_used(policy.scope_key, today(world.clock)) == {PREMIUM}


@pytest.mark.parametrize("scope", QuotaScope)
async def test_apps_share_a_scope_or_have_their_own(world: World, scope: QuotaScope) -> None:
    """As the organisation's quota scope says."""
    one = a_policy(quota_scope=scope)
    two = a_policy(AppId("other"), quota_scope=scope, org_id=one.org_id)
    for policy in (one, two, two):
        await world.metering.record(policy, a_usage())
    expected = {QuotaScope.ORG: (3, 3), QuotaScope.APP: (1, 2)}[scope]
    counted = [(await live(world, each))[PREMIUM].requests for each in (one, two)]
    assert tuple(counted) == expected
    assert one.scope_key == f"ORG#{one.org_id}" + (f"#APP#{APP}" if scope == "APP" else "")


async def test_the_answer_contains_todays_total(metering: Metering, policy: Policy) -> None:
    """At least what this process has counted, the record itself included."""
    for number in range(1, 4):
        recorded = await metering.record(policy, a_usage())
        assert isinstance(recorded.daily_total, Total)
        assert recorded.daily_total.requests == number
        assert recorded.daily_total.cost_usd_picos == number * COST_USD_PICOS


async def test_a_batch_is_answered_in_order_and_record_by_record(world: World) -> None:
    """Good ones count; bad ones say why; a repetition inside the batch is a duplicate."""
    before, twice = a_usage(), a_usage()
    await world.record(before)
    batch = [
        a_usage(),
        a_usage(model_label="unheard-of"),
        twice,
        a_usage("nonsense"),
        twice,
        a_usage(twice.request_id, output_tokens=1),
        before,
        a_usage(input_tokens=-1),
        a_usage(timestamp_ms=0),
        a_usage(model_label=STANDARD),
    ]
    answers = await world.metering.record_many(world.policy, batch)

    assert [told(answer) for answer in answers] == [
        "accepted",
        "INVALID_MODEL_LABEL",
        "accepted",
        "INVALID_VALUE",
        "duplicate",
        "REQUEST_ID_REUSED",
        "duplicate",
        "INVALID_VALUE",
        "INVALID_VALUE",
        "accepted",
    ]
    assert [answer.request_id for answer in answers] == [usage.request_id for usage in batch]
    refused = answers[7]
    assert isinstance(refused, Refused)
    assert "input_tokens" in refused.detail
    counted = await live(world)
    assert {label: total.requests for label, total in counted.items()} == {PREMIUM: 3, STANDARD: 1}


@pytest.mark.parametrize("size", [0, 101])
async def test_a_batch_has_one_to_a_hundred_records(world: World, size: int) -> None:
    """More is a mistake, and so is none."""
    with pytest.raises(InvalidValueError, match="requests"):
        await world.metering.record_many(world.policy, [a_usage() for _ in range(size)])


async def test_tiny_costs_add_up_exactly(world: World) -> None:
    """Fractions of a micro-dollar are kept: the sum of many is that of one big request."""
    policy = a_policy()
    for _ in range(5):
        await world.metering.record_many(
            policy,
            [a_usage(model_label=ECONOMY, input_tokens=1, output_tokens=1) for _ in range(100)],
        )
    small = (await live(world, policy))[ECONOMY]
    big = (
        await world.metering.record(
            policy, a_usage(model_label=ECONOMY, input_tokens=500, output_tokens=500)
        )
    ).receipt
    assert small.cost_usd_picos == big.cost_usd_picos == 500 * (35_001 + 140_003)


async def test_concurrent_records_share_a_write(world: World, meter: StoreMeter) -> None:
    """What arrives together of one organisation and page is written together."""
    other, still = a_policy(), world.clock.now_ms()
    for each in (world.policy, other):
        await world.metering.record_many(each, [a_usage(), a_usage(minted(still))])
    meter.clear()
    await asyncio.gather(
        *(
            world.metering.record(each, a_usage(request_id))
            for _ in range(30)
            for each in (world.policy, other)
            for request_id in (None, minted(still))
        )
    )
    assert meter.calls == {"put": 60, "update": 4}


def test_the_largest_record_is_one_write_unit() -> None:
    """Under 1 KB with the longest names and the largest numbers there can be, without tags."""
    policy, most = a_policy(AppId("a" * 64)), 10**9 - 1
    names = ("l" * 64, "20260123", "t" * 32, "f" * 16, "s" * SOURCE_LENGTH_MAX, "r" * 32)
    terms = encode_terms(Terms(policy.scope_key, "a" * 64, *names))
    entry = JournalEntry(
        b"f" * 16, b"c" * NONCE_BYTES, 1_768_000_000_123, most, terms.ref, 3, 2**63, most, most,
        most, most, most, str(uuid.uuid4()),
    )  # fmt: skip
    address = address_at(entry.request_id, entry.sent_at_ms)
    page = page_key(policy.org_id, address.region, 7, address.digits)
    item = {**page.attributes, "n": 64, "expires_at_epoch": 1_800_000_000}
    assert item_bytes(item | {address.name: encode_entry(entry), terms.name: terms.data}) < 1024


async def test_an_id_without_a_time_is_remembered_for_four_days(world: World) -> None:
    """By its moment, which counts nothing by itself."""
    usage = a_usage()
    recorded = await world.record(usage)
    moment = await moment_of(world.store, world.policy, usage.request_id)
    assert moment is not None
    assert moment["minted_ms"] <= recorded.receipt.accepted_at_ms
    lives_secs = moment["expires_at_epoch"] - moment["minted_ms"] // 1000
    assert lives_secs == MOMENT_LIFE_SECS
