"""InvokeModel and its stream: each family's own bodies, inside of what the service model says."""

import json
from typing import Any

import pytest

from pricekeeper.standin import Running, TokenCounts
from standin import shapes
from standin.wire import CLAUDE, ask, claude_body, directive, events

SCRIPT = {"input_tokens": 120, "output_tokens": 30, "events": 3}
CACHED = {**SCRIPT, "cache_read": 500, "cache_write_5m": 40, "cache_write_1h": 8}
METRICS = "amazon-bedrock-invocationMetrics"
NOVA = "us.amazon.nova-pro-v1:0"
TITAN = "amazon.titan-text-express-v1"
LLAMA = "us.meta.llama3-3-70b-instruct-v1:0"
MISTRAL = "mistral.mistral-7b-instruct-v0:2"
MISTRAL_CHAT = "mistral.mistral-large-2407-v1:0"
COHERE = "cohere.command-text-v14"
COHERE_CHAT = "cohere.command-r-plus-v1:0"
OPENAI = "openai.gpt-oss-120b-1:0"
ALL = (CLAUDE, NOVA, TITAN, LLAMA, MISTRAL, MISTRAL_CHAT, COHERE, COHERE_CHAT, OPENAI)


def body_of(model: str, text: str, allowed: int = 1_000) -> dict[str, Any]:
    """A request as the model's family has it."""
    parts = [{"role": "user", "content": [{"text": text}]}]
    plain = [{"role": "user", "content": text}]
    return {
        CLAUDE: claude_body(text, max_tokens=allowed),
        NOVA: {"messages": parts, "inferenceConfig": {"maxTokens": allowed}},
        TITAN: {"inputText": text, "textGenerationConfig": {"maxTokenCount": allowed}},
        LLAMA: {"prompt": text, "max_gen_len": allowed},
        MISTRAL: {"prompt": text, "max_tokens": allowed},
        MISTRAL_CHAT: {"messages": plain, "max_tokens": allowed},
        COHERE: {"prompt": text, "max_tokens": allowed},
        COHERE_CHAT: {"message": text, "max_tokens": allowed},
        OPENAI: {"messages": plain, "max_completion_tokens": allowed},
    }[model]


def reported(model: str) -> int:
    """The input of `CACHED` as an answer says it: OpenAI's models count the cache in."""
    return 120 + 500 + 40 + 8 if model == OPENAI else 120


def directive_text(body: dict[str, Any]) -> str:
    """What Cohere repeats in its answers."""
    return str(body.get("prompt") or body.get("message") or "")


def invoke(bedrock: Any, model: str, script: dict[str, Any], allowed: int = 1_000) -> Any:
    reply = bedrock.invoke_model(
        modelId=model, body=json.dumps(body_of(model, directive(**script), allowed))
    )
    with reply["body"] as body:
        return json.loads(body.read())


def chunks(bedrock: Any, model: str, script: dict[str, Any]) -> list[Any]:
    reply = bedrock.invoke_model_with_response_stream(
        modelId=model, body=json.dumps(body_of(model, directive(**script)))
    )
    return [json.loads(event["chunk"]["bytes"]) for event in reply["body"]]


@pytest.mark.parametrize("model", ALL)
def test_an_answer_is_what_the_service_model_says(standin: Running, model: str) -> None:
    """The headers have the counts, even if the family's body has none."""
    body = body_of(model, directive(**CACHED))
    answer = ask(standin, "POST", f"/model/{model}/invoke", body)

    assert answer.status == 200
    assert shapes.header_complaints(shapes.output_of("InvokeModel"), answer.headers) == []
    assert answer.headers["x-amzn-bedrock-input-token-count"] == str(reported(model))
    assert answer.headers["x-amzn-bedrock-output-token-count"] == "30"
    assert answer.headers["x-amzn-bedrock-cache-read-input-token-count"] == "500"
    assert answer.headers["x-amzn-bedrock-cache-write-input-token-count"] == "48"
    assert answer.headers["x-amzn-bedrock-invocation-latency"] == "0"
    (entry,) = standin.ledger.entries
    assert entry.id == answer.headers["x-amzn-requestid"]
    assert (entry.operation, entry.model_id) == ("InvokeModel", model)
    assert entry.tokens == TokenCounts(120, 30, 500, 40, 8)


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize("fate", [{}, {"fate": "breaks-off"}])
def test_every_event_is_what_the_service_model_says(
    standin: Running, model: str, fate: dict[str, str]
) -> None:
    body = body_of(model, directive(**CACHED, **fate))
    answer = ask(standin, "POST", f"/model/{model}/invoke-with-response-stream", body)

    output = shapes.output_of("InvokeModelWithResponseStream")
    assert shapes.header_complaints(output, answer.headers) == []
    found = events(answer.body)
    assert [x for event in found for x in shapes.event_complaints("ResponseStream", event)] == []
    assert (found[-1][0] == "exception") == bool(fate)
    assert standin.ledger.totals == TokenCounts(120, 30, 500, 40, 8)


