"""What `wrap` accepts, and that it changes nothing else."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import botocore.client
import botocore.session
import pytest
from aiobotocore.client import AioBaseClient
from aiobotocore.session import get_session
from botocore.exceptions import ClientError
from botocore.stub import Stubber

import pricekeeper
from pricekeeper import AsyncPriceKeeper, PriceKeeper, wrap
from pricekeeper.client.wrapping import async_streams, wrapper
from pricekeeper.errors import InvalidValueError, SettingsError
from wrapping.faces import SESSION
from wrapping.world import MakeProgram, Program, messages

REGION = {"region_name": "us-east-1"}


def converse(bedrock: Any, **script: Any) -> None:
    bedrock.converse(modelId="auto", messages=messages(**script))


def make_with_boto3(program: Program) -> Any:
    return boto3.client("bedrock-runtime", **program.client_arguments())


def make_with_botocore(program: Program) -> Any:
    session = botocore.session.get_session()
    return session.create_client("bedrock-runtime", **program.client_arguments())


@pytest.mark.parametrize("make", [make_with_boto3, make_with_botocore])
def test_a_client_stays_the_object_that_it_was(
    program: Program, make: Callable[[Program], Any]
) -> None:
    """Frameworks inspect its class, methods and metadata."""
    bedrock = make(program)
    kind, names = type(bedrock), dir(bedrock)
    assert wrap(bedrock, program.keeper) is bedrock
    assert type(bedrock) is kind
    assert dir(bedrock) == names
    assert isinstance(bedrock, botocore.client.BaseClient)
    assert bedrock.meta.service_model.service_name == "bedrock-runtime"
    converse(bedrock)
    program.assert_exact()
    assert len(program.records()) == 1
    bedrock.close()


def test_wrapping_twice_counts_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    authorize, asked = program.keeper.authorize, list[Any]()

    def note(**given: Any) -> Any:
        asked.append(given)
        return authorize(**given)

    monkeypatch.setattr(program.keeper, "authorize", note)
    session = boto3.Session(**REGION)
    wrap(wrap(session, program.keeper), program.keeper)
    bedrock = session.client("bedrock-runtime", **program.client_arguments())
    wrap(wrap(bedrock, program.keeper), program.keeper)
    converse(bedrock)
    assert (len(asked), len(program.ledger.entries)) == (1, 1)
    program.assert_exact()
    assert len(program.records()) == 1
    bedrock.close()


def test_two_clients_are_wrapped_each_for_itself(make_program: MakeProgram) -> None:
    mine, other = make_program(), make_program()
    first, bare = mine.client(), mine.bare_client()
    second = wrap(other.bare_client(), other.keeper)
    converse(bare)
    mine.ledger.clear()
    converse(first, output_tokens=11)
    mine.assert_exact()
    mine.ledger.clear()
    converse(second, output_tokens=22)
    other.assert_exact()
    assert (len(mine.records()), len(other.records())) == (1, 1)


@pytest.mark.parametrize("make", [lambda: boto3.Session(**REGION), botocore.session.get_session])
def test_a_session_wraps_each_client_that_it_makes_later(
    program: Program, make: Callable[[], Any]
) -> None:
    session = make()
    create = session.client if hasattr(session, "client") else session.create_client
    arguments = program.client_arguments()
    before = create("bedrock-runtime", **arguments)
    assert wrap(session, program.keeper) is session
    clients = [create("bedrock-runtime", **arguments) for _ in range(2)]
    s3 = create("s3", **arguments)
    for bedrock in clients:
        assert isinstance(bedrock, botocore.client.BaseClient)
        assert type(bedrock).__name__ == "BedrockRuntime"
        converse(bedrock)
    program.assert_exact()
    converse(before)
    program.tell()
    assert len(program.records()) == 2
    with pytest.raises(ClientError):
        s3.list_buckets()
    for one in (before, *clients, s3):
        one.close()


async def test_a_session_of_aiobotocore_wraps_each_client_that_it_makes_later(
    program: Program,
) -> None:
    session = get_session()
    assert wrap(session, program.keeper) is session
    arguments = program.client_arguments()
    async with (
        session.create_client("bedrock-runtime", **arguments) as bedrock,
        session.create_client("s3", **arguments) as s3,
    ):
        assert isinstance(bedrock, AioBaseClient)
        await bedrock.converse(modelId="auto", messages=messages())
        with pytest.raises(ClientError):
            await s3.list_buckets()
    await asyncio.to_thread(program.assert_exact)
    assert len(await asyncio.to_thread(program.records)) == 1


async def test_a_keeper_of_either_kind_serves_clients_of_both(program: Program) -> None:
    arguments = program.client_arguments()
    keepers: list[PriceKeeper | AsyncPriceKeeper] = [program.keeper, program.async_keeper()]
    for keeper in keepers:
        waiting = wrap(program.bare_client(), keeper)
        await asyncio.to_thread(converse, waiting)
        async with SESSION.create_client("bedrock-runtime", **arguments) as client:
            await wrap(client, keeper).converse(modelId="auto", messages=messages())
    await asyncio.to_thread(program.assert_exact)
    assert len(program.ledger.entries) == 4


def test_a_client_of_another_service_is_refused(program: Program) -> None:
    s3 = boto3.client("s3", **REGION)
    with pytest.raises(InvalidValueError, match="is a client for s3; only bedrock-runtime"):
        wrap(s3, program.keeper)
    s3.close()


@pytest.mark.parametrize("target", [None, "bedrock-runtime", object(), boto3])
def test_what_is_neither_client_nor_session_is_refused(program: Program, target: Any) -> None:
    with pytest.raises(InvalidValueError, match="a client or a session of boto3 or aiobotocore"):
        wrap(target, program.keeper)


async def test_a_client_of_aiobotocore_that_was_not_entered_is_refused(program: Program) -> None:
    """`create_client` returns a context manager; the client is its value."""
    context = SESSION.create_client("bedrock-runtime", **program.client_arguments())
    with pytest.raises(InvalidValueError, match="a client or a session of boto3 or aiobotocore"):
        wrap(context, program.keeper)
    async with context:
        pass


@pytest.fixture
def environment(program: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The program's credentials where a program has them; the keepers of others are put aside."""
    monkeypatch.setenv("PRICEKEEPER_URL", program.world.url)
    monkeypatch.setenv("PRICEKEEPER_CLIENT_ID", program.client_id)
    monkeypatch.setenv("PRICEKEEPER_CLIENT_SECRET", program.secret)
    monkeypatch.setenv("PRICEKEEPER_SPOOL_DIR", "memory")
    shared: dict[Any, Any] = {}
    monkeypatch.setattr(wrapper, "_shared", shared)
    yield
    for keeper in shared.values():
        keeper._close()


