"""OpenAI's and Anthropic's own APIs, in one piece and as server-sent events."""

from typing import Any

import pytest

from pricekeeper.standin import Running, TokenCounts
from standin.wire import Answer, ask, directive, sse

CHAT = "/openai/v1/chat/completions"
MESSAGES = "/anthropic/v1/messages"
GPT = "openai.gpt-oss-120b-1:0"
CLAUDE = "anthropic.claude-sonnet-4-5"
SCRIPT = {"input_tokens": 120, "output_tokens": 30, "events": 3, "cache_read": 500}


def call(standin: Running, path: str, script: dict[str, Any], **more: Any) -> Answer:
    body = {
        "model": GPT if path == CHAT else CLAUDE,
        "max_tokens": 1_000,
        "messages": [{"role": "user", "content": directive(**script)}],
        **more,
    }
    return ask(standin, "POST", path, body, **{"x-api-key": "any"})


def test_a_chat_completion(standin: Running) -> None:
    answer = call(standin, CHAT, SCRIPT, service_tier="flex", metadata={"team": "a"})

    reply = answer.json
    assert reply["choices"][0]["message"]["role"] == "assistant"
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (620, 30)
    assert reply["service_tier"] == "flex"
    (entry,) = standin.ledger.entries
    assert (entry.operation, entry.model_id) == ("ChatCompletions", GPT)
    assert (entry.id, entry.service_tier) == (answer.headers["x-amzn-requestid"], "flex")
    assert entry.tokens == TokenCounts(120, 30, 500)
    assert entry.request_metadata == {"team": "a"}


@pytest.mark.parametrize("asks", [True, False])
def test_a_chat_stream_says_its_usage_only_if_asked(standin: Running, asks: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if asks else {}
    answer = call(standin, CHAT, SCRIPT, stream=True, **options)

    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, end = [data for _, data in sse(answer.body)]
    assert end == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk] == (
        [30] if asks else []
    )
    assert standin.ledger.totals == TokenCounts(120, 30, 500)


def test_a_message(standin: Running) -> None:
    reply = call(standin, MESSAGES, SCRIPT, system="x" * 8).json

    assert reply["usage"]["input_tokens"] == 120
    assert reply["usage"]["cache_read_input_tokens"] == 500
    (entry,) = standin.ledger.entries
    assert (entry.operation, entry.model_id) == ("Messages", CLAUDE)


def test_a_streamed_message_has_named_events(standin: Running) -> None:
    found = sse(call(standin, MESSAGES, SCRIPT, stream=True).body)

    assert [name for name, _ in found] == [data["type"] for _, data in found]
    assert found[0][1]["message"]["usage"]["input_tokens"] == 120
    assert found[-2][1]["usage"] == {"output_tokens": 30}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("ThrottlingException", 429, "rate_limit_error"),
        ("ServiceUnavailableException", 503, "overloaded_error"),
        ("ModelErrorException", 424, "api_error"),
    ],
)
def test_an_error_is_that_of_its_api(
    standin: Running, path: str, name: str, status: int, kind: str
) -> None:
    answer = call(standin, path, {"fate": name})

    assert answer.status == status
    assert answer.json["error"]["type"] == kind
    assert standin.ledger.entries == []


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_stream_that_breaks_off_ends_with_an_error(standin: Running, path: str) -> None:
    found = sse(call(standin, path, {"fate": "breaks-off"}, stream=True).body)

    assert "error" in found[-1][1]
    assert sum("error" in data for _, data in found) == 1
    assert standin.ledger.billed_calls == 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_model_is_required(standin: Running, path: str) -> None:
    answer = ask(standin, "POST", path, {"messages": [], "max_tokens": 1})

    assert answer.status == 400
    assert "model" in answer.json["error"]["message"]