@pytest.mark.parametrize("model", ALL)
def test_the_last_chunk_has_the_metrics(bedrock: Any, model: str) -> None:
    found = chunks(bedrock, model, {**CACHED, "delay_ms": 2, "between_ms": 1})

    assert [METRICS in chunk for chunk in found] == [False] * (len(found) - 1) + [True]
    assert found[-1][METRICS] == {
        "inputTokenCount": reported(model),
        "outputTokenCount": 30,
        "invocationLatency": 5,
        "firstByteLatency": 2,
        "cacheReadInputTokenCount": 500,
        "cacheWriteInputTokenCount": 48,
    }


@pytest.mark.parametrize("model", ALL)
def test_the_limit_of_the_request_holds(standin: Running, bedrock: Any, model: str) -> None:
    invoke(bedrock, model, {"output_tokens": 500}, allowed=7)

    assert standin.ledger.totals.output_tokens == 7


@pytest.mark.parametrize("model", ALL)
def test_an_answer_may_say_nothing_of_its_usage(standin: Running, model: str) -> None:
    body = body_of(model, directive(no_usage=True, input_tokens=98_765))
    whole = ask(standin, "POST", f"/model/{model}/invoke", body)
    stream = ask(standin, "POST", f"/model/{model}/invoke-with-response-stream", body)
    parts = [shapes.decoded_part(event) for event in events(stream.body)]

    assert "x-amzn-bedrock-input-token-count" not in whole.headers
    said = json.dumps([whole.json, parts]).replace(json.dumps(directive_text(body)), "")
    assert METRICS not in said
    assert "98765" not in said
    assert standin.ledger.totals.input_tokens == 2 * 98_765


def test_claude(bedrock: Any) -> None:
    reply = invoke(bedrock, CLAUDE, CACHED)
    usage = {
        "input_tokens": 120,
        "output_tokens": 30,
        "cache_read_input_tokens": 500,
        "cache_creation_input_tokens": 48,
        "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 8},
    }

    told = (reply["type"], reply["role"], reply["stop_reason"])
    assert told == ("message", "assistant", "end_turn")
    assert reply["content"][0]["type"] == "text"
    assert reply["model"] == "claude-sonnet-4-5-20250929-v1:0"
    assert reply["usage"] == usage

    found = chunks(bedrock, CLAUDE, CACHED)
    assert [chunk["type"] for chunk in found] == [
        "message_start", "content_block_start", *["content_block_delta"] * 3,
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert found[0]["message"]["usage"] == {**usage, "output_tokens": 1}
    assert found[-2]["usage"] == {"output_tokens": 30}
    text = "".join(chunk["delta"]["text"] for chunk in found[2:5])
    assert text == reply["content"][0]["text"]


def test_nova(bedrock: Any) -> None:
    reply = invoke(bedrock, NOVA, CACHED)
    found = chunks(bedrock, NOVA, CACHED)

    assert reply["output"]["message"]["role"] == "assistant"
    assert reply["usage"]["inputTokens"] == 120
    assert reply["usage"]["cacheReadInputTokenCount"] == 500
    kinds = ["messageStart", *["contentBlockDelta"] * 3, "contentBlockStop", "messageStop"]
    assert [next(iter(chunk)) for chunk in found] == [*kinds, "metadata"]
    assert found[-1]["metadata"]["usage"] == reply["usage"]


def test_titan(bedrock: Any) -> None:
    reply = invoke(bedrock, TITAN, SCRIPT)
    found = chunks(bedrock, TITAN, SCRIPT)

    (result,) = reply["results"]
    assert (reply["inputTextTokenCount"], result["tokenCount"]) == (120, 30)
    assert result["completionReason"] == "FINISH"
    assert [chunk["inputTextTokenCount"] for chunk in found] == [120, None, None]
    assert [chunk["totalOutputTextTokenCount"] for chunk in found] == [None, None, 30]


def test_llama(bedrock: Any) -> None:
    reply = invoke(bedrock, LLAMA, SCRIPT, allowed=20)
    found = chunks(bedrock, LLAMA, SCRIPT)

    assert (reply["prompt_token_count"], reply["generation_token_count"]) == (120, 20)
    assert reply["stop_reason"] == "length"
    assert [chunk["prompt_token_count"] for chunk in found] == [120, None, None]
    assert [chunk["generation_token_count"] for chunk in found] == [10, 20, 30]
    assert [chunk["stop_reason"] for chunk in found] == [None, None, "stop"]


def test_mistral(bedrock: Any) -> None:
    (output,) = invoke(bedrock, MISTRAL, SCRIPT)["outputs"]
    (choice,) = invoke(bedrock, MISTRAL_CHAT, SCRIPT)["choices"]
    found = chunks(bedrock, MISTRAL, SCRIPT)

    assert output["stop_reason"] == choice["stop_reason"] == "stop"
    assert output["text"] == choice["message"]["content"]
    assert "".join(chunk["outputs"][0]["text"] for chunk in found) == output["text"]


def test_cohere(bedrock: Any) -> None:
    (generation,) = invoke(bedrock, COHERE, SCRIPT)["generations"]
    chat = invoke(bedrock, COHERE_CHAT, SCRIPT)
    found = chunks(bedrock, COHERE_CHAT, SCRIPT)

    assert generation["text"] == chat["text"]
    assert generation["finish_reason"] == chat["finish_reason"] == "COMPLETE"
    kinds = ["stream-start", *["text-generation"] * 3, "stream-end"]
    assert [chunk["event_type"] for chunk in found] == kinds
    assert chunks(bedrock, COHERE, SCRIPT)[-1]["is_finished"]


def test_openai(bedrock: Any) -> None:
    """Its prompt count includes the cache."""
    reply = invoke(bedrock, OPENAI, CACHED)
    found = chunks(bedrock, OPENAI, CACHED)

    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["prompt_tokens"] == 120 + 500 + 48
    assert reply["usage"]["completion_tokens"] == 30
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 500}
    assert not any("usage" in chunk for chunk in found)  # which it was not asked for