@pytest.mark.usefixtures("environment")
def test_one_line_is_enough(program: Program) -> None:
    bedrock = pricekeeper.wrap(program.bare_client())
    other = pricekeeper.wrap(program.bare_client())
    converse(bedrock)
    converse(other)
    keepers = list(wrapper._shared.values())
    assert len(keepers) == 1
    assert isinstance(keepers[0], PriceKeeper)
    assert keepers[0].flush() == 0
    program.assert_exact()


def test_without_credentials_the_line_says_what_is_missing(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the client is wrapped, not at its first call."""
    monkeypatch.delenv("PRICEKEEPER_URL", raising=False)
    with pytest.raises(SettingsError, match="PRICEKEEPER_URL"):
        wrap(program.bare_client())


def test_other_operations_are_left_alone(program: Program) -> None:
    program.change(limit_usd_micros=1)
    asked = {"converse": {"messages": messages()}}
    counted = program.client().count_tokens(modelId="us.anthropic.claude-opus-5-5", input=asked)
    assert counted["inputTokens"] > 0
    program.assert_nothing()


def test_a_stubbed_client_is_left_alone(program: Program) -> None:
    bedrock = program.client()
    usage = {"inputTokens": 1_000, "outputTokens": 100, "totalTokens": 1_100}
    message = {"role": "assistant", "content": [{"text": "hello"}]}
    reply = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}
    with Stubber(bedrock) as stub:
        stub.add_response("converse", {**reply, "metrics": {"latencyMs": 1}})
        converse(bedrock)
    program.assert_nothing()


async def test_closing_a_keeper_on_the_loop_that_reads_does_not_wait_for_itself(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blocking keeper with an awaiting client closes at once."""
    monkeypatch.setattr(async_streams, "SECS_MAX", 2)  # it is read on for so long
    async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
        bedrock = wrap(client, program.keeper)
        given = {"modelId": "auto", "messages": messages(between_ms=600_000)}
        (await bedrock.converse_stream(**given))["stream"].close()
        began = time.monotonic()
        program.keeper.close()
        assert time.monotonic() - began < program.keeper.configuration.deadline_ms / 2_000
    program.forget_keeper()
    await asyncio.to_thread(program.assert_marked, 1)
