"""The line that a containment leaves in the log, whatever became of it."""

import asyncio
import json
from typing import Any

import pytest

from pricekeeper.errors import (
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    ThrottledError,
)
from pricekeeper.telemetry.containment import log_containment
from pricekeeper.telemetry.logs import contains_secret, keep_secret
from pricekeeper.values import Attribution

BY = Attribution("deployment-key/0123", "192.0.2.7", "r-1", "leaked")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutcomeUnknownError("the reply was lost"), "unknown"),
        (asyncio.CancelledError(), "unknown"),
        (StoreUnavailableError("not now"), "failed"),
        (ThrottledError("slow down"), "failed"),
        (NotFoundError("client"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_store_got_in_the_way_of_is_said(
    capsys: pytest.CaptureFixture[str], error: BaseException, outcome: str | None
) -> None:
    """So that somebody looks again; what was refused has done nothing and says nothing."""
    with pytest.raises(type(error)), log_containment("freeze", "org-1", BY):
        raise error
    assert [line["outcome"] for line in lines(capsys)] == ([] if outcome is None else [outcome])


def test_what_is_learnt_meanwhile_is_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside who, to whom, from where and why."""
    details: dict[str, Any] = {}
    with log_containment("limits.reset", "org-1", BY, details):
        details["labels"] = ["premium"]
    (line,) = lines(capsys)
    assert {name: line[name] for name in ("action", "target", "actor", "address", "reason")} == {
        "action": "limits.reset",
        "target": "org-1",
        "actor": "deployment-key/0123",
        "address": "192.0.2.7",
        "reason": "leaked",
    }
    assert (line["outcome"], line["labels"], line["request_id"]) == ("done", ["premium"], "r-1")


def test_a_secret_in_a_reason_would_not_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused at the edge; should it get here, the sink has it out."""
    secret = "pks_" + "a1B2" * 12
    with log_containment("freeze", "org-1", Attribution("a", "b", "c", f"leaked {secret}")):
        pass
    (line,) = lines(capsys)
    assert line["reason"] == "leaked [redacted]"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("found on GitHub", False),
        ("packed pks_ and basic things", False),
        ("pks_" + "a1B2" * 12, True),
        ("pkp_" + "a1B2" * 20, True),
        ("eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJwIn0.c2ln", True),
        ("basic authentication was logged by a proxy", False),
        ("it was known-to-be-secret-0001", True),
        ("lone \ud800", False),
    ],
)
def test_what_looks_like_a_secret(text: str, secret: bool) -> None:
    """By its shape, or because somebody has said so."""
    keep_secret("known-to-be-secret-0001")
    assert contains_secret(text) is secret
