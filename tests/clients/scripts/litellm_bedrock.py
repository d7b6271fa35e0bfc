"""litellm as a library, with its provider for Converse."""

import litellm
from driving import drive


def call(model, prompt):
    return _complete(model, prompt).choices[0].message.content


def stream(model, prompt):
    for chunk in _complete(model, prompt, stream=True):
        if piece := chunk.choices[0].delta.content:
            yield piece


def _complete(model, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return litellm.completion(model=f"bedrock/converse/{model}", messages=messages, **more)


drive(call, stream)
