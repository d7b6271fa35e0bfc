"""LiteLLM's proxy and Portkey's gateway, as `bench.gateway` measures them beside ours.

Each is installed in a folder of its own under ``.clients/``, started with one worker, and asked for
the same answer by the path that it is made for: OpenAI's chat completions, of which it makes a
signed Converse for the same stand-in. LiteLLM keeps two budgets, of the provider and of the model;
those of a key need a database, which is not here. Portkey keeps none.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from bench.rest import free_port, process

from client_matrix.environments import FOLDER, LITELLM_PROXY, PORTKEY, prepare

READY_SECS_MAX: Final = 120
MASTER_KEY: Final = "sk-bench"
PLENTY_USD: Final = 1_000_000_000


@dataclass(frozen=True)
class Other:
    """Another project's gateway, running."""

    port: int
    pid: int
    model: str
    """What it calls the model."""
    headers: dict[str, str]

    def request(self, script: dict[str, Any]) -> bytes:
        """The call, for which the stand-in does what the script says."""
        content = f"hello [[standin {json.dumps(script)}]]"
        asked = {"model": self.model, "messages": [{"role": "user", "content": content}]}
        body = json.dumps({**asked, "max_tokens": 300}).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@contextmanager
def litellm(folder: Path, upstream: str, model_id: str) -> Iterator[Other]:
    """LiteLLM's proxy, with budgets."""
    prepare(LITELLM_PROXY)
    port = free_port()
    budget = {"budget_limit": PLENTY_USD, "time_period": "30d"}
    configuration = {
        "model_list": [
            {
                "model_name": "bench",
                "litellm_params": {
                    "model": f"bedrock/converse/{model_id}",
                    "aws_access_key_id": "AKIDEXAMPLE",
                    "aws_secret_access_key": "example",
                    "aws_region_name": "us-east-1",
                    "aws_bedrock_runtime_endpoint": upstream,
                    "input_cost_per_token": 1e-6,
                    "output_cost_per_token": 5e-6,
                    "max_budget": PLENTY_USD,
                    "budget_duration": "30d",
                },
            }
        ],
        "router_settings": {"provider_budget_config": {"bedrock": budget}},
        "general_settings": {"master_key": MASTER_KEY},
    }
    path = folder / "litellm.json"  # JSON is YAML
    path.write_text(json.dumps(configuration), "utf-8")
    command = [str(FOLDER / LITELLM_PROXY / "bin" / "litellm"), "--config", str(path)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    # It downloads prices unless this forbids it; a PYTHONPATH is for our own Python.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    with process(command, port, environment, folder) as pid:
        _wait_for(f"http://127.0.0.1:{port}/health/liveliness")
        yield Other(port, pid, "bench", {"Authorization": f"Bearer {MASTER_KEY}"})


@contextmanager
def portkey(folder: Path, upstream: str, model_id: str) -> Iterator[Other]:
    """Portkey's gateway."""
    prepare(PORTKEY)
    port = free_port()
    start = FOLDER / PORTKEY / "node_modules" / "@portkey-ai" / "gateway" / "build"
    command = ["node", str(start / "start-server.js"), f"--port={port}", "--headless"]
    headers = {
        "x-portkey-provider": "bedrock",
        "x-portkey-aws-access-key-id": "AKIDEXAMPLE",
        "x-portkey-aws-secret-access-key": "example",
        "x-portkey-aws-region": "us-east-1",
        "x-portkey-custom-host": upstream,
    }
    with process(command, port, {"NODE_ENV": "production"}, folder) as pid:
        _wait_for(f"http://127.0.0.1:{port}/")
        yield Other(port, pid, model_id, headers)


OTHERS: Final = {"LiteLLM, budgets": litellm, "Portkey, none": portkey}


def _wait_for(url: str) -> None:
    until = time.monotonic() + READY_SECS_MAX
    while True:
        try:
            with urlopen(url, timeout=5):  # noqa: S310 - loopback
                return
        except (URLError, ConnectionError, TimeoutError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
