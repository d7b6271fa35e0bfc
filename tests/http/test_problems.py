"""Errors as answers: each of ours has a documented status and code, and says enough, not more."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

import pricekeeper.http.app  # noqa: F401 - so that every error of the HTTP layer is defined
from pricekeeper import errors
from pricekeeper.errors import (
    CancellationReason,
    FieldError,
    PriceKeeperError,
    PricingError,
    ReasonCode,
    RequestRefusedError,
    StoreError,
    Violation,
)
from pricekeeper.http.edge import BodyTooLargeError
from pricekeeper.http.identity import OAuthRefusedError
from pricekeeper.http.problems import (
    STATUS,
    AccessDeniedError,
    BearerDeniedError,
    KeyDeniedError,
    MethodNotAllowedError,
    Problem,
    SecretDeniedError,
    problem_of,
    status_of,
)
from pricekeeper.usecases.asking import WrongAudienceError
from pricekeeper.wire.identity import ProblemBody

NOW_MS = 1_768_000_000_500
RAN_OUT = Violation("org-1", "premium", "rpm", 5, 1, 1_001, "ORG")
TOO_MUCH = Violation("org-1", "premium", "tpm", 500, 100, None)
NO_BUDGET = errors.DeniedBy(
    errors.Obstacle.BUDGET, "monthly", "ORG", None, 1_000_001, -1, resets_at_ms=NOW_MS + 59_001
)
TOO_FAST = errors.DeniedBy(
    errors.Obstacle.LIMIT, "rpm", "APP", "premium", 2, 1, retry_after_ms=1_001
)
NEVER = errors.DeniedBy(errors.Obstacle.QUOTA, "quota-premium", "APP", "premium", 5, 0)
LOST = CancellationReason(ReasonCode.CONDITION_FAILED)
NO_LABEL = {"field": "model_label", "message": "'gold' is not one of premium, economy"}

# The REST contract's table, and what every HTTP server adds to it.
CODES = {
    code: status
    for status, codes in {
        400: ("INVALID_REQUEST", "INVALID_CONFIG", "INVALID_MODEL_LABEL"),
        401: ("UNAUTHORIZED",),
        403: ("FORBIDDEN", "FROZEN"),
        404: ("NOT_FOUND",),
        405: ("METHOD_NOT_ALLOWED",),
        409: ("CONFLICT", "REQUEST_ID_REUSED"),
        413: ("PAYLOAD_TOO_LARGE",),
        429: ("QUOTA_EXCEEDED", "RATE_LIMIT_EXCEEDED"),
        500: ("INTERNAL",),
        503: (
            *("SESSION_RACE", "CLOCK_IN_DOUBT"),
            *("STORE_UNAVAILABLE", "STORE_REPLACED", "STORE_DAMAGED"),
        ),
    }.items()
    for code in codes
}

EXAMPLES: list[PriceKeeperError] = [
    errors.SettingsError("PRICEKEEPER_STORE", "is no store"),
    errors.InvalidValueError("app_id", "is too long"),
    errors.InvalidConfigError([FieldError("quotas.premium", "is missing")], {"valid_labels": []}),
    errors.ConflictError("agg_shard_count", "can't be changed"),
    errors.RequestIdReusedError("7c9e6679-7425-40de-944b-e07fc1f90ae7"),
    errors.NotFoundError("app web of org-1"),
    errors.NotPermittedError("this takes the deployment's own key"),
    errors.InvalidClientError(),
    errors.OverloadedError("200 hashes are waiting"),
    errors.ClockInDoubtError("it has leapt"),
    errors.DeadlineExceededError(may_be_applied=True),
    errors.InvalidTokenError(),
    errors.SessionLimitRaceError([LOST]),
    errors.RateLimitExceededError([RAN_OUT]),
    errors.QuotaExceededError({"premium": 10_050}, NOW_MS + 59_001, "all spent"),
    errors.AuthorizationDeniedError([NO_BUDGET, TOO_FAST], [("premium", "too dear")]),
    errors.FrozenError("APP", "leaked", NOW_MS // 1000),
    errors.KeyringError("signing-keys.json is damaged"),
    errors.ExportError("can't write to exports"),
    errors.DeliveryError("HTTP 500"),
    errors.DeploymentFileError("config.yaml", [FieldError("models", "is missing")]),
    errors.UnknownModelLabelError("gold", ["premium"]),
    errors.ModelMismatchError("premium", "anthropic.a", "anthropic.b", "is another model"),
    errors.UnpricedUsageError("premium", "batch", "has no price", "configure one"),
    errors.PriceSourceError("aws", "is unreachable"),
    errors.ConditionFailedError({"PK": "a"}),
    errors.TransactionCancelledError([LOST]),
    errors.InvalidOperationError("two operations on one item"),
    errors.StoreMisconfiguredError("no table pricekeeper-Config"),
    errors.StoreReplacedError("/var/lib/x.db was removed"),
    errors.StoreDamagedError("/var/lib/x.db is damaged"),
    errors.StoreReadOnlyError("attempt to write"),
    errors.StoreFormatError("the store has format 2"),
    errors.StoreFullError("no room"),
    errors.UnreadableItemError("the DailyTotal item ORG#a can't be read"),
    errors.StoreUnavailableError("10.0.0.1 refused the connection"),
    errors.ThrottledError("slow down"),
    errors.ContendedError("others kept winning"),
    errors.StoreClosedError("the store is closed"),
    errors.OutcomeUnknownError("the reply was lost", {"PK": "a"}),
    RequestRefusedError("count: expected int", (FieldError("count", "expected int"),)),
    OAuthRefusedError("unsupported_grant_type", "grant_type must be refresh_token"),
    BodyTooLargeError("the body may have 1048576 bytes at most"),
    AccessDeniedError("an access token is needed"),
    KeyDeniedError("X-API-Key is wrong", guess=True),
    BearerDeniedError("the access token does not count"),
    SecretDeniedError("the client's secret is needed"),
    WrongAudienceError("an app's token does not read what is the organisation's"),
    MethodNotAllowedError(("GET", "HEAD")),
]


def kinds(above: type[PriceKeeperError] = PriceKeeperError) -> Iterator[type[PriceKeeperError]]:
    """Walk every error that a request can meet, leaves and others, but for the abstract roots."""
    for kind in above.__subclasses__():
        rooms = (errors.__name__, "pricekeeper.http.", "pricekeeper.usecases.")
        if kind.__module__.startswith(rooms):
            if kind not in (PricingError, StoreError):
                yield kind
            yield from kinds(kind)


def told(problem: Problem) -> Any:
    return json.loads(problem.body("r-1"))


def header(problem: Problem, name: bytes) -> str | None:
    return dict(problem.headers).get(name, b"").decode() or None


def a_violation(violation: Violation, scope: str, **when: Any) -> dict[str, Any]:
    """A violation in an answer."""
    amounts = {"requested": violation.requested, "available": violation.available}
    return {"scope": scope, "limit": violation.limit, **amounts, **when}


def test_there_is_an_example_of_every_error() -> None:
    """A new error has to be given a status on purpose, here and in the table."""
    shown = sorted(type(error).__name__ for error in EXAMPLES)
    assert shown == sorted(kind.__name__ for kind in kinds())


def test_no_error_falls_through_to_the_default() -> None:
    """The error, or one that it is a kind of, is in the table by name."""
    for kind in kinds():
        assert any(ancestor in STATUS for ancestor in kind.__mro__), kind
    assert PriceKeeperError not in STATUS
    assert status_of(PriceKeeperError) == (500, "INTERNAL")


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_answer_is_what_the_contract_says(error: PriceKeeperError) -> None:
    """RFC 9457's fields, our code with its status, and the request's id.

    Every 429 and 503 has Retry-After, in whole seconds from one up; nothing else has it. Why
    credentials or names were refused, and what is wrong inside, is for the log alone.
    """
    problem = problem_of(error, NOW_MS)
    assert CODES[problem.code] == problem.status
    body = msgspec.json.decode(problem.body("r-1"), type=ProblemBody)
    assert (body.status, body.code, body.request_id) == (problem.status, problem.code, "r-1")
    assert body.title == HTTPStatus(problem.status).phrase or problem.status == 413
    assert body.type == f"urn:pricekeeper:problem:{body.code.lower().replace('_', '-')}"
    assert body.detail
    assert list(told(problem))[:6] == ["type", "title", "status", "detail", "code", "request_id"]
    wait = header(problem, b"retry-after")
    assert (wait is not None) == (problem.status in (429, 503))
    assert wait is None or int(wait) >= 1
    if problem.status in (401, 404, 500, 503) and str(error):
        assert str(error) not in problem.body("r-1").decode()


def test_every_code_of_the_contract_is_used() -> None:
    """What is documented can happen."""
    assert {problem_of(error, NOW_MS).code for error in EXAMPLES} == CODES.keys()


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (errors.RateLimitExceededError([RAN_OUT]), 2),
        (errors.RateLimitExceededError([RAN_OUT, TOO_MUCH]), 86_400),
        (errors.QuotaExceededError({}, NOW_MS + 59_001, ""), 60),
        (errors.QuotaExceededError({}, NOW_MS - 1, ""), 1),
        (errors.AuthorizationDeniedError([TOO_FAST]), 2),
        (errors.AuthorizationDeniedError([NO_BUDGET, TOO_FAST]), 60),
        (errors.AuthorizationDeniedError([TOO_FAST, NEVER]), 86_400),
        (errors.StoreUnavailableError(), 1),
    ],
)
def test_the_wait_is_never_too_short(error: PriceKeeperError, seconds: int) -> None:
    """Rounded up; a day for a request that never fits, to prevent hammering."""
    assert header(problem_of(error, NOW_MS), b"retry-after") == str(seconds)


def test_a_denial_has_the_code_of_what_denies() -> None:
    """Too fast is one thing, no money another; both together are no money."""
    codes = [
        problem_of(errors.AuthorizationDeniedError(denied_by), NOW_MS).code
        for denied_by in ([TOO_FAST], [TOO_FAST, NO_BUDGET], [NO_BUDGET])
    ]
    assert codes == ["RATE_LIMIT_EXCEEDED", "QUOTA_EXCEEDED", "QUOTA_EXCEEDED"]


@pytest.mark.parametrize(
    ("error", "extras"),
    [
        (
            errors.InvalidValueError("app_id", "is too long"),
            {"errors": [{"field": "app_id", "message": "is too long"}]},
        ),
        (
            errors.InvalidConfigError(
                [FieldError("a", "is bad"), FieldError("b", "worse")], {"valid_labels": ["x"]}
            ),
            {
                "errors": [{"field": "a", "message": "is bad"}, {"field": "b", "message": "worse"}],
                "details": {"valid_labels": ["x"]},
            },
        ),
        (
            errors.UnknownModelLabelError("gold", ["premium", "economy"]),
            {
                "errors": [NO_LABEL],
                "details": {"valid_labels": ["premium", "economy"]},
            },
        ),
        (
            errors.RateLimitExceededError([RAN_OUT, TOO_MUCH]),
            {
                "violations": [
                    a_violation(RAN_OUT, "ORG", retry_after_ms=1_001),
                    a_violation(TOO_MUCH, "API", never=True),
                ]
            },
        ),
        (errors.DeadlineExceededError(may_be_applied=False), {"outcome": "NOT_APPLIED"}),
        (errors.DeadlineExceededError(may_be_applied=True), {"outcome": "OUTCOME_UNKNOWN"}),
        (errors.OutcomeUnknownError("lost"), {"outcome": "OUTCOME_UNKNOWN"}),
        (errors.StoreReplacedError("gone"), {"outcome": "NOT_APPLIED"}),
        (errors.StoreUnavailableError("down"), {}),
        (
            errors.QuotaExceededError({"premium": 10_050}, 1_768_003_200_000, ""),
            {"models": {"premium": {"quota_pct": 100.5}}, "retry_after": "2026-01-10T00:00:00Z"},
        ),
        (
            errors.AuthorizationDeniedError([NO_BUDGET, TOO_FAST, NEVER], [("premium", "dear")]),
            {
                "denied_by": [
                    {"kind": "BUDGET", "name": "monthly", "scope": "ORG"}
                    | {"needed": 2, "remaining": -1, "resets_at": "2026-01-09T23:07:39Z"},
                    {"kind": "LIMIT", "name": "rpm", "scope": "APP", "label": "premium"}
                    | {"needed": 2, "remaining": 1, "retry_after_ms": 1_001},
                    {"kind": "QUOTA", "name": "quota-premium", "scope": "APP", "label": "premium"}
                    | {"needed": 1, "remaining": 0, "never": True},
                ],
                "considered": [{"label": "premium", "outcome": "SKIPPED", "because": "dear"}],
            },
        ),
        (
            errors.FrozenError("ORG", "leaked", 1_768_003_200),
            {"reason": "leaked", "frozen_at": "2026-01-10T00:00:00Z", "scope": "ORG"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_programs_read_the_extras(error: PriceKeeperError, extras: dict[str, Any]) -> None:
    """Typed fields beside the text, as the contract names them."""
    body = told(problem_of(error, NOW_MS))
    assert {name: body[name] for name in body if name not in ProblemBody.__struct_fields__[:6]} == (
        extras
    )


@pytest.mark.parametrize(
    ("error", "challenge"),
    [
        (AccessDeniedError(), 'Bearer realm="pricekeeper"'),
        (errors.InvalidTokenError(), 'Bearer realm="pricekeeper", error="invalid_token"'),
        (BearerDeniedError(), 'Bearer realm="pricekeeper", error="invalid_token"'),
        (WrongAudienceError(), 'Bearer realm="pricekeeper", error="insufficient_scope"'),
        (SecretDeniedError(), 'Basic realm="pricekeeper"'),
        (KeyDeniedError(), 'ApiKey realm="pricekeeper"'),
        (errors.NotPermittedError(), 'ApiKey realm="pricekeeper"'),
        (errors.FrozenError("ORG", "leaked", 0), None),  # no other credentials would help
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_401_and_a_403_say_how_to_authenticate(
    error: PriceKeeperError, challenge: str | None
) -> None:
    """RFC 6750: what is wrong with a token if one came, and nothing if none did."""
    assert header(problem_of(error, NOW_MS), b"www-authenticate") == challenge


def test_a_405_says_with_what() -> None:
    """The header that HTTP asks for with it."""
    refused = problem_of(MethodNotAllowedError(("GET", "HEAD")), NOW_MS)
    assert header(refused, b"allow") == "GET, HEAD"
