"""What a reply says was used, in the words of each family; what says nothing is never zero."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.bedrock import (
    Family,
    Usage,
    answers_with_text,
    family_of_body,
    family_of_model,
    usage_of_converse,
    usage_of_invoke,
)
from pricekeeper.bedrock.usage import usage_of_body, usage_of_metrics

INPUT = "x-amzn-bedrock-input-token-count"
OUTPUT = "x-amzn-bedrock-output-token-count"
METRICS = "amazon-bedrock-invocationMetrics"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"inputTokens": 10, "outputTokens": 5}, Usage(10, 5)),
        ({"inputTokens": 0, "outputTokens": 0}, Usage(0, 0)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 3},
         Usage(10, 5, cache_read_tokens=3)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheWriteInputTokens": 7},
         Usage(10, 5, cache_write_5m_tokens=7)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheWriteInputTokens": 7,
          "cacheDetails": [{"ttl": "5m", "inputTokens": 3}, {"ttl": "1h", "inputTokens": 4}]},
         Usage(10, 5, cache_write_5m_tokens=3, cache_write_1h_tokens=4)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheDetails": [{"ttl": "1h", "inputTokens": 4}]},
         Usage(10, 5, cache_write_1h_tokens=4)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheDetails": ["1h", None, {"ttl": "1h"}]},
         Usage(10, 5)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheDetails": "1h"}, Usage(10, 5)),
        ({"inputTokens": 10}, None),
        ({"inputTokens": 10, "outputTokens": None}, None),
        ({"inputTokens": 10, "outputTokens": -1}, None),
        ({"inputTokens": True, "outputTokens": 1}, None),
        ({"inputTokens": "10", "outputTokens": 1}, None),
        ({}, None),
        (None, None),
        ("10", None),
    ],
)  # fmt: skip
def test_converse(usage: Any, expected: Usage | None) -> None:
    """Its counts are handed on as they are reported, those of the cache by their time."""
    assert usage_of_converse({"usage": usage}) == expected


def test_what_was_served_is_in_the_reply() -> None:
    """The tier, and the model that a prompt router has chosen."""
    reply = {
        "usage": {"inputTokens": 1, "outputTokens": 2},
        "serviceTier": {"type": "flex"},
        "trace": {"promptRouter": {"invokedModelId": "arn:of-the-model"}},
    }
    assert usage_of_converse(reply) == Usage(1, 2, service_tier="flex", model_id="arn:of-the-model")
    odd = {**reply, "serviceTier": {"type": 7}, "trace": {"promptRouter": {"invokedModelId": 7}}}
    assert usage_of_converse(odd) == Usage(1, 2)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"usage": {"input_tokens": 1, "output_tokens": 2}}, Usage(1, 2)),
        ({"usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3,
                    "cache_creation_input_tokens": 9,
                    "cache_creation": {"ephemeral_1h_input_tokens": 4}}},
         Usage(1, 2, cache_read_tokens=3, cache_write_5m_tokens=5, cache_write_1h_tokens=4)),
        ({"usage": {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 3}},
         Usage(1, 2, cache_read_tokens=3)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 2,
                    "prompt_tokens_details": {"cached_tokens": 4}}},
         Usage(9, 2, cache_read_tokens=4)),
        ({"prompt_token_count": 1, "generation_token_count": 2}, Usage(1, 2)),
        ({"inputTextTokenCount": 1, "results": [{"tokenCount": 2}, {"tokenCount": 3}]},
         Usage(1, 5)),
        ({"inputTextTokenCount": 4, "embedding": [0.5]}, Usage(4, 0)),
        ({METRICS: {"inputTokenCount": 1, "outputTokenCount": 2, "cacheReadInputTokenCount": 3,
                    "cacheWriteInputTokenCount": 4}},
         Usage(1, 2, cache_read_tokens=3, cache_write_5m_tokens=4)),
        ({"inputTextTokenCount": 1}, None),
        ({"outputs": [{"text": "hello"}]}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_bodies_of_every_family(body: dict[str, Any], expected: Usage | None) -> None:
    """OpenAI's input has the cache in it: the service knows that, and takes it out once."""
    assert usage_of_body(body) == expected


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({}, {INPUT: "7", OUTPUT: "8"}, Usage(7, 8)),
        ({"prompt_token_count": 1, "generation_token_count": 2}, {INPUT: "7", OUTPUT: "8"},
         Usage(1, 2)),
        ({}, {INPUT: "7", OUTPUT: "8", "x-amzn-bedrock-service-tier": "flex"},
         Usage(7, 8, service_tier="flex")),
        ({}, {INPUT: "7"}, None),
        ({"embeddings": [[0.5]]}, {INPUT: "7"}, Usage(7, 0)),
        ({}, {INPUT: "7", OUTPUT: "-8"}, None),
        ({}, {INPUT: "7", OUTPUT: "²"}, None),
        ({}, {INPUT: "", OUTPUT: "8"}, None),
    ],
)  # fmt: skip
def test_headers_count_where_the_body_says_nothing(
    body: dict[str, Any], headers: dict[str, str], expected: Usage | None
) -> None:
    """Vectors have no output, so there is no count of it."""
    assert usage_of_invoke(body, headers) == expected


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"results": [{"index": 0}]}, {INPUT: "7"}, Usage(7, 0)),
        ({"embeddingsByType": {}, "inputTextTokenCount": 9}, {}, Usage(9, 0)),
        ({"images": ["x"]}, {}, None),
        ({"results": [{"index": 0}]}, {OUTPUT: "0"}, None),
    ],
)
def test_a_model_without_text_reports_its_prompt_alone(
    body: dict[str, Any], headers: dict[str, str], expected: Usage | None
) -> None:
    """What it does not report is not known, and never zero."""
    assert usage_of_invoke(body, headers, has_answer=False) == expected


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("1h"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "usage",
                    "inputTokens",
                    "outputTokens",
                    "cacheDetails",
                    "ttl",
                    "serviceTier",
                    "type",
                    "trace",
                    "promptRouter",
                    "input_tokens",
                    "output_tokens",
                    "cache_creation",
                    "prompt_tokens",
                    "completion_tokens",
                    "prompt_tokens_details",
                    "results",
                    "inputTextTokenCount",
                    METRICS,
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["usage", "serviceTier", "trace", METRICS]), junk))
def test_no_reply_raises(reply: dict[str, Any]) -> None:
    """And what is found are whole numbers, none below zero."""
    for found in (
        usage_of_converse(reply),
        usage_of_body(reply),
        usage_of_metrics(reply),
        usage_of_invoke(reply, {}),
    ):
        if found is not None:
            counts = [value for name, value in found.record("m").items() if "tokens" in name]
            assert all(type(one) is int and one >= 0 for one in counts)
            assert found.service_tier is None or isinstance(found.service_tier, str)


