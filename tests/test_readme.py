"""The README's commands, pasted: every one of them works on what `serve --demo` brings up."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import running_server

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A running demo, and the variables that it says to export."""
    with running_server(tmp_path, "--demo", environment={}) as server:
        assert server.output().startswith("Demo Company is there.")  # and no log line before
        exported = dict(re.findall(r"^export (\w+)=(\S+)$", server.output(), re.MULTILINE))
        yield {**exported, "URL": server.url}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_the_five_minutes_work_as_pasted(demo: dict[str, str]) -> None:
    """In order, in one shell: selection, lease, usage once, fallback, metrics."""
    script = "set -euo pipefail\n" + "\necho '---'\n".join(blocks("bash"))
    done = subprocess.run(  # noqa: S603 - what the README says
        ["bash", "-c", script],  # noqa: S607
        env={"PATH": os.environ["PATH"], **demo},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, selection, lease, usage, fallback, operator = done.stdout.split("---\n")
    assert '"label": "premium"' in selection
    assert '"granted":true' in lease
    assert usage.count('"status":"accepted"') == 1
    assert usage.count('"status":"duplicate"') == 1
    assert '"label": "standard"' in fallback
    assert "QUOTA_EXCEEDED" in fallback
    assert '"app_name": "Assistant"' in operator
    assert 'outcome="made"} 1.0' in operator


def test_every_file_it_points_to_exists() -> None:
    """A link that leads nowhere is a bug of the README."""
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text("utf-8")):
        assert (README.parent / target).exists(), target
