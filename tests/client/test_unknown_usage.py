"""What a failed model call costs: nothing only where Bedrock itself refused it, else unknown.

Bedrock is a stand-in that the real botocore calls, the service is the real one.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EventStreamError,
    ReadTimeoutError,
)

from client.bedrock import REFUSALS, SILENT, THROTTLED_AT_LAST, Bedrock, running_bedrock
from client.conftest import APP, APP_BODY, Acme
from pricekeeper.bedrock.refusals import CALLS, REFUSAL_CODES, is_free_refusal
from pricekeeper.client import Api, ModelCall
from pricekeeper.errors import InvalidValueError

MINUTE = {"refill_amount": 3, "refill_period_ms": 60_000}
TAKEN = {"rpm": 1, "tpm": 4_000}
WHOLE, LESS = {"rpm": 3, "tpm": 10_000}, {"rpm": 2, "tpm": 6_000}
MOST_USD_MICROS = (3_000 * 4_400_000 + 1_000 * 22_000_000) // 1_000_000


@pytest.fixture(autouse=True)
async def tokens_a_minute(acme: Acme) -> None:
    """The app's buckets: three calls and 10,000 tokens, which hardly refill."""
    limits = {"rpm": {"capacity": 3, **MINUTE}, "tpm": {"capacity": 10_000, **MINUTE}}
    async with acme.admin() as admin:
        await admin.put_app(acme.org_id, APP, {**APP_BODY, "rate_limits": {"*": limits}})


@pytest.fixture
def bedrock() -> Iterator[Bedrock]:
    with running_bedrock() as bedrock:
        yield bedrock


async def left(keeper: Api) -> dict[str, int]:
    """What is in the buckets of the first label."""
    limits = (await keeper.limits())["resources"]["premium"]
    return {name: limit["remaining"] for name, limit in limits.items()}


async def spent(keeper: Api) -> int:
    """What the next record says that the day comes to, the record itself costing nothing."""
    recorded = await keeper.record("premium", 0, 0)
    total: int = recorded.answer["daily_total"]["cost_usd_micros"]
    return total


async def end_with(call: ModelCall, kind: type[BaseException], *steps: Callable[[], Any]) -> None:
    """Do all that in the block of a call, which ends with that error."""

    async def block() -> None:
        async with call:
            for step in steps:
                step()

    with pytest.raises(kind) as caught:
        await block()
    told = getattr(caught.value, "__notes__", [""])[0]
    assert ("not known" in told) is call.usage_unknown


