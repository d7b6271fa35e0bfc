"""Python in the documents runs unchanged, and is counted as Bedrock billed it."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

import pricekeeper.testing
from pricekeeper.client import errors
from pricekeeper.client.configuration import KeeperSettings
from pricekeeper.client.wrapping.hooks import code_of
from pricekeeper.errors import PriceKeeperError
from pricekeeper.settings import CLIENT_SETTINGS
from snippets import CLIENT_DOCUMENT, PYTEST, ROOT, Snippet, run_snippet, snippets

HERE = frozenset({"", "lambda", PYTEST})
"""What every development environment has."""
ONLY_FOR_COMMANDS = {"PRICEKEEPER_ADMIN_KEY", "PRICEKEEPER_RETRIEVAL_TOKEN"}
ALL = [*snippets(), *snippets(ROOT / "docs" / "authorizations.md")]
QUICK = {ALL[0], next(one for one in ALL if one.needs == PYTEST)}
TEXT = CLIENT_DOCUMENT.read_text("utf-8")


def run_here() -> Iterator[ParameterSet]:
    for one in ALL:
        is_installed = one.needs.isidentifier() and importlib.util.find_spec(one.needs) is not None
        if one.needs in HERE or is_installed:
            marks = [] if one in QUICK else [pytest.mark.slow]
            yield pytest.param(one, id=one.name, marks=marks)


@pytest.mark.parametrize("snippet", [*run_here()])
def test_a_snippet_runs_as_it_stands(snippet: Snippet, tmp_path: Path) -> None:
    rpm = {"capacity": 100, "refill_amount": 100, "refill_period_ms": 60_000}
    tpm = {"capacity": 1_000_000, "refill_amount": 1_000_000, "refill_period_ms": 60_000}
    with (
        pricekeeper.testing.service(
            quotas={"premium": 2_000_000}, rate_limits={"*": {"rpm": rpm, "tpm": tpm}}
        ) as service,
        pricekeeper.testing.bedrock() as bedrock,
    ):
        environment = {**service.environment, **bedrock.environment}
        done = run_snippet(sys.executable, snippet, environment, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        assert (service.held_usd_micros, service.unsettled_usd_micros) == (0, 0)
        counted = [(one["input_tokens"], one["output_tokens"]) for one in service.records()]
        for entry in bedrock.ledger.entries:
            counted.remove((entry.tokens.input_tokens, entry.tokens.output_tokens))
        by_hand = len(re.findall(r"keeper\.(capture|record)\(", snippet.program))
        assert len(counted) == (by_hand if snippet.needs != PYTEST else 0)


def test_what_the_snippets_need_is_known() -> None:
    """The others are run by the matrix of clients, each in its environment."""
    assert {one.needs for one in ALL} - HERE == {
        "fastapi",
        "instructor",
        "langchain-aws",
        "llama-index",
        "pydantic-ai",
        "strands-agents",
    }


def test_every_error_has_a_row() -> None:
    leaves = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ServiceError)
    }
    rows = set(re.findall(r"^\| `(\w+Error)` \|", TEXT, re.MULTILINE))
    assert rows >= leaves - {"ServiceError", "UnavailableError"}
    assert len(rows) >= 14
    for name in rows:
        assert issubclass(getattr(errors, name, PriceKeeperError), PriceKeeperError)


def test_the_exceptions_of_a_wrapped_client_are_as_listed() -> None:
    """But those of a denial, which depend on what denies it."""
    rows = re.findall(r"^\| `(\w+Error)` \| `(\w+Exception)` \|", TEXT, re.MULTILINE)
    listed = {getattr(errors, name): code for name, code in rows if name != "DeniedError"}
    assert listed == {kind: code_of(kind.__new__(kind)) for kind in listed}
    assert len(listed) >= 12


def test_every_setting_has_a_row() -> None:
    rows = dict(re.findall(r"^\| `(PRICEKEEPER_\w+)` \| `(\w+)` \|", TEXT, re.MULTILINE))
    assert set(rows) == {one.name for one in CLIENT_SETTINGS} - ONLY_FOR_COMMANDS
    assert set(rows.values()) <= set(KeeperSettings.__dataclass_fields__)


def test_every_file_it_points_to_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", TEXT):
        assert (CLIENT_DOCUMENT.parent / target).exists(), target
