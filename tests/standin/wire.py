"""Plain requests to the stand-in, and its frames, without a client that hides anything."""

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.eventstream import EventStreamBuffer

from pricekeeper.standin import Running

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    """With names in small letters."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(standin: Running, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(standin.url).netloc, timeout=20)
    try:
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, path, raw, headers)
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read())
    finally:
        connection.close()


def events(raw: bytes) -> list[tuple[str, str, Any]]:
    """The kind, name and payload of each frame; botocore checks both checksums of it."""
    buffer = EventStreamBuffer()
    buffer.add_data(raw)
    found = []
    for event in buffer:
        headers: Any = event.headers
        kind = headers[":message-type"]
        assert headers[":content-type"] == "application/json"
        found.append((kind, headers[f":{kind}-type"], json.loads(event.payload)))
    return found


def sse(raw: bytes) -> list[tuple[str | None, Any]]:
    """The name and data of each server-sent event; the end of OpenAI's is a plain string."""
    found: list[tuple[str | None, Any]] = []
    for block in raw.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


def directive(**script: Any) -> str:
    """A text of the user that says what the stand-in does."""
    return f"Say something. [[standin {json.dumps(script)}]]"


def messages(text: str = "hello") -> list[dict[str, Any]]:
    """A conversation of Converse."""
    return [{"role": "user", "content": [{"text": text}]}]


def claude_body(text: str = "hello", **more: Any) -> dict[str, Any]:
    """A body of InvokeModel for Claude."""
    return {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": text}],
        **more,
    }
