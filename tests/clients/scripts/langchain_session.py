"""langchain-aws on a client that a wrapped session has made, with the model's own bodies."""

import boto3
from driving import WRAPPED, drive
from langchain_aws import ChatBedrock

session = boto3.Session()
if WRAPPED:
    import pricekeeper

    session = pricekeeper.wrap(session)
bedrock = session.client("bedrock-runtime")


def call(model, prompt):
    return _chat(model).invoke(prompt).text


def stream(model, prompt):
    for chunk in _chat(model).stream(prompt):
        if chunk.text:
            yield chunk.text


def _chat(model):
    return ChatBedrock(
        model=model, client=bedrock, provider="anthropic", beta_use_converse_api=False
    )


drive(call, stream)
