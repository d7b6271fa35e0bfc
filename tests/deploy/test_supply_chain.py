"""Only chosen packages are installed: by version, by hash, and by builder."""

import os
import re
import subprocess
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from audit import LISTS, NOT_DONE, read_report
from deploy.conftest import ROOT
from pricekeeper.cli import NEEDED

LOCKED = sorted((ROOT / "requirements").glob("*.txt"))
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins(path: Path) -> dict[str, str]:
    """The version of each package in a list; every one has its hashes."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=[A-Za-z])", path.read_text(encoding="utf-8")):
        if entry.startswith("#"):
            continue
        name, version = re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)", entry).groups()  # type: ignore[union-attr]
        assert HASH.search(entry), f"{path.name}: {name} has no hash"
        found[name.lower().replace("_", "-")] = version
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=;\[ ]", text)[0].lower() for text in requirements}


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.stem)
def test_every_version_is_pinned_with_its_hashes(path: Path) -> None:
    """So that nothing else can be installed in its place."""
    assert pins(path)


def test_all_lists_agree() -> None:
    """What is tested is what is deployed."""
    everything = pins(ROOT / "requirements/bench.txt")
    for path in LOCKED:
        differing = {
            name: version
            for name, version in pins(path).items()
            if everything.get(name, version) != version
        }
        assert not differing, path.name


def test_the_lists_have_what_the_project_asks_for() -> None:
    """A dependency that is added without `make lock` is seen here."""
    declared = project()["project"]
    optional = declared["optional-dependencies"]
    run = declared["dependencies"] + optional["server"]
    deploy = run + optional["prices"]
    wanted = {
        "run": run,
        "deploy": deploy,
        "dev": deploy + optional["dev"],
        "bench": deploy + optional["dev"] + optional["bench"],
    }
    for name, requirements in wanted.items():
        missing = (
            names(requirements)
            - {"bedrock-price-keeper"}
            - pins(ROOT / f"requirements/{name}.txt").keys()
        )
        assert not missing, name


def test_who_builds_the_package_is_pinned_too() -> None:
    """The same version whether pip fetches it or the image has it."""
    (backend,) = project()["build-system"]["requires"]
    name, _, version = backend.partition("==")
    assert pins(ROOT / "requirements/build.txt")[name] == version


@pytest.mark.parametrize("file", ["Dockerfile", "Makefile", "docs/deploy.md"])
def test_nothing_is_installed_without_its_hash(file: str) -> None:
    """Every list is installed with --require-hashes, and what is ours without dependencies."""
    text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"(?:pip\S*|PIP\)|no-input)(?: --python \S+)? install [^&|`;\n]*", text)
    assert commands
    for command in commands:
        tool = command.endswith("install uv")  # it chooses versions, and is not installed here
        assert tool or "--require-hashes" in command or "--no-deps" in command, command


def test_no_image_is_whatever_is_newest() -> None:
    """A tag says which version; a digest can be given when it is known."""
    for file in ("Dockerfile", "compose.yaml"):
        assert ":latest" not in (ROOT / file).read_text(encoding="utf-8")
    assert re.search(
        r"^ARG PYTHON_IMAGE=python:\d+\.\d+-slim", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )


VULNERABLE = """{"dependencies": [
  {"name": "safe", "version": "1.0", "vulns": []},
  {"name": "old", "version": "0.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.2"]}]},
  {"name": "unknown", "skip_reason": "not found"}], "fixes": []}"""


def test_a_known_vulnerability_fails_the_audit() -> None:
    """And says which, and what mends it."""
    report = read_report(VULNERABLE, "")
    assert report.exit_code == 1
    assert str(report) == (
        "audit: 2 packages, 1 known vulnerabilities\n"
        "  not looked up: 1, such as: not found\n"
        "  old 0.1: PYSEC-1, mended in 0.2"
    )


@pytest.mark.parametrize(
    ("text", "errors", "why"),
    [
        ("", "WARNING: slow\nConnectionError: no route\n", "ConnectionError: no route"),
        ("not JSON", "", "pip-audit printed no report"),
        (
            '{"dependencies": [{"name": "a", "skip_reason": "a is not found"}]}',
            "No known vulnerabilities found",
            "a is not found",
        ),
    ],
)
def test_an_audit_that_looked_nothing_up_is_not_done(text: str, errors: str, why: str) -> None:
    """It has neither passed nor failed, and says why."""
    report = read_report(text, errors)
    assert report.exit_code == NOT_DONE
    assert str(report) == f"audit: NOT DONE, because nothing could be looked up: {why}"


@pytest.mark.parametrize(
    ("audit", "test", "status", "ends"),
    [
        (0, 0, 0, "==> make audit: passed\n==> all passed\n"),
        (1, 0, 1, "==> make audit: FAILED\n==> failed: audit\n"),
        (
            NOT_DONE,
            0,
            0,
            "==> make audit: NOT DONE\n==> NOT DONE: audit\n==> all else passed\n",
        ),
        (NOT_DONE, 2, 1, "==> NOT DONE: audit\n==> failed: test\n"),
    ],
)
def test_ci_tells_an_audit_that_was_not_done(
    tmp_path: Path, audit: int, test: int, status: int, ends: str
) -> None:
    """In its last lines; a machine that reaches no advisories can still pass."""
    programs = {
        "bin/make": f'[[ "$1" != test ]] || exit {test}',
        ".venv/bin/python": f"exit {audit}",
        ".ci/run": (ROOT / ".ci" / "run").read_text(encoding="utf-8"),
    }
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name == ".ci/run" else f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    ran = subprocess.run(  # noqa: S603 - our own script
        [tmp_path / ".ci" / "run"],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
        text=True,
    )

    assert (ran.returncode, ran.stderr) == (status, "")
    assert ran.stdout.endswith(ends)
    assert "==> make test-slow: passed\n" in ran.stdout  # a failure before it does not stop it


def test_the_audit_looks_at_what_is_deployed() -> None:
    """And at what builds it."""
    assert all((ROOT / name).is_file() for name in LISTS)


def test_the_command_line_looks_for_what_its_extra_brings() -> None:
    """A missing package names the extra to install; two are optional."""
    optional = {"tzdata", "uvloop"}
    declared = names(project()["project"]["optional-dependencies"]["server"])
    brought = {
        distribution.lower().replace("_", "-")
        for name in NEEDED
        for distribution in packages_distributions()[name]
    }
    assert declared - optional <= brought
    assert len(NEEDED) == len(declared - optional)
