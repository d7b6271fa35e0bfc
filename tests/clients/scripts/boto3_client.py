"""boto3, as most programs use it."""

import boto3
from driving import WRAPPED, drive

bedrock = boto3.client("bedrock-runtime")
if WRAPPED:
    import pricekeeper

    bedrock = pricekeeper.wrap(bedrock)


def call(model, prompt):
    reply = bedrock.converse(modelId=model, messages=_messages(prompt))
    return reply["output"]["message"]["content"][0]["text"]


def stream(model, prompt):
    reply = bedrock.converse_stream(modelId=model, messages=_messages(prompt))
    for event in reply["stream"]:
        if "contentBlockDelta" in event:
            yield event["contentBlockDelta"]["delta"]["text"]


def _messages(prompt):
    return [{"role": "user", "content": [{"text": prompt}]}]


drive(call, stream)
