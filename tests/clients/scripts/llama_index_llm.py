"""llama-index, given a client."""

import boto3
from driving import WRAPPED, drive
from llama_index.llms.bedrock_converse import BedrockConverse

bedrock = boto3.client("bedrock-runtime")
if WRAPPED:
    import pricekeeper

    bedrock = pricekeeper.wrap(bedrock)


def call(model, prompt):
    return BedrockConverse(model=model, client=bedrock).complete(prompt).text


def stream(model, prompt):
    for response in BedrockConverse(model=model, client=bedrock).stream_complete(prompt):
        if response.delta:
            yield response.delta


drive(call, stream)
