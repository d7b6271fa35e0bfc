"""One process of the app that `soak` kills: wrapped boto3 calls, as a plan says.

The plan comes as a line of JSON. A call that is to be killed kills its own process, at its moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import boto3
import botocore.exceptions
from botocore.config import Config

import pricekeeper
from pricekeeper.client import UnavailableError

AWAY_SECS_MAX = 60
"""How long to retry a call that is refused because the service is down."""


def main() -> None:
    """Make the calls of the plan, and say which were begun."""
    plan = json.loads(sys.stdin.readline())
    keeper = pricekeeper.PriceKeeper()
    clients = {
        patience: pricekeeper.wrap(
            boto3.client(
                "bedrock-runtime",
                endpoint_url=plan["bedrock"],
                config=Config(
                    read_timeout=patience,
                    retries={"total_max_attempts": 2, "mode": "standard"},
                ),
            ),
            keeper,
        )
        for patience in (0.5, 30)
    }
    for call in plan["calls"]:
        say(f"begin {call['number']}")
        client = clients[0.5 if call["fate"] == "timeout" else 30]
        ends_at = time.monotonic() + AWAY_SECS_MAX
        while time.monotonic() < ends_at:
            try:
                make(client, call)
            except UnavailableError:  # also an exception of boto3's
                time.sleep(0.05)
            else:
                break
    say("over")


def make(client: Any, call: dict[str, Any]) -> None:
    """Make one call of the plan."""
    script = {"output_tokens": call["output_tokens"]}
    if call["fate"] == "timeout":
        script |= {"fate": "silent", "fate_times": 1}
    if call["fate"] == "abandoned":
        script |= {"events": 20, "between_ms": 2}
    text = f"call {call['number']} [[standin {json.dumps(script)}]]" + "x" * call["padding"]
    if call["kill"] == "soon":
        threading.Timer(call["kill_after_ms"] / 1000, die).start()
    send = invoke if call["invokes"] else converse
    if call["fate"] in ("stream", "abandoned"):
        stream = send(client, call, text, streams=True)
        for count, _ in enumerate(stream):
            if call["kill"] == "streaming":
                die()
            if call["fate"] == "abandoned" and count == call["events_read"]:
                break
        if call["fate"] == "abandoned" and call["closes"]:
            stream.close()
    else:
        with contextlib.suppress(botocore.exceptions.ReadTimeoutError):
            send(client, call, text, streams=False)
    if call["kill"]:
        die()


def converse(client: Any, call: dict[str, Any], text: str, *, streams: bool) -> Any:
    """The stream of a call, or its answer."""
    asked: dict[str, Any] = {
        "modelId": "auto",
        "messages": [{"role": "user", "content": [{"text": text}]}],
        "inferenceConfig": {"maxTokens": call["max_tokens"]},
        "requestMetadata": {"soak": str(call["number"])},
    }
    return client.converse_stream(**asked)["stream"] if streams else client.converse(**asked)


def invoke(client: Any, call: dict[str, Any], text: str, *, streams: bool) -> Any:
    """The same, as the body of a model family has it."""
    body = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": call["max_tokens"],
        "messages": [{"role": "user", "content": text}],
    }
    asked: dict[str, Any] = {
        "modelId": "auto",
        "body": json.dumps(body),
        "requestMetadata": json.dumps({"soak": str(call["number"])}),
    }
    if streams:
        return client.invoke_model_with_response_stream(**asked)["body"]
    return client.invoke_model(**asked)["body"].read()


def die() -> None:
    """As the kernel does it."""
    os.kill(os.getpid(), signal.SIGKILL)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
