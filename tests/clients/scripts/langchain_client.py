"""langchain-aws, given a client."""

import boto3
from driving import WRAPPED, drive
from langchain_aws import ChatBedrockConverse

bedrock = boto3.client("bedrock-runtime")
if WRAPPED:
    import pricekeeper

    bedrock = pricekeeper.wrap(bedrock)


def call(model, prompt):
    return ChatBedrockConverse(model=model, client=bedrock).invoke(prompt).text


def stream(model, prompt):
    for chunk in ChatBedrockConverse(model=model, client=bedrock).stream(prompt):
        if chunk.text:
            yield chunk.text


drive(call, stream)
