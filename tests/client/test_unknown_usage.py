"""What a failed model call costs: nothing only where Bedrock itself refused it, else unknown.

Bedrock is the stand-in, called by the real botocore; the service is the real one.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EventStreamError,
    ReadTimeoutError,
)

from client.conftest import ORG_BODY, Acme
from client.money import BUDGET, COST_USD_MICROS, Money, money_of
from client.waiting import until
from pricekeeper.bedrock.refusals import CALLS, REFUSAL_CODES, is_free_refusal
from pricekeeper.client import AsyncPriceKeeper, ModelCall
from pricekeeper.errors import InvalidValueError
from pricekeeper.standin import running

HOUR_MS = 3_600_000
MOST = Money(0, (3_000 * 4_400_000 + 1_000 * 22_000_000) // 1_000_000)
NOTHING = Money(0, 0)
REFUSALS = [
    "ThrottlingException",
    "ValidationException",
    "AccessDeniedException",
    "ExpiredTokenException",
    "ServiceUnavailableException",
    "ModelNotReadyException",
]
"""What Bedrock may answer before any output."""


@pytest.fixture(autouse=True)
async def a_budget(acme: Acme) -> None:
    async with acme.admin() as admin:
        await admin.put_org(acme.org_id, {**ORG_BODY, "budgets": [BUDGET]})


class Bedrock:
    """botocore's clients of the stand-in."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[Any] = []

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def converse(self, **script: Any) -> Any:
        """Call a model, with what is to happen."""
        return self._ask("converse", script)

    def converse_stream(self, **script: Any) -> Any:
        return self._ask("converse_stream", script)["stream"]

    def _ask(self, operation: str, script: dict[str, Any]) -> Any:
        attempts = script.pop("attempts", 1)
        silent = script.get("fate") == "silent"  # it never answers, so why wait
        config = Config(
            read_timeout=0.05 if silent else 60,
            retries={"total_max_attempts": attempts},
        )
        client = botocore.session.get_session().create_client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=self._url,
            aws_access_key_id="AKIDEXAMPLE",
            aws_secret_access_key="example",
            config=config,
        )
        self._clients.append(client)
        used = {"input_tokens": 1_000, "output_tokens": 100, **script}
        said = [{"role": "user", "content": [{"text": f"[[standin {json.dumps(used)}]]"}]}]
        return getattr(client, operation)(modelId="us.anthropic.claude-opus-5-5", messages=said)


@pytest.fixture
def bedrock() -> Iterator[Bedrock]:
    with running() as standin, closing(Bedrock(standin.url)) as bedrock:
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
    call, money = await end_with(keeper, ClientError, lambda _: bedrock.converse(fate=code))

    assert (call.usage_unknown, money) == (False, NOTHING)
    shown = await keeper.authorization(call.authorization.id)
    assert (shown["status"], shown["void_reason"]) == ("voided", "Bedrock refused the call")


async def test_a_stream_that_was_refused_before_it_began_is_free(
    keeper: AsyncPriceKeeper, bedrock: Bedrock
) -> None:
    call, money = await end_with(
        keeper, ClientError, lambda _: bedrock.converse_stream(fate="ThrottlingException")
    )

    assert (call.usage_unknown, money) == (False, NOTHING)


def _broken_stream(bedrock: Bedrock) -> None:
    for _ in bedrock.converse_stream(fate="breaks-off"):
        pass


def _abandoned_stream(bedrock: Bedrock) -> None:
    with closing(bedrock.converse_stream()) as stream:
        for _ in stream:
            raise KeyboardInterrupt


def _own_mistake(bedrock: Bedrock) -> None:
    assert bedrock.converse()["usage"]
    raise KeyError("ours")


def _another_service(bedrock: Bedrock) -> None:
    """An answer that looks like Bedrock's, of a service that is not Bedrock."""
    assert bedrock.converse()["usage"]
    told: Any = {
        "Error": {"Code": "ThrottlingException", "Message": "slow down"},
        "ResponseMetadata": {"HTTPStatusCode": 429, "RetryAttempts": 0},
    }
    raise ClientError(told, "PutItem")


UNKNOWN: dict[str, tuple[Callable[[Bedrock], Any], type[BaseException]]] = {
    "read timeout": (lambda bedrock: bedrock.converse(fate="silent"), ReadTimeoutError),
    "hung up": (lambda bedrock: bedrock.converse(fate="hangs-up"), ConnectionClosedError),
    "a gateway's answer": (lambda bedrock: bedrock.converse(fate="gateway-504"), ClientError),
    "broken stream": (_broken_stream, EventStreamError),
    "abandoned stream": (_abandoned_stream, KeyboardInterrupt),
    "own mistake": (_own_mistake, KeyError),
    "another service": (_another_service, ClientError),
}


@pytest.mark.parametrize(("fail", "kind"), UNKNOWN.values(), ids=UNKNOWN)
async def test_everything_else_is_unknown_and_gives_nothing_back(
    keeper: AsyncPriceKeeper,
    bedrock: Bedrock,
    fail: Callable[[Bedrock], Any],
    kind: type[BaseException],
) -> None:
    """Bedrock may bill the call in full, so the hold stays and the caller gets a note."""
    call, money = await end_with(keeper, kind, lambda _: fail(bedrock))

    assert (call.usage_unknown, money) == (True, MOST)


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


async def test_a_call_that_botocore_repeated_is_unknown(
    keeper: AsyncPriceKeeper, bedrock: Bedrock
) -> None:
    """The last attempt was refused; the fate of earlier ones is unknown."""
    again = {"fate": "ThrottlingException", "attempts": 2}
    call, money = await end_with(keeper, ClientError, lambda _: bedrock.converse(**again))

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
        keeper, KeyError, lambda call: call.used(bedrock.converse()), raise_error
    )

    assert (call.usage_unknown, money) == (False, Money(COST_USD_MICROS, 0))


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