def raise_error(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("code", REFUSALS)
async def test_what_bedrock_itself_refused_is_free(
    keeper: Api, bedrock: Bedrock, code: str
) -> None:
    """The tokens are given back, nothing is recorded, and the caller sees the refusal."""
    call = keeper.call(TAKEN)
    bound, converse = partial(call.at_most, 3_000, 1_000), partial(bedrock.converse, code)
    await end_with(call, ClientError, bound, converse)

    assert (call.usage_unknown, call.recorded) == (False, None)
    assert await left(keeper) == WHOLE
    assert await spent(keeper) == 0


async def test_a_stream_that_was_refused_before_it_began_is_free(
    keeper: Api, bedrock: Bedrock
) -> None:
    """There was no output."""
    call = keeper.call(TAKEN)
    refused = partial(bedrock.converse_stream, "ThrottlingException")
    await end_with(call, ClientError, refused)

    assert (call.usage_unknown, await left(keeper)) == (False, WHOLE)


def _silent(bedrock: Bedrock) -> None:
    bedrock.converse(SILENT)


def _hung_up(bedrock: Bedrock) -> None:
    bedrock.converse("hangs-up")


def _gateway(bedrock: Bedrock) -> None:
    bedrock.converse("gateway")


def _broken_stream(bedrock: Bedrock) -> None:
    for _ in bedrock.converse_stream("breaks-off")["stream"]:
        pass


def _abandoned_stream(bedrock: Bedrock) -> None:
    for _ in bedrock.converse_stream("whole")["stream"]:
        raise KeyboardInterrupt


def _own_mistake(bedrock: Bedrock) -> None:
    assert bedrock.converse("whole")["usage"]
    raise KeyError("ours")


def _another_service(bedrock: Bedrock) -> None:
    """An answer that looks like Bedrock's, of a service that is not Bedrock."""
    assert bedrock.converse("whole")["usage"]
    told: Any = {
        "Error": {"Code": "ThrottlingException", "Message": "slow down"},
        "ResponseMetadata": {"HTTPStatusCode": 429, "RetryAttempts": 0},
    }
    raise ClientError(told, "PutItem")


UNKNOWN: dict[str, tuple[Callable[[Bedrock], None], type[BaseException]]] = {
    "read timeout": (_silent, ReadTimeoutError),
    "hung up": (_hung_up, ConnectionClosedError),
    "a gateway's answer": (_gateway, ClientError),
    "broken stream": (_broken_stream, EventStreamError),
    "abandoned stream": (_abandoned_stream, KeyboardInterrupt),
    "own mistake": (_own_mistake, KeyError),
    "another service": (_another_service, ClientError),
}


@pytest.mark.parametrize(("fail", "kind"), UNKNOWN.values(), ids=UNKNOWN)
async def test_everything_else_is_unknown_and_gives_nothing_back(
    keeper: Api,
    bedrock: Bedrock,
    fail: Callable[[Bedrock], None],
    kind: type[BaseException],
) -> None:
    """Bedrock may bill it in full: the tokens stay taken, and the caller is told."""
    call = keeper.call(TAKEN)
    await end_with(call, kind, partial(fail, bedrock))

    assert (call.usage_unknown, call.recorded) == (True, None)
    assert bedrock.calls == 1
    assert await left(keeper) == LESS


@pytest.mark.parametrize(("fail", "kind"), UNKNOWN.values(), ids=UNKNOWN)
async def test_the_upper_bound_is_recorded_where_it_is_known(
    keeper: Api,
    bedrock: Bedrock,
    fail: Callable[[Bedrock], None],
    kind: type[BaseException],
) -> None:
    """As an error, under the call's own id, and once."""
    call = keeper.call(TAKEN)
    await end_with(call, kind, partial(call.at_most, 3_000, 1_000), partial(fail, bedrock))

    assert call.usage_unknown
    assert call.recorded is not None
    assert call.recorded.request_id == call.request_id
    assert call.recorded.cost_usd_micros == MOST_USD_MICROS
    assert await spent(keeper) == MOST_USD_MICROS
    assert await left(keeper) == LESS


async def test_a_call_that_botocore_repeated_is_unknown(keeper: Api) -> None:
    """The last attempt was refused; what became of those before it, nobody can tell."""
    call = keeper.call(TAKEN)
    with running_bedrock(attempts=2) as bedrock:
        await end_with(call, ClientError, partial(bedrock.converse, THROTTLED_AT_LAST))
        assert bedrock.calls == 2

    assert (call.usage_unknown, await left(keeper)) == (True, LESS)


async def test_a_cancelled_call_is_unknown(keeper: Api) -> None:
    """Who gives up waiting does not stop the model."""
    call, inside = keeper.call(TAKEN), asyncio.Event()

    async def one_call() -> None:
        async with call:
            call.at_most(3_000, 1_000)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(one_call())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task

    assert "not known" in caught.value.__notes__[0]
    assert call.usage_unknown
    assert (await left(keeper), await spent(keeper)) == (LESS, MOST_USD_MICROS)


async def test_who_does_not_say_what_it_used_is_told(keeper: Api) -> None:
    """A stream that was left with a ``break``, for example: the upper bound counts."""
    call = keeper.call(TAKEN)
    with pytest.raises(InvalidValueError, match=r"call\.used"):
        async with call:
            call.at_most(3_000, 1_000)

    assert call.usage_unknown
    assert (await left(keeper), await spent(keeper)) == (LESS, MOST_USD_MICROS)


async def test_what_was_said_counts_and_not_the_bound(keeper: Api, bedrock: Bedrock) -> None:
    """The bound is only for what nobody knows."""
    async with keeper.call(TAKEN) as call:
        call.at_most(3_000, 1_000)
        call.used(bedrock.converse("whole"))

    assert not call.usage_unknown
    assert await spent(keeper) == (1_000 * 4_400_000 + 100 * 22_000_000) // 1_000_000
    assert await left(keeper) == {"rpm": 2, "tpm": 10_000 - 1_500}


async def test_who_never_called_the_model_may_say_so(keeper: Api) -> None:
    """With or without an error; then the tokens are given back."""
    call = keeper.call(TAKEN)
    before = partial(raise_error, KeyError("before the call"))
    await end_with(call, KeyError, call.used_nothing, before)
    async with keeper.call(TAKEN) as again:
        again.at_most(3_000, 1_000)
        again.used_nothing()

    assert (call.usage_unknown, again.usage_unknown) == (False, False)
    assert (await left(keeper), await spent(keeper)) == (WHOLE, 0)


async def test_a_lease_follows_the_same_rule(keeper: Api, bedrock: Bedrock) -> None:
    """It is given back when Bedrock refused, and by who says so, and not for any other failure."""
    with pytest.raises(ReadTimeoutError):
        async with await keeper.acquire("premium", TAKEN):
            bedrock.converse(SILENT)
    assert await left(keeper) == LESS
    with pytest.raises(ClientError):
        async with await keeper.acquire("premium", TAKEN):
            bedrock.converse("ThrottlingException")
    assert await left(keeper) == LESS
    async with await keeper.acquire("premium", TAKEN) as lease:
        await lease.release()
    assert await left(keeper) == LESS


def test_an_error_inside_a_stream_is_never_free() -> None:
    """Also where a version of botocore gives it a status and a code like those of an answer."""
    told: Any = {
        "Error": {"Code": "ThrottlingException", "Message": "slow down"},
        "ResponseMetadata": {"HTTPStatusCode": 429},
    }
    assert is_free_refusal(ClientError(told, "ConverseStream"))
    assert not is_free_refusal(EventStreamError(told, "ConverseStream"))


def test_the_refusals_are_those_of_bedrocks_own_model() -> None:
    """Every error that botocore's model of Bedrock names, but for the one inside a stream."""
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    named = {error.name for name in CALLS for error in service.operation_model(name).error_shapes}
    assert named - {"ModelStreamErrorException"} == REFUSAL_CODES
