"""What the scripts of Anthropic's clients have in common."""

from driving import drive


def drive_messages(client):
    """Take the steps by the client's Messages API."""

    def call(model, prompt):
        reply = client.messages.create(model=model, max_tokens=500, messages=_messages(prompt))
        return reply.content[0].text

    def stream(model, prompt):
        with client.messages.stream(
            model=model, max_tokens=500, messages=_messages(prompt)
        ) as reply:
            yield from reply.text_stream

    drive(call, stream)


def _messages(prompt):
    return [{"role": "user", "content": prompt}]
