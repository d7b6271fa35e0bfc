"""A session of botocore, wrapped before it makes its client; models are invoked with their body."""

import json

from botocore.session import get_session
from driving import WRAPPED, drive

session = get_session()
if WRAPPED:
    import pricekeeper

    session = pricekeeper.wrap(session)
bedrock = session.create_client("bedrock-runtime")


def call(model, prompt):
    reply = bedrock.invoke_model(modelId=model, body=_body(prompt))
    return json.loads(reply["body"].read())["content"][0]["text"]


def stream(model, prompt):
    reply = bedrock.invoke_model_with_response_stream(modelId=model, body=_body(prompt))
    for event in reply["body"]:
        said = json.loads(event["chunk"]["bytes"])
        if said["type"] == "content_block_delta":
            yield said["delta"]["text"]


def _body(prompt):
    return json.dumps(
        {
            "anthropic_version": "bedrock-2023-05-31",
            "max_tokens": 500,
            "messages": [{"role": "user", "content": prompt}],
        }
    )


drive(call, stream)
