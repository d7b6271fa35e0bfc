"""Converse and ConverseStream, as the real client sees them and as the service model says."""

from contextlib import closing
from typing import Any

import pytest
from botocore.exceptions import EventStreamError

from pricekeeper.standin import Running
from standin import shapes
from standin.wire import CLAUDE, ask, directive, events, messages

PATH = f"/model/{CLAUDE}"
CACHED = {"cache_read": 500, "cache_write_5m": 30, "cache_write_1h": 7}


def test_a_reply_has_text_usage_metrics_and_tier(standin: Running, bedrock: Any) -> None:
    reply = bedrock.converse(modelId=CLAUDE, messages=messages("x" * 41))

    assert reply["output"]["message"]["role"] == "assistant"
    assert "stand-in" in reply["output"]["message"]["content"][0]["text"]
    assert reply["stopReason"] == "end_turn"
    assert reply["usage"] == {
        "inputTokens": 11,
        "outputTokens": 64,
        "totalTokens": 75,
        "cacheReadInputTokens": 0,
        "cacheWriteInputTokens": 0,
    }
    assert reply["serviceTier"] == {"type": "default"}
    assert reply["performanceConfig"] == {"latency": "standard"}
    assert reply["ResponseMetadata"]["RequestId"] == standin.ledger.entries[0].id


@pytest.mark.parametrize("script", [{}, CACHED, {"service_tier": "flex", "output_tokens": 0}])
def test_a_reply_is_what_the_service_model_says(standin: Running, script: dict[str, Any]) -> None:
    answer = ask(standin, "POST", f"{PATH}/converse", {"messages": messages(directive(**script))})

    expected = shapes.output_of("Converse")
    assert answer.status == 200
    assert shapes.complaints(expected, answer.json) == []


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (["usage", "input_tokens"], 1),
        (["usage", "inputTokens"], "1"),
        (["usage", "inputTokens"], -1),
        (["metrics", "latencyMs"], None),
        (["serviceTier", "type"], "cheap"),
        (["output", "message", "name"], "x"),
        (["model"], "x"),
    ],
)
def test_a_planted_wrong_member_is_found(standin: Running, path: list[str], wrong: Any) -> None:
    """The shape check would find a wrong answer of the stand-in."""
    reply = ask(standin, "POST", f"{PATH}/converse", {"messages": messages()}).json
    holder = reply
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = wrong

    assert len(shapes.complaints(shapes.output_of("Converse"), reply)) == 1


def test_a_missing_member_is_found(standin: Running) -> None:
    reply = ask(standin, "POST", f"{PATH}/converse", {"messages": messages()}).json
    del reply["usage"]["totalTokens"]

    found = shapes.complaints(shapes.output_of("Converse"), reply)
    assert found == ["$.usage.totalTokens: missing"]


def test_a_stream_brings_the_text_in_pieces_and_then_the_usage(
    standin: Running, bedrock: Any
) -> None:
    text = directive(events=3, output_tokens=9, **CACHED)
    stream = bedrock.converse_stream(modelId=CLAUDE, messages=messages(text))["stream"]
    found = list(stream)

    kinds = ["messageStart", *["contentBlockDelta"] * 3, "contentBlockStop", "messageStop"]
    assert [next(iter(event)) for event in found] == [*kinds, "metadata"]
    pieces = [e["contentBlockDelta"]["delta"]["text"] for e in found if "contentBlockDelta" in e]
    assert len("".join(pieces)) == 4 * 9
    usage = found[-1]["metadata"]["usage"]
    assert usage["cacheDetails"] == [
        {"ttl": "5m", "inputTokens": 30},
        {"ttl": "1h", "inputTokens": 7},
    ]
    assert usage["cacheReadInputTokens"] == 500
    assert usage["cacheWriteInputTokens"] == 37
    assert usage["outputTokens"] == 9


