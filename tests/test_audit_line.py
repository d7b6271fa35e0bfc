"""The line that a change leaves in the log, with its outcome."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from pricekeeper.authority import Attribution
from pricekeeper.errors import (
    ConditionFailedError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    ThrottledError,
)
from pricekeeper.telemetry.logs import configure_logging, contains_secret, keep_secret, log_change

BY = Attribution("deployment-key/0123", "192.0.2.7", "r-1", "leaked")


@pytest.fixture(autouse=True)
def logging_as_a_service() -> Iterator[None]:
    configure_logging("warning", for_good=False)
    yield
    structlog.reset_defaults()


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
        (ConditionFailedError(None), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_store_got_in_the_way_of_is_said(
    capsys: pytest.CaptureFixture[str], error: BaseException, outcome: str | None
) -> None:
    """So that an operator looks again; a refused change has done nothing and logs nothing."""
    with pytest.raises(type(error)), log_change("freeze", "org-1", BY):
        raise error
    assert [line["outcome"] for line in lines(capsys)] == ([] if outcome is None else [outcome])


def test_the_line_says_who_to_whom_from_where_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the change, and the request."""
    with log_change("limits.reset", "org-1", BY):
        pass
    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "audit",
        "level": "warning",
        "action": "limits.reset",
        "target": "org-1",
        "actor": "deployment-key/0123",
        "address": "192.0.2.7",
        "reason": "leaked",
        "outcome": "done",
        "request_id": "r-1",
    }


def test_a_secret_in_a_reason_would_not_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused at the edge; should it get here, the sink has it out."""
    secret = "pks_" + "a1B2" * 12
    with log_change("freeze", "org-1", Attribution("a", "b", "c", f"leaked {secret}")):
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
    keep_secret("known-to-be-secret-0001")
    assert contains_secret(text) is secret
