"""aioboto3: a session, wrapped before it makes its client."""

import asyncio

import aioboto3
from driving import WRAPPED, drive_async

session = aioboto3.Session()
if WRAPPED:
    import pricekeeper

    session = pricekeeper.wrap(session)


async def main():
    async with session.client("bedrock-runtime") as bedrock:

        async def call(model, prompt):
            reply = await bedrock.converse(modelId=model, messages=_messages(prompt))
            return reply["output"]["message"]["content"][0]["text"]

        async def stream(model, prompt):
            reply = await bedrock.converse_stream(modelId=model, messages=_messages(prompt))
            async for event in reply["stream"]:
                if "contentBlockDelta" in event:
                    yield event["contentBlockDelta"]["delta"]["text"]

        await drive_async(call, stream)


def _messages(prompt):
    return [{"role": "user", "content": [{"text": prompt}]}]


asyncio.run(main())
