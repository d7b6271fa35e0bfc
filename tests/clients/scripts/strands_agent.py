"""strands-agents: an agent whose model makes its client from the session that it is given."""

import asyncio

import boto3
from driving import WRAPPED, drive_async
from strands import Agent
from strands.models import BedrockModel

session = boto3.Session()
if WRAPPED:
    import pricekeeper

    session = pricekeeper.wrap(session)


async def call(model, prompt):
    return str(await _agent(model, streaming=False).invoke_async(prompt))


async def stream(model, prompt):
    async for event in _agent(model, streaming=True).stream_async(prompt):
        if "data" in event:
            yield event["data"]


def _agent(model, *, streaming):
    bedrock = BedrockModel(boto_session=session, model_id=model, streaming=streaming)
    return Agent(model=bedrock, callback_handler=None)


asyncio.run(drive_async(call, stream))
