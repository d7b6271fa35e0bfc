"""When a client logs in: one login for all that wait, and no refused token twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from client.apps import Program
from client.conftest import Acme
from client.scripted import HastyClock, Reply, TokenService
from client.services import running_service
from pricekeeper.cli.demo import demo_settings
from pricekeeper.client import Api, ForbiddenError, RateLimitedError
from pricekeeper.client.tokens import DOUBT_EVERY_MS, PUT_OFF_MAX, REFUSED_MS, UNPROVEN_MS
from pricekeeper.client.transport import RENEWALS_MAX
from pricekeeper.testing import serving
from pricekeeper.wire.runtime import LimitList
from tokens.conftest import MovableClock

ORG = "11111111-1111-4111-8111-111111111111"
AT_ONCE = 10
HOUR_MS = 3_600_000
VIOLATION = {"limit": "requests", "requested": 1, "available": 0, "retry_after_ms": 1_000}
TOO_MANY = Reply(
    429,
    {"code": "RATE_LIMIT_EXCEEDED", "detail": "slow down", "violations": [VIOLATION]},
    {"Retry-After": "1"},
)
WRONG = Reply(401, {"error": "invalid_client", "error_description": "no"})


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
async def service() -> AsyncIterator[TokenService]:
    async with TokenService() as service:
        yield service


@pytest.fixture
async def keeper(service: TokenService, clock: HastyClock) -> AsyncIterator[Api]:
    async with Api(service.url, f"org-{ORG}-app-chat", "secret", clock=clock) as keeper:
        yield keeper


async def results(ask: Callable[[], Awaitable[object]], count: int = AT_ONCE) -> list[object]:
    """What became of that many requests at once."""
    return await asyncio.gather(*(ask() for _ in range(count)), return_exceptions=True)


async def test_many_requests_share_one_login(keeper: Api, service: TokenService) -> None:
    assert await results(keeper.limits) == [LimitList({}, {})] * AT_ONCE
    assert service.asked("/auth/token") == 1


async def test_a_session_that_ended_leads_to_one_quiet_login(
    keeper: Api, service: TokenService
) -> None:
    await keeper.limits()
    service.end_sessions()

    assert await results(keeper.limits) == [LimitList({}, {})] * AT_ONCE
    assert (service.asked("/auth/token"), service.asked("/auth/refresh")) == (2, 0)


async def test_a_dead_token_is_sent_once_by_each_request(
    keeper: Api, service: TokenService
) -> None:
    """Requests under way find out; later ones do not send it."""
    await keeper.limits()
    service.end_sessions()
    before = len(service.used)
    await results(keeper.limits)
    await results(keeper.limits)

    after = service.used[before:]
    assert after.count("at-0") <= AT_ONCE
    assert set(after[after.count("at-0") :]) == {"at-1"}
    assert len(after) == after.count("at-0") + 2 * AT_ONCE


async def test_a_token_that_ended_in_a_sleep_is_renewed(
    keeper: Api, service: TokenService, clock: HastyClock
) -> None:
    """The monotonic clock stood still meanwhile; the session and its slot stay."""
    await keeper.limits()
    clock.jump_ms(HOUR_MS)
    service.end_sessions()
    await keeper.limits()

    assert (service.asked("/auth/token"), service.asked("/auth/refresh")) == (1, 1)


async def test_a_service_that_refuses_every_token_is_believed(
    keeper: Api, service: TokenService
) -> None:
    """After a few tokens, the refusal is the answer."""
    service.dead.update(f"at-{number}" for number in range(100))
    with pytest.raises(ForbiddenError):
        await keeper.limits()

    assert service.used == [f"at-{number}" for number in range(1 + RENEWALS_MAX)]


async def test_a_refused_login_is_one_answer_for_all(
    keeper: Api, service: TokenService, clock: HastyClock
) -> None:
    """A rotated secret does not turn each call into a login."""
    service.logins = [WRONG] * 100
    for _ in range(3):
        refused = await results(keeper.limits)
        assert [type(error) for error in refused] == [ForbiddenError] * AT_ONCE
    assert service.asked("/auth/token") == 1

    clock.advance_ms(REFUSED_MS)
    await results(keeper.limits)
    assert service.asked("/auth/token") == 2


async def test_a_login_that_is_put_off_is_waited_for(
    keeper: Api, service: TokenService, clock: HastyClock
) -> None:
    service.logins = [TOO_MANY] * PUT_OFF_MAX
    assert await results(keeper.limits) == [LimitList({}, {})] * AT_ONCE

    assert service.asked("/auth/token") == PUT_OFF_MAX + 1
    assert [1_000 <= pause_ms < 1_100 for pause_ms in clock.pauses_ms] == [True] * PUT_OFF_MAX


async def test_a_login_that_is_put_off_for_long_is_told(
    keeper: Api, service: TokenService, clock: HastyClock
) -> None:
    service.logins = [Reply(429, TOO_MANY.body, {"Retry-After": "60"})]
    for _ in range(3):
        refused = await results(keeper.limits)
        assert [type(error) for error in refused] == [RateLimitedError] * AT_ONCE
    assert (service.asked("/auth/token"), clock.pauses_ms) == (1, [])

    clock.advance_ms(60_000)
    await keeper.limits()


async def test_a_login_is_not_put_off_for_ever(keeper: Api, service: TokenService) -> None:
    service.logins = [TOO_MANY] * 100
    with pytest.raises(RateLimitedError):
        await keeper.limits()

    assert service.asked("/auth/token") == PUT_OFF_MAX + 1


async def test_a_429_that_hides_a_refused_token_is_found_out(
    keeper: Api, service: TokenService, clock: HastyClock
) -> None:
    """An address with many refused tokens gets 429: the client logs in again once a minute."""
    await keeper.limits()
    service.end_sessions()
    service.refusal = TOO_MANY
    with pytest.raises(RateLimitedError):
        await keeper.limits()  # it was accepted a moment ago, so this is a real limit
    clock.advance_ms(UNPROVEN_MS)
    await keeper.limits()
    assert service.asked("/auth/token") == 2

    service.end_sessions()
    clock.advance_ms(UNPROVEN_MS)
    with pytest.raises(RateLimitedError):
        await keeper.limits()
    clock.advance_ms(DOUBT_EVERY_MS - UNPROVEN_MS)
    await keeper.limits()
    assert service.asked("/auth/token") == 3


async def test_who_is_cancelled_does_not_end_the_login_of_the_others(
    keeper: Api, service: TokenService
) -> None:
    impatient = asyncio.create_task(keeper.limits())
    patient = asyncio.create_task(keeper.limits())
    await asyncio.sleep(0)
    impatient.cancel()

    assert (await patient).resources == {}
    assert impatient.cancelled()
    assert service.asked("/auth/token") == 1


async def test_who_closes_meanwhile_leaves_no_session(service: TokenService) -> None:
    keeper = Api(service.url, f"org-{ORG}-app-chat", "secret", clock=HastyClock())
    asking = asyncio.create_task(keeper.limits())
    await asyncio.sleep(0)
    asking.cancel()
    await keeper.close()

    assert (service.asked("/auth/token"), service.asked("/auth/revoke")) == (1, 1)


async def test_a_revoked_session_of_the_real_service(tmp_path: Path) -> None:
    """Ten calls at once after its end cause one login, and none is refused."""
    clock, settings = MovableClock(), demo_settings(tmp_path)
    with serving.running_service(settings, clock) as url:
        acme = Acme(url, settings.provisioning_key or "", clock, tmp_path)
        await acme.register()
        async with acme.api() as keeper:
            await keeper.limits()
            await keeper.end_sessions()
            answers = await results(keeper.limits)
            assert [type(answer) for answer in answers] == [LimitList] * AT_ONCE
            assert keeper.tokens is not None
            assert (keeper.tokens.logins, keeper.tokens.renewals) == (2, 0)


CALLS = 30
PROCESS = """
import asyncio, collections, json, sys
from pricekeeper.cli.demo import demo_settings
from pricekeeper.client import Api, ServiceError

async def main():
    outcomes = collections.Counter()
    async with Api.from_environment() as keeper:
        await keeper.limits()
        print("ready", flush=True)
        for _ in range(int(sys.stdin.readline())):
            try:
                await keeper.record("premium", 1, 1)
            except ServiceError as error:
                outcomes[f"{error.status} {error.code}"] += 1
            else:
                outcomes["recorded"] += 1
        print(json.dumps(outcomes))

asyncio.run(main())
"""


@pytest.mark.slow
async def test_eight_processes_of_one_app_work(tmp_path: Path) -> None:
    """Five sessions for all: each is pushed out, logs in again, and is not refused."""
    with running_service(tmp_path) as service:
        app = await service.register(tmp_path / "spool")
        processes = [Program(PROCESS, app) for _ in range(8)]
        assert {process.hear() for process in processes} == {"ready"}
        for process in processes:
            process.say(str(CALLS))
        printed = [process.end() for process in processes]

    assert printed == [[json.dumps({"recorded": CALLS})]] * 8
