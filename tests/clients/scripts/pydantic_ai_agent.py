"""pydantic-ai: an agent whose provider is given a client."""

import asyncio

import boto3
from driving import WRAPPED, drive_async
from pydantic_ai import Agent
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider

bedrock = boto3.client("bedrock-runtime")
if WRAPPED:
    import pricekeeper

    bedrock = pricekeeper.wrap(bedrock)
provider = BedrockProvider(bedrock_client=bedrock)


async def call(model, prompt):
    return (await _agent(model).run(prompt)).output


async def stream(model, prompt):
    async with _agent(model).run_stream(prompt) as result:
        async for piece in result.stream_text(delta=True, debounce_by=None):
            yield piece


def _agent(model):
    return Agent(BedrockConverseModel(model, provider=provider))


asyncio.run(drive_async(call, stream))
