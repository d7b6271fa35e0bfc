"""instructor on boto3, asking again because the answer is not what it has to be."""

import boto3
import instructor
from driving import WRAPPED, drive
from instructor.core import InstructorRetryException
from pydantic import BaseModel

bedrock = boto3.client("bedrock-runtime")
if WRAPPED:
    import pricekeeper

    bedrock = pricekeeper.wrap(bedrock)
client = instructor.from_bedrock(bedrock, mode=instructor.Mode.MD_JSON)


class Answer(BaseModel):
    number: int


def call(model, prompt):
    messages = [{"role": "user", "content": [{"text": prompt}]}]
    try:
        client.create(response_model=Answer, max_retries=3, modelId=model, messages=messages)
    except InstructorRetryException as error:
        if error.last_completion is None:  # the model has not answered at all
            raise
        return "asked in vain"


def stream(model, prompt):
    raise NotImplementedError("instructor does not stream from Bedrock")


drive(call, stream)
