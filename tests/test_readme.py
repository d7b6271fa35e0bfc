"""The README's commands, pasted: every one of them works on what `serve --demo` brings up."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import pricekeeper.testing
from gateway.world import claude_body
from http_fixtures import Api
from serving import running_server
from snippets import run_snippet, snippets

README = Path(__file__).parent.parent / "README.md"
GATEWAY = README.parent / "docs" / "gateway.md"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What the terminal of somebody with an AWS account has, who pasted what a demo says."""
    keys = tmp_path / "credentials"
    keys.write_text("[default]\naws_access_key_id=AKIAOFAFILE\naws_secret_access_key=x\n", "utf-8")
    before = {
        "PATH": os.environ["PATH"],
        "AWS_PROFILE": "absent",
        "AWS_ACCESS_KEY_ID": "AKIAOFSOMEBODY",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_BEARER_TOKEN_BEDROCK": "x",
        "AWS_SHARED_CREDENTIALS_FILE": str(keys),
    }
    with running_server(tmp_path, "--demo", environment={}) as server:
        heading, *lines = server.output().partition("serving on")[0].splitlines()
        assert heading.startswith("Demo Company is there.")  # and no log line before
        yield _environment_after(lines, before)


def _environment_after(pasted: Iterable[str], before: dict[str, str]) -> dict[str, str]:
    done = subprocess.run(  # noqa: S603 - what the demo and the documents say
        ["bash", "-euc", "\n".join((*pasted, "env -0"))],  # noqa: S607
        env=before,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.rstrip("\0").split("\0"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_the_five_minutes_work_as_pasted(demo: dict[str, str]) -> None:
    """In order, in one shell: a call held, captured, denied; selection, lease, usage, fallback."""
    script = "set -euo pipefail\n" + "\necho '---'\n".join(blocks("bash"))
    script = script.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    done = subprocess.run(  # noqa: S603 - what the README says
        ["bash", "-c", script],  # noqa: S607
        env=demo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    through_gateway, *answers = done.stdout.split("---\n")
    assert "'outputTokens': 64" in through_gateway
    assert "(ServiceQuotaExceededException)" in through_gateway
    answers = answers[1:]  # the first only logs in
    authorized, captured, denied, selection, lease, usage, fallback, operator = answers
    assert '"status": "authorized"' in authorized
    assert '"held_usd_micros": 814000' in authorized
    assert captured.count('"status": "captured"') == captured.count('"status": "duplicate"') == 1
    assert captured.count('"cost_usd_micros": 704000,\n') >= 2
    (by,) = json.loads(denied)["denied_by"]
    assert (by["kind"], by["name"], by["label"]) == ("QUOTA", "quota-premium", "premium")
    assert by["resets_at"]
    shown = README.read_text("utf-8")
    assert f'"needed": {by["needed"]}, "remaining": {by["remaining"]}, "resets_at"' in shown
    assert "QUOTA_EXCEEDED" in denied
    assert '"label": "premium"' in selection
    assert '"granted": true' in lease
    assert usage.count('"status": "accepted"') == 1
    assert usage.count('"status": "duplicate"') == 1
    assert '"label": "standard"' in fallback
    assert "QUOTA_EXCEEDED" in fallback
    assert '"app_name": "Assistant"' in operator
    assert 'outcome="made"} 1.0' in operator
    assert "standard ◂" in operator
    assert "quota-premium" in operator
    assert "monthly" in operator
    for part in answers:
        assert part.endswith("\n"), "a prompt would stand beside it"


def test_the_variables_of_the_gateway_work_as_pasted(demo: dict[str, str]) -> None:
    """For an AWS SDK, and for clients that have an address and a key."""
    pasted = re.findall(r"```bash\n(.*?)```", GATEWAY.read_text("utf-8"), re.DOTALL)
    own = {name: demo[name] for name in demo if not name.startswith("AWS_")}
    before = {**own, "AWS_ACCESS_KEY_ID": "AKIAOFSOMEBODY", "AWS_SECRET_ACCESS_KEY": "x"}
    environment = _environment_after(pasted, before)
    made = {name: environment[name] for name in environment if name.startswith("AWS_")}
    assert made == {name: demo[name] for name in demo if name.startswith("AWS_")}
    api = Api(demo["PRICEKEEPER_URL"])
    for address, path, header in (
        ("OPENAI_BASE_URL", "/chat/completions", "authorization"),
        ("ANTHROPIC_BASE_URL", "/v1/messages", "x-api-key"),
    ):
        key = environment[address.replace("BASE_URL", "API_KEY")]
        sent = {header: key if header == "x-api-key" else f"Bearer {key}"}
        body = claude_body(model="economy")
        prefix = environment[address].removeprefix(api.url)
        reply = api.call("POST", prefix + path, body, headers=sent)
        assert (reply.status, reply.headers["x-pricekeeper-model-label"]) == (200, "economy")


@pytest.mark.parametrize("through_gateway", [True, False])
def test_the_python_works_as_pasted(
    demo: dict[str, str], tmp_path: Path, through_gateway: bool
) -> None:
    """With the demo's gateway, or straight to Bedrock: either way the call counts, and once."""
    (snippet,) = snippets(README)
    with pricekeeper.testing.bedrock() as bedrock:
        environment = demo | ({} if through_gateway else bedrock.environment)
        environment["PRICEKEEPER_SPOOL_DIR"] = str(tmp_path / "spool")
        done = run_snippet(sys.executable, snippet, environment, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert bedrock.ledger.billed_calls == (not through_gateway)
    credentials = (demo[f"PRICEKEEPER_{name}"] for name in ("URL", "CLIENT_ID", "CLIENT_SECRET"))
    with pricekeeper.PriceKeeper(*credentials, spool_dir="memory") as keeper:
        (record,) = keeper.usage_records()["records"]
    assert (record["model_label"], record["output_tokens"]) == ("premium", 64)


def test_every_file_it_points_to_exists() -> None:
    """A link that leads nowhere is a bug of the README."""
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text("utf-8")):
        assert (README.parent / target).exists(), target
