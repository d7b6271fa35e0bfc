"""The error tree: what is drawn is what there is."""

import re
from collections.abc import Iterator

import pytest

from pricekeeper import errors
from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    DeniedBy,
    InvalidValueError,
    Obstacle,
    OutcomeUnknownError,
    PriceKeeperError,
    ReasonCode,
    SettingsError,
    TransactionCancelledError,
)

_INDENT = 4


def _drawn() -> list[tuple[int, str]]:
    """Read the tree in the module's docstring, as depths and names."""
    lines = re.findall(r"^([ │├└─]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    return [(len(indent) // _INDENT - 1, name) for indent, name in lines]


def _defined(error: type[PriceKeeperError], depth: int = 0) -> Iterator[tuple[int, str]]:
    """Walk the tree of classes, as depths and names, in the order of their definition."""
    yield depth, error.__name__
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _defined(child, depth + 1)


def test_the_drawn_tree_is_the_tree() -> None:
    assert _drawn() == list(_defined(PriceKeeperError))


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [vars(getattr(errors, name)).get("code") for _, name in _defined(PriceKeeperError)]
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code or "")] == []


@pytest.mark.parametrize(
    ("error", "message", "fields"),
    [
        (SettingsError("STORE", "use this"), "STORE: use this", {"setting": "STORE"}),
        (InvalidValueError("app_id", "too long"), "app_id: too long", {"field": "app_id"}),
        (ConditionFailedError({"PK": "a"}), "the condition did not hold", {"item": {"PK": "a"}}),
        (OutcomeUnknownError("lost"), "lost", {"item": None}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_tells_people_and_programs(
    error: PriceKeeperError, message: str, fields: dict[str, object]
) -> None:
    """The message is for people; programs read the fields."""
    assert str(error) == message
    assert {name: getattr(error, name) for name in fields} == fields


def test_a_cancelled_transaction_has_one_reason_per_operation() -> None:
    reasons = [
        CancellationReason(ReasonCode.NONE),
        CancellationReason(ReasonCode.CONDITION_FAILED, item={"PK": "a"}),
    ]
    error = TransactionCancelledError(reasons)
    assert error.reasons == tuple(reasons)
    assert str(error) == "the transaction was cancelled: [None, ConditionalCheckFailed]"


@pytest.mark.parametrize(
    ("remaining", "room"),
    [(4_600_000_000, "$0.0046 left"), (-19_962_296_000_000, "$19.962296 over")],
)
def test_a_denial_states_dollars(remaining: int, room: str) -> None:
    """What the call may cost is rounded up, what is left down."""
    denied = DeniedBy(Obstacle.QUOTA, "quota-opus", "APP", "opus", 580_000_001, remaining)
    assert denied.text == f"the app's quota quota-opus: this call may cost $0.000581, {room}"
