"""OpenAI's own client, on the path of Bedrock that speaks its API."""

from driving import drive
from openai import OpenAI

client = OpenAI()


def call(model, prompt):
    return _create(model, prompt).choices[0].message.content


def stream(model, prompt):
    for chunk in _create(model, prompt, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


def _create(model, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model=model, messages=messages, **more)


drive(call, stream)
