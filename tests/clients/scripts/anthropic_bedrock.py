"""Anthropic's own client for Bedrock."""

from anthropic import AnthropicBedrock
from driving import drive

client = AnthropicBedrock()


def call(model, prompt):
    reply = client.messages.create(model=model, max_tokens=500, messages=_messages(prompt))
    return reply.content[0].text


def stream(model, prompt):
    with client.messages.stream(model=model, max_tokens=500, messages=_messages(prompt)) as reply:
        yield from reply.text_stream


def _messages(prompt):
    return [{"role": "user", "content": prompt}]


drive(call, stream)
