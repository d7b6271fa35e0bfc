"""Runs the scripts of clients that ``make test-clients`` has, with the packages of the tests."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from snippets import ROOT

SCRIPTS = ROOT / "tests" / "clients" / "scripts"
PROMPT = 'Say something. [[standin {"input_tokens": 100, "output_tokens": 60}]]'
SECS_MAX = 60


def call_and_stream(script: str, model: str, environment: Mapping[str, str]) -> list[Any]:
    """Make one call and one stream by a script; the errors of each."""
    steps = [{"do": what, "model": model, "prompt": PROMPT} for what in ("call", "stream")]
    ran = subprocess.run(  # noqa: S603 - a script of ours
        [sys.executable, SCRIPTS / script, json.dumps(steps)],
        env={**environment, "CLIENT_KIND": "gateway"},
        capture_output=True,
        text=True,
        timeout=SECS_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [step["errors"] for step in json.loads(ran.stdout)["steps"]]