def test_tier_latency_and_metadata_are_headers(standin: Running, bedrock: Any) -> None:
    reply = bedrock.invoke_model(
        modelId=CLAUDE,
        body=json.dumps(claude_body()),
        serviceTier="priority",
        performanceConfigLatency="optimized",
        requestMetadata=json.dumps({"team": "search"}),
    )
    reply["body"].close()

    assert (reply["serviceTier"], reply["performanceConfigLatency"]) == ("priority", "optimized")
    (entry,) = standin.ledger.entries
    assert (entry.service_tier, entry.latency) == ("priority", "optimized")
    assert entry.request_metadata == {"team": "search"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CLAUDE, {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}),
        (CLAUDE, {"anthropic_version": "x", "messages": [{"role": "user", "content": "x"}]}),
        (CLAUDE, {"anthropic_version": "x", "max_tokens": 5, "messages": []}),
        (CLAUDE, claude_body(max_tokens=0)),
        (CLAUDE, claude_body(max_tokens=2.5)),
        (NOVA, {"messages": [{"content": []}]}),
        (LLAMA, {"text": "x"}),
        (TITAN, {"inputText": "x", "textGenerationConfig": 5}),
        (OPENAI, {"messages": [{"role": "user", "content": "x"}], "service_tier": 5}),
    ],
)
def test_a_body_that_its_family_does_not_have_is_refused(
    standin: Running, bedrock: Any, model: str, body: dict[str, Any]
) -> None:
    with pytest.raises(bedrock.exceptions.ValidationException):
        bedrock.invoke_model(modelId=model, body=json.dumps(body))

    assert standin.ledger.entries == []


def test_an_id_of_no_family_is_not_found(bedrock: Any) -> None:
    with pytest.raises(bedrock.exceptions.ResourceNotFoundException, match="anthropic"):
        bedrock.invoke_model(modelId="acme.model-v1", body="{}")


WITHOUT_TEXT: dict[str, dict[str, Any]] = {
    "amazon.titan-embed-text-v2:0": {"inputText": "x" * 40},
    "us.cohere.embed-english-v3": {"texts": ["x" * 40], "input_type": "search_query"},
    "cohere.rerank-v3-5:0": {"query": "x" * 30, "documents": ["x" * 10]},
    "amazon.rerank-v1:0": {"query": "x" * 30, "documents": [{"text": "x" * 10}]},
    "amazon.titan-image-generator-v2:0": {"taskType": "TEXT_IMAGE"},
    "amazon.nova-canvas-v1:0": {"taskType": "TEXT_IMAGE"},
    "us.stability.stable-image-core-v1:1": {"prompt": "x" * 40},
}


@pytest.mark.parametrize("model", WITHOUT_TEXT)
def test_models_without_text_count_their_prompt_or_nothing(
    standin: Running, bedrock: Any, model: str
) -> None:
    reply = bedrock.invoke_model(modelId=model, body=json.dumps(WITHOUT_TEXT[model]))
    headers = reply["ResponseMetadata"]["HTTPHeaders"]
    assert "x-amzn-bedrock-output-token-count" not in headers
    counted = headers.get("x-amzn-bedrock-input-token-count")
    assert counted == (None if "image" in model or "canvas" in model else "10")
    (entry,) = standin.ledger.entries
    assert entry.tokens.output_tokens == 0


@pytest.mark.parametrize("model", WITHOUT_TEXT)
def test_models_without_text_refuse_what_is_for_others(
    standin: Running, bedrock: Any, model: str
) -> None:
    body = WITHOUT_TEXT[model]
    others: list[dict[str, Any]]
    others = [{"max_tokens": 1}, {"inferenceConfig": {}}, {"textGenerationConfig": {}}]
    for more in others:
        with pytest.raises(bedrock.exceptions.ValidationException, match="extraneous key"):
            bedrock.invoke_model(modelId=model, body=json.dumps({**body, **more}))
    with pytest.raises(bedrock.exceptions.ValidationException, match="streaming"):
        bedrock.invoke_model_with_response_stream(modelId=model, body=json.dumps(body))
    messages = [{"role": "user", "content": [{"text": "hello"}]}]
    with pytest.raises(bedrock.exceptions.ValidationException, match="text or chat model"):
        bedrock.converse(modelId=model, messages=messages)
    assert standin.ledger.entries == []
