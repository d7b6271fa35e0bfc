"""Streams of boto3 and of aiobotocore under one set of names, for promises about both."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from botocore.config import Config

from pricekeeper import wrap
from wrapping.bodies import encoded
from wrapping.faces import SESSION
from wrapping.world import Program, messages

OPERATIONS = ["converse_stream", "invoke_model_with_response_stream"]
SLOW = {"between_ms": 15, "output_tokens": 31}
STALLING = {"between_ms": 600_000}


class CallerError(Exception):
    """Raised by the caller's code."""


@asynccontextmanager
async def opened(face: str, program: Program, **config: Any) -> AsyncIterator[Any]:
    """A wrapped client of that face, which tries once."""
    wanted = Config(retries={"total_max_attempts": 1}, **config)
    arguments = program.client_arguments(wanted)
    async with AsyncExitStack() as open_clients:
        if face == "boto3":
            client = program.made(arguments)
        else:
            context = SESSION.create_client("bedrock-runtime", **arguments)
            client = await open_clients.enter_async_context(context)
        yield wrap(client, program.keeper)


async def begin(bedrock: Any, operation: str = "converse_stream", /, **script: Any) -> Any:
    """A stream that was not read yet."""
    if operation == "converse_stream":
        config = {"maxTokens": 50}
        reply = bedrock.converse_stream(
            modelId="premium", messages=messages(**script), inferenceConfig=config
        )
    else:
        body = encoded("premium", 50, **script)
        reply = bedrock.invoke_model_with_response_stream(modelId="premium", body=body)
    answered = await reply if isinstance(reply, Awaitable) else reply
    return answered["stream" if operation == "converse_stream" else "body"]


async def events_of(stream: Any) -> AsyncIterator[Any]:
    if hasattr(stream, "__aiter__"):
        async for event in stream:
            yield event
    else:
        for event in stream:
            yield event


async def read_all(stream: Any) -> list[Any]:
    return [event async for event in events_of(stream)]


async def read_one(stream: Any) -> Any:
    """Read one event, and stop."""
    events = events_of(stream)
    try:
        return await anext(events)
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator


async def read_and_close(stream: Any) -> None:
    await read_one(stream)
    stream.close()


async def close(stream: Any) -> None:
    stream.close()


async def never_iterate(stream: Any) -> None:
    assert stream is not None


async def raise_inside(stream: Any) -> None:
    async def read() -> None:
        async for _ in events_of(stream):
            raise CallerError

    with pytest.raises(CallerError):
        await read()


async def keep_in_a_cycle(stream: Any) -> None:
    """Drop it so that only the garbage collector finds it."""
    await read_one(stream)
    cycle = [stream]
    cycle.append(cycle)


ABANDONED: dict[str, Callable[[Any], Awaitable[None]]] = {
    "break": read_one,
    "close": close,
    "close after an event": read_and_close,
    "never iterated": never_iterate,
    "raise in the loop": raise_inside,
    "a cycle": keep_in_a_cycle,
}


async def assert_exact(program: Program) -> None:
    """In a thread, so that tasks of this loop can continue."""
    gc.collect()
    await asyncio.to_thread(program.assert_exact)


async def assert_marked(program: Program, calls: int) -> None:
    gc.collect()
    await asyncio.to_thread(program.assert_marked, calls)