@pytest.mark.parametrize("script", [{}, CACHED, {"fate": "breaks-off"}])
def test_every_event_is_what_the_service_model_says(
    standin: Running, script: dict[str, Any]
) -> None:
    body = {"messages": messages(directive(**script))}
    answer = ask(standin, "POST", f"{PATH}/converse-stream", body)

    assert answer.headers["content-type"] == "application/vnd.amazon.eventstream"
    found = events(answer.body)
    assert len(found) >= 4
    assert [
        x for event in found for x in shapes.event_complaints("ConverseStreamOutput", event)
    ] == []


def test_a_planted_wrong_event_is_found(standin: Running) -> None:
    stream = "ConverseStreamOutput"
    stop = {"stopReason": "end_turn"}

    assert shapes.event_complaints(stream, ("event", "messageStop", stop)) == []
    assert shapes.event_complaints(stream, ("event", "messageEnd", stop)) != []
    assert shapes.event_complaints(stream, ("exception", "messageStop", stop)) != []
    assert shapes.event_complaints(stream, ("event", "messageStop", {"stop": "end_turn"})) != []


def test_a_stream_that_breaks_off_raises_and_is_billed(standin: Running, bedrock: Any) -> None:
    text = directive(fate="breaks-off", output_tokens=50)
    stream = bedrock.converse_stream(modelId=CLAUDE, messages=messages(text))["stream"]

    with closing(stream), pytest.raises(EventStreamError, match="modelStreamErrorException"):
        list(stream)
    assert standin.ledger.totals.output_tokens == 50


def test_output_is_never_more_than_the_request_allows(bedrock: Any) -> None:
    few = {"maxTokens": 5}
    reply = bedrock.converse(modelId=CLAUDE, messages=messages(), inferenceConfig=few)
    scripted = bedrock.converse(
        modelId=CLAUDE, messages=messages(directive(output_tokens=900)), inferenceConfig=few
    )

    assert reply["usage"]["outputTokens"] == scripted["usage"]["outputTokens"] == 5
    assert scripted["stopReason"] == "max_tokens"


def test_the_tier_and_the_latency_that_were_asked_for_are_served(
    standin: Running, bedrock: Any
) -> None:
    reply = bedrock.converse(
        modelId=CLAUDE,
        messages=messages(),
        serviceTier={"type": "priority"},
        performanceConfig={"latency": "optimized"},
        requestMetadata={"team": "search"},
    )

    assert reply["serviceTier"] == {"type": "priority"}
    assert reply["performanceConfig"] == {"latency": "optimized"}
    entry = standin.ledger.entries[0]
    assert (entry.service_tier, entry.latency) == ("priority", "optimized")
    assert entry.request_metadata == {"team": "search"}


def test_another_tier_than_the_one_asked_for_may_serve(standin: Running, bedrock: Any) -> None:
    text = directive(service_tier="default")
    tier = {"type": "flex"}
    reply = bedrock.converse(modelId=CLAUDE, messages=messages(text), serviceTier=tier)

    assert reply["serviceTier"] == {"type": "default"}
    assert standin.ledger.entries[0].service_tier == "default"


def test_an_answer_may_say_nothing_of_its_usage(standin: Running, bedrock: Any) -> None:
    text = directive(no_usage=True)
    reply = bedrock.converse(modelId=CLAUDE, messages=messages(text))
    stream = bedrock.converse_stream(modelId=CLAUDE, messages=messages(text))["stream"]

    assert "usage" not in reply
    assert [next(iter(event)) for event in stream][-1] == "messageStop"
    assert standin.ledger.billed_calls == 2


def test_system_and_results_of_tools_are_text_too(bedrock: Any) -> None:
    result = {"toolUseId": "t", "content": [{"text": "é" * 10}]}
    conversation = [{"role": "user", "content": [{"text": "aaaa"}, {"toolResult": result}]}]
    reply = bedrock.converse(modelId=CLAUDE, messages=conversation, system=[{"text": "b" * 4}])

    assert reply["usage"]["inputTokens"] == (4 + 20 + 4) // 4
