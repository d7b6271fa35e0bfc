"""A call is scripted by its prompt, or by the stand-in's own script."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from pricekeeper.standin import Running, Script, running
from standin.conftest import MakeClient
from standin.wire import CLAUDE, ask, claude_body, directive, messages

PATH = f"/model/{CLAUDE}/converse"
MODELLED = [
    "AccessDeniedException", "InternalServerException", "ModelErrorException",
    "ModelNotReadyException", "ModelTimeoutException", "ResourceNotFoundException",
    "ServiceUnavailableException", "ThrottlingException", "ValidationException",
]  # fmt: skip


@pytest.mark.parametrize("name", MODELLED)
def test_a_refusal_is_the_modelled_exception(standin: Running, bedrock: Any, name: str) -> None:
    modelled = getattr(bedrock.exceptions, name)
    text = directive(fate=name)
    body = json.dumps(claude_body(text))
    status = bedrock.meta.service_model.shape_for(name).metadata["error"]["httpStatusCode"]
    calls: tuple[Callable[[], Any], ...] = (
        lambda: bedrock.converse(modelId=CLAUDE, messages=messages(text)),
        lambda: bedrock.converse_stream(modelId=CLAUDE, messages=messages(text)),
        lambda: bedrock.invoke_model(modelId=CLAUDE, body=body),
        lambda: bedrock.invoke_model_with_response_stream(modelId=CLAUDE, body=body),
    )
    for call in calls:
        with pytest.raises(modelled) as raised:
            call()
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == status

    assert sum(standin.ledger.attempts.values()) == 4
    assert standin.ledger.entries == []


@pytest.mark.parametrize("name", ["ServiceQuotaExceededException", "ModelStreamErrorException"])
def test_a_refusal_that_only_invoke_has(bedrock: Any, name: str) -> None:
    body = json.dumps(claude_body(directive(fate=name)))
    with pytest.raises(getattr(bedrock.exceptions, name)):
        bedrock.invoke_model_with_response_stream(modelId=CLAUDE, body=body)


def test_a_refusal_of_aws_itself(bedrock: Any) -> None:
    text = directive(fate="ExpiredTokenException")
    with pytest.raises(ClientError, match="ExpiredTokenException"):
        bedrock.converse(modelId=CLAUDE, messages=messages(text))


def test_a_fate_may_befall_only_the_first_attempts(
    standin: Running, make_client: MakeClient
) -> None:
    text = directive(fate="ThrottlingException", fate_times=2, output_tokens=3)
    reply = make_client(attempts=3).converse(modelId=CLAUDE, messages=messages(text))

    assert reply["ResponseMetadata"]["RetryAttempts"] == 2
    assert standin.ledger.attempts == {"Converse": 3}
    assert standin.ledger.billed_calls == 1


def test_only_the_last_text_of_the_user_counts(standin: Running, bedrock: Any) -> None:
    """Otherwise a directive would apply to all later turns of a conversation."""
    conversation = [
        {"role": "user", "content": [{"text": directive(fate="ThrottlingException")}]},
        {"role": "assistant", "content": [{"text": directive(fate="ThrottlingException")}]},
        {"role": "user", "content": [{"text": directive(output_tokens=2)}, {"text": "and more"}]},
    ]
    reply = bedrock.converse(modelId=CLAUDE, messages=conversation)

    assert reply["usage"]["outputTokens"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[standin nothing]]", "is not"),
        ('[[standin {"output_tokens": }]]', "JSON"),
        (directive(output_token=1), "output_token"),
        (directive(output_tokens=-1), "output_tokens"),
        (directive(fate="sulks"), "fate is unknown"),
    ],
)
def test_a_directive_that_is_wrong_is_refused_and_says_why(
    standin: Running, bedrock: Any, text: str, said: str
) -> None:
    with pytest.raises(bedrock.exceptions.ValidationException, match=said):
        bedrock.converse(modelId=CLAUDE, messages=messages(text))

    assert standin.ledger.entries == []


def test_a_stand_in_has_a_script_of_its_own() -> None:
    with running(Script(output_tokens=5, cache_read=9)) as standin:
        plain = ask(standin, "POST", PATH, {"messages": messages()}).json["usage"]
        text = directive(output_tokens=6)
        told = ask(standin, "POST", PATH, {"messages": messages(text)}).json["usage"]

    assert (plain["outputTokens"], plain["cacheReadInputTokens"]) == (5, 9)
    assert (told["outputTokens"], told["cacheReadInputTokens"]) == (6, 9)


def test_a_stop_reason_may_be_scripted(bedrock: Any) -> None:
    text = directive(stop_reason="guardrail_intervened")

    assert bedrock.converse(modelId=CLAUDE, messages=messages(text))["stopReason"] == (
        "guardrail_intervened"
    )


def test_an_openai_model_counts_its_cache_as_input(standin: Running, bedrock: Any) -> None:
    text = directive(input_tokens=10, cache_read=90)
    reply = bedrock.converse(modelId="openai.gpt-oss-20b-1:0", messages=messages(text))

    assert reply["usage"]["inputTokens"] == 100
    assert standin.ledger.totals.input_tokens == 10
