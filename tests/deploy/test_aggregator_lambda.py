"""The aggregator as a Lambda function: warm between events, honest about what it left behind."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from alerts.conftest import COST_USD_MICROS, Instance, Org, budget
from authorizations.conftest import Instance as AuthorizingInstance
from authorizations.conftest import a_budget
from deploy.conftest import DEPLOY
from deploy.policies import Policy, permissions
from deploy.stacks import filled_in, read_template
from fault_proxy import Canned, FaultProxy
from metering.conftest import CATALOGUE, COST_USD_PICOS, a_policy, a_usage
from pricekeeper.cli import aggregator_lambda
from pricekeeper.cli.aggregator_lambda import WarmAggregator, handler
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.errors import StoreFormatError, StoreMisconfiguredError, StoreUnavailableError
from pricekeeper.ledger.log import CHAPTER_MS
from pricekeeper.metering import AggregationReport, Counters, Metering, org_day
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import total_from, total_key
from pricekeeper.metering.journal_items import Repair, repair_put
from pricekeeper.pricing import PriceBook
from pricekeeper.settings import DynamoDbLocation, SqliteLocation
from pricekeeper.storage import Put, Store, open_store
from pricekeeper.storage.format import FORMAT_KEY, FORMAT_VERSION
from pricekeeper.storage.tables import ALL_TABLES, CONFIG
from stored_items import on_store

_Result = TypeVar("_Result")

TEMPLATE = DEPLOY / "aggregator.template.yaml"
TWO_EVENTS = """
import json
from pricekeeper.cli.aggregator_lambda import handler
print(json.dumps([handler({"any": "event"}, None), handler({}, None)]))
"""


class Invoker:
    """Lambda, as far as it matters: one thread, one call at a time, silence in between."""

    def __init__(self, warm: WarmAggregator, thread: ThreadPoolExecutor) -> None:
        self.warm = warm
        self._thread = thread

    async def __call__(self) -> AggregationReport:
        return await self._in_thread(self.warm.run_once)

    async def handle(self) -> dict[str, Any]:
        return await self._in_thread(lambda: handler({}, None))

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def location(proxy: FaultProxy, prefix: str) -> DynamoDbLocation:
    return DynamoDbLocation("us-east-1", prefix, proxy.endpoint)


@pytest.fixture
async def store(dynamodb_local: str, prefix: str) -> AsyncIterator[Store]:
    """The tables, which are there before the function is; the proxy sees nothing of this one."""
    location = DynamoDbLocation("us-east-1", prefix, dynamodb_local)
    store = await open_store(location, clock=SystemClock())
    await store.create_tables()
    yield store
    await store.close()


@pytest.fixture
async def invoke(
    location: DynamoDbLocation,
    store: Store,
    thread: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Invoker]:
    """A function that has not been called yet."""
    warm = WarmAggregator(location)
    monkeypatch.setattr(aggregator_lambda, "warm_aggregator", lambda: warm)
    yield Invoker(warm, thread)
    await asyncio.get_running_loop().run_in_executor(thread, warm.close)


async def count_a_request(store: Store) -> Account:
    """Count a usage record."""
    clock, policy = SystemClock(), a_policy()
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE))
    recorded = await metering.record(policy, a_usage())
    await metering.close()
    return recorded.receipt.account


async def total_of(store: Store, account: Account) -> Counters:
    return total_from(await store.get(*total_key(account))).counters


ONE_RECORD = Counters(COST_USD_PICOS, 1_000, 500, requests=1)


def test_the_handler_aggregates_once_per_event(tmp_path: Path) -> None:
    """In a process of its own, with settings from the environment; the answers are JSON."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    account = on_store(url, prepare)
    no_folder = tmp_path / "data"

    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", TWO_EVENTS],
        env={
            **os.environ,
            "PRICEKEEPER_STORE": url,
            "PRICEKEEPER_DATA_DIR": str(no_folder),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert (first["accounts"], first["written"], first["failed"]) == (1, 1, 0)
    assert (second["accounts"], second["written"], second["failed"]) == (1, 0, 0)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["aggregation"] * 2
    assert on_store(url, lambda store: total_of(store, account)) == ONE_RECORD
    assert not no_folder.exists(), "a function has nowhere to write, and needs no keys"


async def prepare(store: Store) -> Account:
    """Make the tables, and count a record in them."""
    await store.create_tables()
    return await count_a_request(store)


async def test_the_store_is_opened_by_the_first_event_alone(
    invoke: Invoker, store: Store, proxy: FaultProxy
) -> None:
    """The second event finds it open, down to the connection, and sees what came in between."""
    await count_a_request(store)
    await invoke()
    connections = set(proxy._connections)
    account = await count_a_request(store)

    report = await invoke()

    assert report.written == 1
    assert await total_of(store, account) == ONE_RECORD
    assert connections
    assert set(proxy._connections) >= connections


async def test_connections_that_died_while_frozen_do_not_matter(
    invoke: Invoker, store: Store, proxy: FaultProxy
) -> None:
    """The next event meets dead connections, and aggregates all the same."""
    await invoke()
    await proxy.down()
    await proxy.up()
    account = await count_a_request(store)

    report = await invoke()

    assert (report.written, report.failed) == (1, 0)
    assert await total_of(store, account) == ONE_RECORD


def test_what_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    """One event that fails at opening does not spoil the process for the next."""
    in_the_way = tmp_path / "folder"
    in_the_way.write_text("no folder")
    location = SqliteLocation(str(in_the_way / "store.db"))
    warm = WarmAggregator(location)
    with pytest.raises(StoreMisconfiguredError):
        warm.run_once()
    in_the_way.unlink()
    on_store(f"sqlite:///{location.path}", prepare)

    assert warm.run_once().written == 1

    warm.close()


async def test_accounts_left_behind_are_an_error_of_the_invocation(
    invoke: Invoker, store: Store, proxy: FaultProxy
) -> None:
    """The result of a scheduled function is not read, but its errors raise an alarm."""
    account = await count_a_request(store)
    proxy.next("PutItem", Canned({"__type": "com.amazon.coral.service#AccessDeniedException"}))

    with pytest.raises(StoreUnavailableError, match=r"1 of 1 totals .* AccessDeniedException"):
        await invoke.handle()

    report = await invoke.handle()
    assert (report["written"], report["failed"]) == (1, 0)
    assert await total_of(store, account) == ONE_RECORD


async def test_an_authorization_that_could_not_be_charged_is_one_too(
    invoke: Invoker, store: Store, proxy: FaultProxy
) -> None:
    """The next run charges it."""
    await leave_an_authorization(store)
    proxy.next("PutItem", Canned({"__type": "com.amazon.coral.service#AccessDeniedException"}))

    with pytest.raises(StoreUnavailableError, match="authorizations of 1 region"):
        await invoke.handle()

    assert (await invoke.handle())["expired"] == 1


async def leave_an_authorization(store: Store) -> None:
    """An instance grants it and is gone, and then it expires.

    That was so long ago that its chapter of the log is over, and the next writer files it.
    """
    gone = AuthorizingInstance(store, ManualClock(SystemClock().now_ms() - 2 * CHAPTER_MS))
    await gone.authorize(a_policy(budgets=(a_budget(),)), hold_secs=10)
    await gone.close()


async def test_a_store_of_another_format_is_refused_until_it_is_migrated(
    invoke: Invoker, store: Store
) -> None:
    """Each event looks again; totals are left alone."""
    account = await count_a_request(store)
    version = {**FORMAT_KEY.attributes, "version": FORMAT_VERSION + 1}
    await store.put(Put(CONFIG, version))
    for _ in range(2):
        with pytest.raises(StoreFormatError, match="install the version"):
            await invoke.handle()
    assert (await total_of(store, account)).requests == 0
    await store.put(Put(CONFIG, {**version, "version": FORMAT_VERSION}))
    assert (await invoke.handle())["written"] == 1


async def test_the_functions_role_grants_exactly_what_it_needs(
    invoke: Invoker, store: Store, proxy: FaultProxy, prefix: str
) -> None:
    """On each table: what three runs do is allowed, and nothing else is.

    The first one opens an empty store. The others meet records with a threshold that they cross, a
    day to repair, and an authorization of an instance that is gone.
    """
    policy = role_policy(prefix)
    await invoke()
    await count_a_request(store)
    instance, clock = Instance(store, SystemClock()), SystemClock()
    org = Org(instance, clock)
    quotas = {**org.settings["quotas"], "premium": COST_USD_MICROS}
    await org.configure(budgets=[budget(COST_USD_MICROS, 100)], quotas=quotas)
    await org.add_channel("https://8.8.8.8/")
    await org.spend()
    today = org_day("UTC", clock.now_ms())
    await store.put(repair_put(Repair(org.id, today), "nonce", clock.now_ms() // 1000 + 3_600))
    await leave_an_authorization(store)

    assert [(await invoke()).expired, (await invoke()).expired] == [1, 0]

    assert [one.state for one in await org.history()] == ["pending"]
    await instance.close()
    needed = permissions(proxy.seen)
    tables = [prefix + table.name for table in ALL_TABLES]
    assert policy.granted(tables) == needed


def test_the_template_names_the_handler() -> None:
    """Lambda imports what the template says."""
    function = read_template(TEMPLATE)["Resources"]["Function"]["Properties"]
    module, _, name = function["Handler"].rpartition(".")

    assert (module, name) == (handler.__module__, handler.__name__)


def role_policy(prefix: str) -> Policy:
    """The role's permissions for DynamoDB, as they are in a stack with that prefix."""
    (policy,) = read_template(TEMPLATE)["Resources"]["Role"]["Properties"]["Policies"]
    statements = [
        {**statement, "Resource": filled_in(statement["Resource"]["Fn::Sub"], prefix)}
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Sid"] != "WriteLogs"
    ]
    return Policy({"Statement": statements})