def test_a_record_leaves_out_what_is_nothing() -> None:
    """It names the model that was called, or the one that answered."""
    least = {"input_tokens": 1, "output_tokens": 2, "bedrock_model_id": "called"}
    assert Usage(1, 2).record("called") == least
    whole = Usage(1, 2, 3, 4, 5, service_tier="flex", model_id="answered").record("called")
    assert whole == {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_tokens": 3,
        "cache_write_5m_tokens": 4,
        "cache_write_1h_tokens": 5,
        "service_tier": "flex",
        "bedrock_model_id": "answered",
    }


@pytest.mark.parametrize(
    ("model_id", "family"),
    [
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", Family.ANTHROPIC),
        ("us.anthropic.claude-opus-5-5", Family.ANTHROPIC),
        ("arn:aws:bedrock:us-east-1::foundation-model/meta.llama3-70b", Family.LLAMA),
        ("eu.amazon.nova-pro-v1:0", Family.NOVA),
        ("amazon.titan-text-premier-v1:0", Family.TITAN),
        ("mistral.mistral-large-2407-v1:0", Family.MISTRAL),
        ("cohere.command-r-plus-v1:0", Family.COHERE),
        ("openai.gpt-oss-120b-1:0", Family.OPENAI),
        ("ai21.jamba-1-5-large-v1:0", Family.OTHER),
        ("arn:aws:bedrock:us-east-1:1:application-inference-profile/x", Family.OTHER),
    ],
)
def test_an_id_names_its_family(model_id: str, family: Family) -> None:
    """After any region or ARN."""
    assert family_of_model(model_id) is family


@pytest.mark.parametrize(
    ("body", "family"),
    [
        ({"anthropic_version": "x", "max_tokens": 1}, Family.ANTHROPIC),
        ({"schemaVersion": "messages-v1"}, Family.NOVA),
        ({"inputText": "x"}, Family.TITAN),
        ({"prompt": "x", "max_gen_len": 1}, Family.LLAMA),
        ({"messages": [], "max_completion_tokens": 1}, Family.OPENAI),
        ({"prompt": "x", "max_tokens": 1}, Family.OTHER),
        ({}, Family.OTHER),
    ],
)
def test_a_body_tells_its_family_or_does_not(body: dict[str, Any], family: Family) -> None:
    """Several families have a prompt."""
    assert family_of_body(body) is family


def test_models_of_vectors_write_no_answer() -> None:
    """Their requests can't limit it."""
    assert not answers_with_text("amazon.titan-embed-text-v2:0")
    assert not answers_with_text("cohere.rerank-v3-5:0")
    assert answers_with_text("us.anthropic.claude-opus-5-5")


@pytest.mark.parametrize("ttl", ["9h", "", None, 7])
def test_what_is_cached_for_a_time_that_is_not_known_costs_the_most(ttl: Any) -> None:
    """A longer time may have a higher price."""
    details = [{"ttl": "5m", "inputTokens": 2}, {"ttl": ttl, "inputTokens": 3}]
    usage = {"inputTokens": 1, "outputTokens": 1, "cacheWriteInputTokens": 5}
    reply = {"usage": {**usage, "cacheDetails": details}}
    assert usage_of_converse(reply) == Usage(1, 1, 0, 2, 3)
