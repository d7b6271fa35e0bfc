"""What a failed model call costs: nothing only where Bedrock itself refused it, else unknown.

Bedrock is a stand-in that the real botocore calls, the service is the real one.
"""

import asyncio
from collections.abc import Callable, Iterator
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
from client.conftest import ORG_BODY, Acme
from client.money import BUDGET, Money, money_of
from client.waiting import until
from pricekeeper.bedrock.refusals import CALLS, REFUSAL_CODES, is_free_refusal
from pricekeeper.client import AsyncPriceKeeper, ModelCall
from pricekeeper.errors import InvalidValueError

HOUR_MS = 3_600_000
MOST = Money(0, (3_000 * 4_400_000 + 1_000 * 22_000_000) // 1_000_000)
NOTHING = Money(0, 0)


@pytest.fixture(autouse=True)
async def a_budget(acme: Acme) -> None:
    async with acme.admin() as admin:
        await admin.put_org(acme.org_id, {**ORG_BODY, "budgets": [BUDGET]})


@pytest.fixture
def bedrock() -> Iterator[Bedrock]:
    with running_bedrock() as bedrock:
        yield bedrock


async def end_with(
    keeper: AsyncPriceKeeper, kind: type[BaseException], *steps: Callable[[ModelCall], Any]
) -> tuple[ModelCall, Money]:
    """Run a call's block that ends with this error; returns what it comes to."""
    call = keeper.call(3_000, 1_000)

    async def block() -> None:
        async with call:
            for step in steps:
                step(call)

    with pytest.raises(kind) as caught:
        await block()
    told = getattr(caught.value, "__notes__", [""])[0]
    assert ("is unknown" in told) is call.usage_unknown
    assert await keeper.flush() == 0
    return call, await money_of(keeper)


def raise_error(_: object) -> None:
    raise KeyError("before the call")


@pytest.mark.parametrize("code", REFUSALS)
async def test_what_bedrock_itself_refused_is_free(
    keeper: AsyncPriceKeeper, bedrock: Bedrock, code: str
) -> None:
    call, money = await end_with(keeper, ClientError, lambda _: bedrock.converse(code))

    assert (call.usage_unknown, money) == (False, NOTHING)
    shown = await keeper.authorization(call.authorization.id)
    assert (shown["status"], shown["void_reason"]) == ("voided", "Bedrock refused the call")


async def test_a_stream_that_was_refused_before_it_began_is_free(
    keeper: AsyncPriceKeeper, bedrock: Bedrock
) -> None:
    call, money = await end_with(
        keeper, ClientError, lambda _: bedrock.converse_stream("ThrottlingException")
    )

    assert (call.usage_unknown, money) == (False, NOTHING)


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
    keeper: AsyncPriceKeeper,
    bedrock: Bedrock,
    fail: Callable[[Bedrock], None],
    kind: type[BaseException],
) -> None:
    """Bedrock may bill the call in full, so the hold stays and the caller gets a note."""
    call, money = await end_with(keeper, kind, lambda _: fail(bedrock))

    assert (call.usage_unknown, bedrock.calls, money) == (True, 1, MOST)


async def test_what_nobody_knows_is_charged_in_the_end(
    acme: Acme, keeper: AsyncPriceKeeper
) -> None:
    call, _ = await end_with(keeper, KeyError, raise_error)
    acme.clock.pass_ms(HOUR_MS)

    async def is_charged() -> bool:
        return await money_of(keeper) == Money(0, 0, MOST.held)

    await until(is_charged)
    shown = await keeper.authorization(call.authorization.id)
    assert shown["status"] == "unsettled"


async def test_a_call_that_botocore_repeated_is_unknown(keeper: AsyncPriceKeeper) -> None:
    """The last attempt was refused; the fate of earlier ones is unknown."""
    with running_bedrock(attempts=2) as bedrock:
        call, money = await end_with(
            keeper, ClientError, lambda _: bedrock.converse(THROTTLED_AT_LAST)
        )
        assert bedrock.calls == 2

    assert (call.usage_unknown, money) == (True, MOST)


async def test_a_cancelled_call_is_unknown(keeper: AsyncPriceKeeper) -> None:
    """Cancelling does not stop the model."""
    call, inside = keeper.call(3_000, 1_000), asyncio.Event()

    async def one_call() -> None:
        async with call:
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(one_call())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task

    assert "is unknown" in caught.value.__notes__[0]
    assert (call.usage_unknown, await money_of(keeper)) == (True, MOST)


async def test_who_does_not_say_what_it_used_is_told(keeper: AsyncPriceKeeper) -> None:
    call = keeper.call(3_000, 1_000)
    with pytest.raises(InvalidValueError, match=r"call\.used"):
        async with call:
            pass

    assert (call.usage_unknown, await money_of(keeper)) == (True, MOST)


async def test_what_was_said_counts_and_not_the_bound(
    keeper: AsyncPriceKeeper, bedrock: Bedrock
) -> None:
    call, money = await end_with(
        keeper, KeyError, lambda call: call.used(bedrock.converse("whole")), raise_error
    )

    cost_usd_micros = (1_000 * 4_400_000 + 100 * 22_000_000) // 1_000_000
    assert (call.usage_unknown, money) == (False, Money(cost_usd_micros, 0))


async def test_who_never_called_the_model_may_say_so(keeper: AsyncPriceKeeper) -> None:
    call, money = await end_with(keeper, KeyError, ModelCall.used_nothing, raise_error)
    async with keeper.call(3_000, 1_000) as again:
        again.used_nothing()
    assert await keeper.flush() == 0

    assert (call.usage_unknown, again.usage_unknown, money) == (False, False, NOTHING)
    assert await money_of(keeper) == NOTHING


def test_an_error_inside_a_stream_is_never_free() -> None:
    """Even if a version of botocore gives it a status and code like those of an answer."""
    told: Any = {
        "Error": {"Code": "ThrottlingException", "Message": "slow down"},
        "ResponseMetadata": {"HTTPStatusCode": 429},
    }
    assert is_free_refusal(ClientError(told, "ConverseStream"))
    assert not is_free_refusal(EventStreamError(told, "ConverseStream"))


def test_the_refusals_are_those_of_bedrocks_own_model() -> None:
    """All errors in botocore's model of Bedrock, except the one inside a stream."""
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    named = {error.name for name in CALLS for error in service.operation_model(name).error_shapes}
    assert named - {"ModelStreamErrorException"} == REFUSAL_CODES
