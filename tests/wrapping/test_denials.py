"""A denial of the service is an exception of both the AWS client and ours.

Nothing reaches Bedrock, and botocore does not retry.
"""

import json
import pickle
from concurrent.futures import Future
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from hanging_proxy import hanging_proxy
from pricekeeper import DeniedError, PriceKeeper, ServiceError, UnavailableError, wrap
from pricekeeper.client import Admin, ForbiddenError, RejectedError
from pricekeeper.errors import InvalidValueError
from pricekeeper.tags import BLIND_TAG
from scraping import until
from wrapping.bodies import encoded
from wrapping.deployment import MODELS
from wrapping.faces import FACES, Outcome, call
from wrapping.world import APP, MakeProgram, Program, messages, run_apart

OPERATIONS: dict[str, dict[str, Any]] = {
    "converse": {"messages": messages()},
    "converse_stream": {"messages": messages()},
    "invoke_model": {"body": encoded("premium")},
    "invoke_model_with_response_stream": {"body": encoded("premium")},
}
ONE_A_MINUTE = {"*": {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 60_000}}}


def assert_denied(outcome: Outcome, code: str, kind: type[ServiceError]) -> Any:
    """It is both exceptions, with the details of both."""
    error: Any = outcome.error
    assert (outcome.code, outcome.is_modelled) == (code, True)
    assert isinstance(error, ClientError)
    assert isinstance(error, kind)
    assert error.response["ResponseMetadata"]["RetryAttempts"] == 0
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] >= 400
    assert f"({code}) when calling the {error.operation_name} operation" in str(error)
    assert error.problem.detail in str(error)
    assert error.code == error.problem.code
    return error


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_too_little_money_is_a_quota_that_is_exceeded(
    make_program: MakeProgram, face: str, operation: str
) -> None:
    program = make_program(limit_usd_micros=1)
    given: dict[str, Any] = {"modelId": "premium", **OPERATIONS[operation]}
    outcome = call(face, program, operation, attempts=3, **given)
    error = assert_denied(outcome, "ServiceQuotaExceededException", DeniedError)
    assert [one.name for one in error.denied_by] == ["all"]
    assert error.denied_by[0].needed > error.denied_by[0].remaining == 1
    assert program.attempts() == 0
    program.assert_nothing()


@pytest.mark.parametrize("face", FACES)
def test_too_fast_is_throttling(make_program: MakeProgram, face: str) -> None:
    """A retry of botocore would make it worse."""
    program = make_program(app={"rate_limits": ONE_A_MINUTE})
    given: dict[str, Any] = {"modelId": "premium", "messages": messages()}
    assert call(face, program, attempts=3, **given).error is None
    outcome = call(face, program, attempts=3, **given)
    error = assert_denied(outcome, "ThrottlingException", DeniedError)
    assert error.by_speed
    assert [(one.kind, one.name) for one in error.denied_by] == [("LIMIT", "rpm")]
    assert program.attempts() == 1
    program.assert_exact()


@pytest.mark.parametrize("face", FACES)
def test_a_model_that_nobody_knows_is_a_wrong_parameter(program: Program, face: str) -> None:
    for model in ("nope", "anthropic.claude-2", "arn:aws:bedrock:us-east-1::prompt-router/x"):
        outcome = call(face, program, modelId=model, messages=messages())
        assert_denied(outcome, "ValidationException", RejectedError)
    assert program.attempts() == 0
    program.assert_nothing()


@pytest.mark.parametrize("face", FACES)
def test_wrong_credentials_of_ours_are_access_that_is_denied(program: Program, face: str) -> None:
    right, program.secret = program.secret, "0" * len(program.secret)
    outcome = call(face, program, modelId="premium", messages=messages())
    assert_denied(outcome, "AccessDeniedException", ForbiddenError)
    program.secret = right
    program.keeper.close()
    program.forget_keeper()
    assert program.attempts() == 0
    program.assert_nothing()


@pytest.mark.parametrize("face", FACES)
def test_a_frozen_app_is_denied_access(program: Program, face: str) -> None:
    """Neither raised budgets nor time would help."""

    async def freeze() -> None:
        async with Admin(program.world.url, program.world.key, clock=program.world.clock) as admin:
            await admin.freeze(program.org_id, APP, reason="too dear")

    run_apart(freeze)
    outcome = call(face, program, modelId="premium", messages=messages())
    error = assert_denied(outcome, "AccessDeniedException", DeniedError)
    assert error.denied_by[0].kind == "FROZEN"
    assert program.attempts() == 0
    program.assert_nothing()


@pytest.mark.parametrize("face", FACES)
def test_a_service_that_does_not_answer_is_unavailable(program: Program, face: str) -> None:
    with hanging_proxy(program.world.url) as proxy:
        program.use_keeper(url=proxy.endpoint, deadline_ms=200)
        proxy.hang()
        for _ in range(2):
            outcome = call(face, program, attempts=3, modelId="premium", messages=messages())
            assert_denied(outcome, "ServiceUnavailableException", UnavailableError)
        assert program.attempts() == 0
        proxy.go_on()
        program.keeper.close()
    program.use_keeper(spool_dir="memory")
    program.assert_unclaimed()


