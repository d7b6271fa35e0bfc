"""Every error name has its place in one table."""

from typing import Any

import botocore.session
import pytest

from pricekeeper.errors import (
    ContendedError,
    InvalidOperationError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    ThrottledError,
)
from pricekeeper.storage.dynamodb.faults import (
    REASONS,
    TRANSACTION_CANCELLED,
    TREATMENTS,
    Fault,
    Treatment,
    fault_of,
)

ACTIONS = [
    "GetItem",
    "PutItem",
    "UpdateItem",
    "DeleteItem",
    "TransactWriteItems",
    "BatchGetItem",
    "Query",
    "CreateTable",
    "DescribeTable",
    "DescribeTimeToLive",
    "UpdateTimeToLive",
]


def test_the_table_is_complete() -> None:
    model = botocore.session.Session().get_service_model("dynamodb")
    names = {
        shape.name for action in ACTIONS for shape in model.operation_model(action).error_shapes
    }
    assert names - TREATMENTS.keys() == set()


def error(name: str, status: int = 400, **more: Any) -> Fault:
    return fault_of(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{name}", **more})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ProvisionedThroughputExceededException", ThrottledError),
        ("ThrottlingException", ThrottledError),
        ("RequestLimitExceeded", ThrottledError),
        ("LimitExceededException", ThrottledError),
        ("TransactionConflictException", ContendedError),
        ("TransactionInProgressException", ContendedError),
        ("AccessDeniedException", StoreMisconfiguredError),
        ("UnrecognizedClientException", StoreMisconfiguredError),
        ("ResourceNotFoundException", StoreMisconfiguredError),
        ("MissingAuthenticationTokenException", StoreMisconfiguredError),
        ("InvalidSignatureException", StoreMisconfiguredError),
        ("ExpiredTokenException", StoreMisconfiguredError),
        ("ValidationException", InvalidOperationError),
        ("ItemCollectionSizeLimitExceededException", InvalidOperationError),
        ("IdempotentParameterMismatchException", InvalidOperationError),
        ("InternalServerError", StoreUnavailableError),
        ("SomethingNewException", StoreUnavailableError),
    ],
)
def test_what_the_caller_is_told(name: str, kind: type[StoreError]) -> None:
    told = error(name, message="because").error("PutItem")
    assert type(told) is kind
    assert str(told).startswith(f"PutItem: {name}: ")


@pytest.mark.parametrize(
    "name", ["InternalServerError", "ThrottlingException", "ValidationException"]
)
def test_a_server_error_is_ambiguous_whatever_it_says(name: str) -> None:
    """Only a 4xx is a promise that nothing was applied."""
    assert error(name, 503).treatment is Treatment.LOST


@pytest.mark.parametrize("reply", [{}, {"message": "Forbidden"}, {"__type": ""}], ids=repr)
def test_a_reply_that_names_no_error_is_ambiguous(reply: dict[str, Any]) -> None:
    """It is not from DynamoDB: something in between answered."""
    assert fault_of(403, reply).treatment is Treatment.LOST


@pytest.mark.parametrize(
    ("codes", "treatment"),
    [
        (["ConditionalCheckFailed", "None"], Treatment.REFUSED),
        (["TransactionConflict", "ConditionalCheckFailed"], Treatment.REFUSED),
        (["ConditionalCheckFailed", "ValidationError"], Treatment.INVALID),
        (["ItemCollectionSizeLimitExceeded"], Treatment.INVALID),
        (["TransactionConflict", "None"], Treatment.CONFLICT),
        (["ThrottlingError", "TransactionConflict"], Treatment.CONFLICT),
        (["None", "ProvisionedThroughputExceeded"], Treatment.THROTTLED),
        (["ThrottlingError"], Treatment.THROTTLED),
        (["SomethingNew", "None"], Treatment.UNAVAILABLE),
        ([], Treatment.UNAVAILABLE),
    ],
    ids=str,
)
def test_a_cancelled_transaction_means_its_gravest_reason(
    codes: list[str], treatment: Treatment
) -> None:
    """A bug before a condition, a condition before what is worth another attempt."""
    fault = error(TRANSACTION_CANCELLED, CancellationReasons=[{"Code": code} for code in codes])
    assert fault.treatment is treatment


def test_every_reason_has_a_code_of_ours() -> None:
    assert len(REASONS) == 7


def test_a_refused_signature_does_not_quote_the_request() -> None:
    """AWS repeats the signed headers in its message, the security token among them."""
    fault = error(
        "InvalidSignatureException", message="The Canonical String ... x-amz-security-token:SECRET"
    )
    assert "SECRET" not in str(fault.error("GetItem"))
    assert "SECRET" not in repr(fault)
    assert "clock" in str(fault.error("GetItem"))


def test_a_long_message_is_cut() -> None:
    assert len(str(error("ValidationException", message="x" * 10_000).error("Query"))) < 600
