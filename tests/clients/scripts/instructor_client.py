"""instructor on boto3, without a response model: the stand-in says nothing that could be one."""

import boto3
import instructor
from driving import WRAPPED, drive

bedrock = boto3.client("bedrock-runtime")
if WRAPPED:
    import pricekeeper

    bedrock = pricekeeper.wrap(bedrock)
client = instructor.from_bedrock(bedrock)


def call(model, prompt):
    messages = [{"role": "user", "content": [{"text": prompt}]}]
    reply = client.create(response_model=None, modelId=model, messages=messages)
    return reply["output"]["message"]["content"][0]["text"]


def stream(model, prompt):
    raise NotImplementedError("instructor does not stream from Bedrock")


drive(call, stream)
