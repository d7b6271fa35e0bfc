"""The README's commands, pasted: every one of them works on what `serve --demo` brings up."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pricekeeper.testing
from serving import running_server
from snippets import GATEWAY_DOCUMENT, environment_after, run_snippet, shell_blocks, snippets

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[list[str]]:
    """What the demo prints before it serves, in paragraphs; it serves until the test ends."""
    with running_server(tmp_path, "--demo", environment={}) as server:
        yield server.output().partition("serving on")[0].split("\n\n")


@pytest.fixture
def demo(printed: list[str], tmp_path: Path) -> dict[str, str]:
    """The environment of a terminal whose user has an AWS account and pasted the demo's lines."""
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
    heading, lines, *_ = printed
    assert heading.startswith("Demo Company is ready.")  # and no log line before
    return environment_after(lines.splitlines(), before)


@pytest.mark.slow
def test_the_five_minutes_work_as_pasted(demo: dict[str, str]) -> None:
    """In order, in one shell: a call held, captured, denied; selection, lease, usage, fallback."""
    script = "set -euo pipefail\n" + "\necho '---'\n".join(shell_blocks(README))
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
    assert '"held_usd_micros": 708224' in authorized
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


def test_the_demo_prints_what_the_document_of_the_gateway_shows(
    printed: list[str], demo: dict[str, str]
) -> None:
    own = {name: demo[name] for name in demo if not of_gateway(name)}
    before = {**own, "AWS_ACCESS_KEY_ID": "AKIAOFSOMEBODY", "AWS_SECRET_ACCESS_KEY": "x"}
    made = environment_after(shell_blocks(GATEWAY_DOCUMENT), before)
    assert {name: made[name] for name in made if of_gateway(name)} == {
        name: demo[name] for name in demo if of_gateway(name)
    }
    _, _, _, *more = printed
    shown = [line for part in more for line in part.splitlines() if line.startswith("export ")]
    names = ("openai", "anthropic", "claude-code", "vercel")
    blocks_shown = [shell_blocks(GATEWAY_DOCUMENT, name) for name in names]
    assert [[f"{line}\n"] for line in shown] == blocks_shown


def of_gateway(name: str) -> bool:
    return name.startswith(("AWS_", "ANTHROPIC_"))


@pytest.mark.parametrize("through_gateway", [True, pytest.param(False, marks=pytest.mark.slow)])
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
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text("utf-8")):
        assert (README.parent / target).exists(), target