def test_a_handler_for_bedrocks_errors_works_for_ours(program: Program) -> None:
    """By class, by code, and after pickling."""
    program.change(limit_usd_micros=1)
    bedrock = program.client()
    with pytest.raises(bedrock.exceptions.ClientError) as caught:
        bedrock.converse(modelId="auto", messages=messages())
    assert caught.value.response["Error"]["Code"] == "ServiceQuotaExceededException"
    assert isinstance(caught.value.__cause__, DeniedError)
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert copy.response == caught.value.response
    with pytest.raises(bedrock.exceptions.ClientError) as again:
        bedrock.converse(modelId="auto", messages=messages())
    assert type(again.value) is type(caught.value)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("operation", ["invoke_model", "invoke_model_with_response_stream"])
@pytest.mark.parametrize("family", ["nova", "titan", "llama", "gpt"])
def test_a_body_of_another_family_than_the_chosen_model_is_refused(
    program: Program, face: str, operation: str, family: str
) -> None:
    """``auto`` chooses Claude, whose body is different: nothing is sent, and the hold is voided."""
    outcome = call(face, program, operation, modelId="auto", body=encoded(family))
    error = assert_denied(outcome, "ValidationException", RejectedError)
    assert MODELS["premium"] in str(error)
    assert program.attempts() == 0
    program.assert_nothing()


def test_a_body_for_an_opaque_profile_is_sent(program: Program) -> None:
    """Its ARN does not name a family, so the body decides."""
    bedrock = program.client()
    sent: list[Any] = []

    def note(request: Any, **_: Any) -> None:
        sent.append(json.loads(request.body))

    bedrock.meta.events.register("before-send.bedrock-runtime", note)
    with pytest.raises(bedrock.exceptions.ResourceNotFoundException):  # it has no such model
        bedrock.invoke_model(modelId="profile", body=encoded("nova", None))
    assert sent[0]["inferenceConfig"] == {"maxTokens": 4_096}
    program.assert_nothing()


class InterruptedFuture:
    """A future whose waiter is interrupted once, before or after the answer is there."""

    def __init__(self, inner: Future[Any], *, waits: bool) -> None:
        self._inner = inner
        self._waits = waits
        self._is_interrupted = False

    def result(self, timeout: float | None = None) -> Any:
        if self._is_interrupted:
            return self._inner.result(timeout)
        self._is_interrupted = True
        if self._waits:
            self._inner.result(timeout)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupt_while_an_authorization_is_waited_for_gives_it_back(
    program: Program, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Even if the service has granted it at that moment."""
    bedrock = program.client()
    bedrock.converse(modelId="premium", messages=messages())
    engine = program.keeper.engine
    submit = engine.submit
    with monkeypatch.context() as patch:
        patch.setattr(engine, "submit", lambda work: InterruptedFuture(submit(work), waits=waits))
        with pytest.raises(KeyboardInterrupt):
            bedrock.converse(modelId="premium", messages=messages())
    program.forget_unknown()
    assert program.attempts() == 1
    program.assert_exact()


def test_an_interrupt_before_the_request_is_sent_gives_it_back(program: Program) -> None:
    """While it is signed, or in a later handler."""
    bedrock = program.client()

    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    for event in ("before-sign.bedrock-runtime", "request-created.bedrock-runtime"):
        bedrock.meta.events.register(event, interrupt)
        with pytest.raises(KeyboardInterrupt):
            bedrock.converse(modelId="premium", messages=messages())
        bedrock.meta.events.unregister(event, interrupt)
    program.assert_nothing()


def test_an_interrupt_while_the_answer_is_waited_for_leaves_it_held(program: Program) -> None:
    """The model runs."""
    bedrock = program.client()

    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    bedrock.meta.events.register("before-parse.bedrock-runtime", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bedrock.converse(modelId="premium", messages=messages())
    program.assert_marked(1)


def test_a_keeper_that_is_closed_says_so(program: Program) -> None:
    bedrock = program.client()
    program.keeper.close()
    with pytest.raises(InvalidValueError, match="is closed"):
        bedrock.converse(modelId="premium", messages=messages())
    program.forget_keeper()
    assert program.attempts() == 0
    program.assert_nothing()


def test_what_was_allowed_blind_is_recorded_and_marked(program: Program) -> None:
    """Exactly where it is known, otherwise at its maximum."""
    with (
        hanging_proxy(program.world.url) as proxy,
        PriceKeeper(
            **{
                **program.credentials,
                "url": proxy.endpoint,
                "deadline_ms": 300,
                "on_unavailable": "allow",
            }
        ) as keeper,
    ):
        bedrock = wrap(
            program.bare_client(read_timeout=0.2, retries={"total_max_attempts": 1}), keeper
        )
        until(lambda: keeper.engine._blind.is_ready)
        proxy.hang()
        bedrock.converse(modelId="auto", messages=messages(), requestMetadata={"team": "chat"})
        with pytest.raises(bedrock.exceptions.ValidationException):
            bedrock.converse(modelId="auto", messages=messages(fate="ValidationException"))
        exact = program.bill
        with pytest.raises(ReadTimeoutError):
            bedrock.converse(modelId="auto", messages=messages(fate="silent"))
        proxy.go_on()
        until(lambda: keeper.flush() == 0)
    unknown, known = program.records()
    assert known["tags"] == {"team": "chat", BLIND_TAG: "true"}
    assert unknown["tags"] == {BLIND_TAG: "true"}
    assert exact - known["cost_usd_micros"] <= 1  # the record is rounded down
    assert unknown["status"] == "ERROR"
    assert unknown["cost_usd_micros"] > program.bill - exact
    assert program.books().held == 0
