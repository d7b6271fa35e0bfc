"""Usage over a real socket where time passes or the store fails: served in this process."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from http_fixtures import Tenant, store_url, usage
from metering.scripted_store import ScriptedStore, fails
from minting import minted
from pricekeeper.bootstrap import services
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError
from pricekeeper.http import runtime as batch
from pricekeeper.metering import GROUP_RECORDS, Usage
from pricekeeper.settings import StoreLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.usecases.runtime import usage_of
from pricekeeper.wire.runtime import UsageBody
from served import served
from stores import ShiftedClock


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def wires() -> list[ScriptedStore]:
    """The stores that were opened: a test writes down what befalls their transactions."""
    return []


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def tenant(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    clock: ShiftedClock,
    wires: list[ScriptedStore],
) -> Iterator[Tenant]:
    folder = tmp_path_factory.mktemp("served")

    async def open_wired(where: StoreLocation, **more: Any) -> Store:
        wires.append(ScriptedStore(await open_store(where, **more)))
        return wires[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "open_store", open_wired)
        store = store_url(request, request.param, folder)
        with served(folder, clock=clock, store=store) as api:
            yield Tenant(api).register()


async def test_a_batch_is_parsed_in_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten records per turn of the loop, so that other requests are answered in between."""
    in_turn = [0]

    def counted_usage_of(body: UsageBody) -> Usage:
        if not in_turn[-1]:
            asyncio.get_running_loop().call_soon(in_turn.append, 0)
        in_turn[-1] += 1
        return usage_of(body)

    monkeypatch.setattr(batch, "usage_of", counted_usage_of)
    parsed = await batch._parse_each([usage() for _ in range(95)])
    assert [type(one) for one in parsed] == [Usage] * 95
    assert [count for count in in_turn if count] == [GROUP_RECORDS] * 9 + [5]


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_record_that_has_become_too_old_is_answered_as_a_duplicate(
    tenant: Tenant, clock: ShiftedClock
) -> None:
    """Two seconds short of 24 h it counts; a minute later it is the same record, not a bad one."""
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    record = usage(timestamp=timestamp(now - timedelta(hours=24) + timedelta(seconds=30)))
    first = tenant.record(record)
    clock.shift_ms += 60_000
    again = tenant.record(record)
    assert (first.status, again.status) == (202, 202)
    assert (first.json["status"], again.json["status"]) == ("accepted", "duplicate")
    for name in ("cost_usd_micros", "pricing_version", "shard_id", "org_day"):
        assert first.json[name] == again.json[name]

    changed = {**record, "output_tokens": 501}
    new = {**record, "request_id": str(uuid.uuid4())}
    refused = tenant.record(changed)
    assert (refused.status, refused.code) == (409, "REQUEST_ID_REUSED")
    refused = tenant.record(new)
    assert (refused.status, refused.json["errors"][0]["field"]) == (400, "timestamp")
    reply = tenant.record_many(record, changed, new)
    assert reply.status == 207
    codes = [result.get("code") for result in reply.json["results"]]
    assert codes == [None, "REQUEST_ID_REUSED", "INVALID_REQUEST"]
    assert (reply.json["duplicates"], reply.json["failed"]) == (1, 2)
    assert "retry-after" not in reply.headers


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("scripted"), OutcomeUnknownError("scripted")], ids=repr
)
def test_a_batch_of_which_the_store_took_nothing_is_to_be_sent_again(
    tenant: Tenant, wires: list[ScriptedStore], error: StoreUnavailableError | OutcomeUnknownError
) -> None:
    """As a whole, and the answer says when: 503, not a hundred failures inside a 207."""
    batch = [usage() for _ in range(100)]
    wires[-1].script.extend([fails(error)] * 12)  # more sendings than two commits are given
    reply = tenant.record_many(*batch)
    wires[-1].script.clear()
    assert (reply.status, reply.code) == (503, "STORE_UNAVAILABLE")
    assert int(reply.headers["retry-after"]) >= 1
    again = tenant.record_many(*batch)
    assert (again.status, again.json["accepted"]) == (207, 100)


def test_a_batch_of_which_the_store_took_a_part_says_when_to_send_the_rest(
    tenant: Tenant, wires: list[ScriptedStore]
) -> None:
    """A hundred records of two moments are two updates; one of them fails."""
    tenant.record()
    now_ms = time.time_ns() // 1_000_000
    batch = [usage(request_id=minted(now_ms - 100 * (number % 2))) for number in range(100)]
    wires[-1].script.append(fails(StoreUnavailableError("scripted")))
    reply = tenant.record_many(*batch)
    assert (reply.status, reply.json["accepted"], reply.json["failed"]) == (207, 50, 50)
    codes = [result["code"] for result in reply.json["results"] if result["status"] == "failed"]
    assert codes == ["STORE_UNAVAILABLE"] * 50
    assert int(reply.headers["retry-after"]) >= 1
    again = tenant.record_many(*batch)
    assert (again.json["accepted"], again.json["duplicates"]) == (50, 50)
    assert "retry-after" not in again.headers


def test_a_record_beyond_belief_is_refused(tenant: Tenant) -> None:
    """400 names the field, in a batch record by record; nothing of it is counted."""
    names = ("input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens")
    counts = dict.fromkeys(names, 10**9)
    bad = [
        (usage(**counts, output_tokens=10**9), "input_tokens"),
        (usage(output_tokens=2_000_000), "output_tokens"),
        (usage(cache_read_tokens=20_000_000), "cache_read_tokens"),
        (usage(input_tokens=5_000_000, cache_write_1h_tokens=6_000_000), "cache_write_1h_tokens"),
    ]
    for record, field in bad:
        reply = tenant.record(record)
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
        assert [error["field"] for error in reply.json["errors"]] == [field]
    good = usage(input_tokens=200_000, cache_read_tokens=800_000, output_tokens=128_000)
    reply = tenant.record_many(*(record for record, _ in bad), good)
    assert (reply.json["accepted"], reply.json["failed"]) == (1, 4)
    for result, (_, field) in zip(reply.json["results"], bad, strict=False):
        assert result["code"] == "INVALID_REQUEST"
        assert result["detail"].startswith(f"{field}: ")
