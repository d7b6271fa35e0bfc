"""aiobotocore, on one event loop."""

import asyncio

from aiobotocore.session import get_session
from driving import WRAPPED, drive_async


async def main():
    async with get_session().create_client("bedrock-runtime") as bedrock:
        if WRAPPED:
            import pricekeeper

            bedrock = pricekeeper.wrap(bedrock)

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
