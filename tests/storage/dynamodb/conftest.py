"""The adapter on a real engine, an unreliable wire in between, pauses that take no time."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random

import pytest

from fault_proxy import Fault, FaultProxy
from pricekeeper.clock import SystemClock
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Key
from pricekeeper.storage.dynamodb.client import Limits
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.telemetry import StoreMeter

REGION = "us-east-1"


class TestClock(SystemClock):
    """Real time that a test can move; pauses between attempts are noted and not waited for."""

    __slots__ = ("before_waking", "pauses_ms", "shift_ms")
    __test__ = False

    def __init__(self) -> None:
        self.shift_ms = 0
        self.pauses_ms: list[int] = []
        self.before_waking: Callable[[], Awaitable[None]] | None = None

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + sum(self.pauses_ms)

    async def sleep_ms(self, duration_ms: int) -> None:
        self.pauses_ms.append(duration_ms)
        await asyncio.sleep(0)
        if self.before_waking is not None:
            await self.before_waking()

    def now_epoch(self) -> int:
        return self.now_ms() // 1000


class Opener:
    """Opens stores and sees to it that they are closed."""

    def __init__(self, prefix: str, stack: AsyncExitStack) -> None:
        self._prefix = prefix
        self._stack = stack

    async def __call__(
        self,
        endpoint: str,
        *,
        clock: TestClock | None = None,
        meter: StoreMeter | None = None,
        limits: Limits | None = None,
    ) -> DynamoDbStore:
        store = await DynamoDbStore.open(
            DynamoDbLocation(REGION, self._prefix, endpoint),
            clock=clock or TestClock(),
            meter=meter or StoreMeter(),
            limits=limits or Limits(),
            randomness=Random(7),
        )
        self._stack.push_async_callback(store.close)
        return store


async def _create_tables(location: DynamoDbLocation) -> None:
    store = await DynamoDbStore.open(location, clock=SystemClock(), meter=StoreMeter())
    await store.create_tables()
    await store.close()


@pytest.fixture(scope="session")
def prefix(dynamodb_local: str) -> str:
    """Tables of this session's own."""
    prefix = f"adapter-{uuid.uuid4().hex[:8]}-"
    asyncio.run(_create_tables(DynamoDbLocation(REGION, prefix, dynamodb_local)))
    return prefix


@pytest.fixture
async def opener(prefix: str) -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:
        yield Opener(prefix, stack)


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def meter() -> StoreMeter:
    return StoreMeter()


@pytest.fixture
async def proxy(dynamodb_local: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(dynamodb_local) as proxy:
        yield proxy


@pytest.fixture
async def store(
    opener: Opener, proxy: FaultProxy, clock: TestClock, meter: StoreMeter
) -> DynamoDbStore:
    """A store whose every request passes the proxy."""
    return await opener(proxy.endpoint, clock=clock, meter=meter)


@pytest.fixture
async def impatient(
    opener: Opener,
    proxy: FaultProxy,
    clock: TestClock,
    meter: StoreMeter,
    request: pytest.FixtureRequest,
) -> DynamoDbStore:
    """The same, but it does not wait long for a silent engine, if silence is what is tested.

    Otherwise it does: on a busy machine a short timeout would be an unintended fault.
    """
    callspec = getattr(request.node, "callspec", None)
    fault = callspec.params.get("fault") if callspec is not None else None
    short = fault in (None, Fault.STALL_AFTER)
    limits = Limits(connect_timeout_ms=500, total_timeout_ms=600 if short else 10_000)
    return await opener(proxy.endpoint, clock=clock, meter=meter, limits=limits)


@pytest.fixture
async def direct(opener: Opener, dynamodb_local: str, clock: TestClock) -> DynamoDbStore:
    """A store beside the proxy, to see what really happened."""
    return await opener(dynamodb_local, clock=clock)


@pytest.fixture
def key() -> Key:
    """A fresh key."""
    return Key(uuid.uuid4().hex, "1")
