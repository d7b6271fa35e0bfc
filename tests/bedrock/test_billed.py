"""What is held for a body is never below what Bedrock bills for the bytes that are sent."""

import copy
import json
import os
import random
from typing import Any

import pytest

from bedrock.billed import WINDOW, Bill, billed
from bedrock.judged import NAMES, VALUES, a_body, claude, converse, objects_in
from pricekeeper.bedrock import BedrockCall, CallBounds, Family
from pricekeeper.bedrock.judging import MAX_OUTPUT_TOKENS, WINDOW_TOKENS
from pricekeeper.bedrock.lengths import ADDITIONAL
from pricekeeper.bedrock.reading import Question, read_and_judge

BODIES = int(os.environ.get("PRICEKEEPER_MASKED_BODIES", "5000"))
SHARES = 10
MEMBERS_ADDED_MAX = 3
TIER, LATENCY = "x-amzn-bedrock-service-tier", "x-amzn-bedrock-performanceconfig-latency"
HEADERS: list[dict[str, str]] = [
    {}, {}, {}, {TIER: "priority"}, {TIER: "flex"}, {LATENCY: "optimized"},
    {TIER: "flex", LATENCY: "optimized"}, {"anthropic-beta": "context-1m-2025-08-07"},
    {"x-amzn-bedrock-guardrailidentifier": "g"},
]  # fmt: skip
BETA = "anthropic_beta"
LONG, INTERLEAVED = "context-1m-2025-08-07", "interleaved-thinking-2025-05-14"
_CACHES = ("none", "5m", "1h")


def written(value: Any, rng: random.Random) -> str:
    """The value as JSON, with some names twice and some with an escape."""
    if isinstance(value, list):
        return f"[{','.join(written(one, rng) for one in value)}]"
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    parts = []
    for name, inner in value.items():
        text = json.dumps(name)
        if rng.random() < 0.05:
            text = f'"\\u{ord(name[0]):04x}{name[1:]}"'
        if rng.random() < 0.02:
            parts.append(f"{text}:{json.dumps(rng.choice(VALUES))}")
        parts.append(f"{text}:{written(inner, rng)}")
    return f"{{{','.join(parts)}}}"


def too_low(bounds: CallBounds, longest: int, bill: Bill) -> list[str]:
    """Of what less is held than is billed."""
    is_window = bounds.is_open and bounds.input_tokens >= WINDOW_TOKENS
    is_dearer = bounds.service_tier not in (None, "flex")
    enough = {
        "input": is_window or (bill.tokens < WINDOW and bill.tokens <= bounds.input_tokens),
        "output": bill.output <= longest,
        "cache": _CACHES.index(bill.cache) <= _CACHES.index(bounds.cache_write),
        "tier": len(bill.tiers) < 2 and (not bill.tiers or is_dearer),
        "beside": not bill.beside or bool(bounds.uses),
        "window": bill.window <= bounds.window_tokens,
    }
    return [name for name, is_enough in enough.items() if not is_enough]


def held_for(
    body: bytes, family: Family | None, headers: dict[str, str]
) -> tuple[BedrockCall, int] | None:
    """The call and its longest answer; ``None`` if the body is refused."""
    call = read_and_judge(Question(family, headers=headers), body).call
    if call is None:
        return None
    stated = call.bounds.max_output_tokens
    return call, max(
        MAX_OUTPUT_TOKENS, call.bounds.least_output_tokens
    ) if stated is None else stated


def granted(
    body: Any, family: Family | None = None, headers: dict[str, str] | None = None
) -> tuple[BedrockCall, int]:
    """The call of a body that is not refused, and its longest answer."""
    text = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    held = held_for(text, family, headers or {})
    assert held is not None
    return held


@pytest.mark.parametrize("share", range(SHARES))
def test_a_hold_is_never_below_the_bill(share: int) -> None:
    """Of random bodies with members that hide others, names twice, escapes and headers."""
    rng = random.Random(share)
    compared = 0
    for _ in range(BODIES // SHARES):
        body, family = a_body(rng)
        for _ in range(rng.randint(0, MEMBERS_ADDED_MAX)):
            holder = rng.choice([*objects_in(body)])
            holder[rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))
        headers = {} if family is None else rng.choice(HEADERS)
        held = held_for(written(body, rng).encode(), family, headers)
        if held is None:
            continue
        call, longest = held
        sent = call.encoded(longest)
        bill = billed(None if family is None else family.value, sent, headers)
        if bill is not None:
            compared += 1
            assert not too_low(call.bounds, longest, bill), (family, sent[:2_000], headers)
    assert compared > BODIES // SHARES // 10


SHORT = {"text": "x"}
SCHEMA: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("body", "family"),
    [
        (converse(SHORT, outputConfig={"textFormat": {"type": "json_schema"}}), None),
        (converse(SHORT, **{ADDITIONAL: {"output_config": {"format": SCHEMA}}}), None),
        (converse(SHORT, **{ADDITIONAL: {"response_format": SCHEMA}}), None),
        (claude(output_config={"format": SCHEMA}), Family.ANTHROPIC),
        (claude(output_format=SCHEMA), Family.ANTHROPIC),
        (claude(output_format=SCHEMA, tools=[{"type": "bash_20250124", "name": "b"}]),
         Family.ANTHROPIC),
        (claude(response_format=SCHEMA), Family.OPENAI),
        (claude(functions=[{"name": "n"}]), Family.OPENAI),
        (converse({"document": {"name": "d", "source": {"content": [{"text": "a. " * 9_000}]}}},
                  SHORT), None),
        (claude({"type": "document", "source": {"type": "content", "content": "a. " * 9_000}}),
         Family.ANTHROPIC),
        (converse({"image": {"format": "png", "source": {"bytes": "x"}}}), None),
        (claude({"type": "image_url", "image_url": "data:image/png;base64,x"}), Family.OTHER),
        ({"prompt": "x", "images": ["x"] * 9}, Family.LLAMA),
    ],
)  # fmt: skip
def test_what_the_body_hardly_shows_is_held_for(
    body: dict[str, Any], family: Family | None
) -> None:
    """Instructions beside a schema, marks beside sentences, and pictures of many pixels."""
    call, longest = granted(body, family)
    bill = billed(None if family is None else family.value, call.encoded(longest), {})
    assert bill is not None
    assert not too_low(call.bounds, longest, bill)


THOUGHTS = {"thinking": {"type": "enabled", "budget_tokens": 9_000}}


@pytest.mark.parametrize(
    ("body", "family", "headers"),
    [
        (converse({"text": "x"}, serviceTier={"type": "flex"},
                  performanceConfig={"latency": "optimized"}), None, {}),
        (claude(), Family.ANTHROPIC, {TIER: "flex", LATENCY: "optimized"}),
        (claude(**THOUGHTS, **{BETA: [INTERLEAVED]}), Family.ANTHROPIC, {}),
        (claude(speed="fast"), Family.ANTHROPIC, {}),
        (claude(inference_geo="us"), Family.ANTHROPIC, {}),
        (converse({"text": "x"}, **{ADDITIONAL: {"speed": "fast"}}), None, {}),
        (claude(generation_config={"candidate_count": 9}), Family.OTHER, {}),
        ({"messages": [], "maxOutputTokens": 1}, Family.OTHER, {}),
        ({"messages": [], "max_gen_len": 1}, Family.OTHER, {}),
    ],
)  # fmt: skip
def test_what_can_not_be_held_for_is_refused(
    body: dict[str, Any], family: Family | None, headers: dict[str, str]
) -> None:
    assert held_for(json.dumps(body).encode(), family, headers) is None


@pytest.mark.parametrize(
    ("body", "family", "use"),
    [
        (claude(prediction={"type": "content", "content": "x"}), Family.OPENAI, "prediction"),
        (claude(tools=[{"type": "advisor_20260301", "name": "a"}]), Family.ANTHROPIC,
         "tool_call:advisor"),
        (claude(tools=[{"type": "browser"}]), Family.OPENAI, "tool_call:browser"),
    ],
)  # fmt: skip
def test_what_may_be_billed_beside_tokens_needs_a_price(
    body: dict[str, Any], family: Family, use: str
) -> None:
    """A tool of a type that is not known may run at Bedrock's side."""
    assert granted(body, family)[0].bounds.uses == (use,)


def test_a_function_that_converse_hands_on_is_the_callers_own() -> None:
    tools = [{"type": "function", "function": {"name": "n"}}]
    bounds = granted(converse({"text": "x"}, **{ADDITIONAL: {"tools": tools}}))[0].bounds
    assert (bounds.is_open, bounds.uses) == (False, ())


@pytest.mark.parametrize(
    ("more", "headers", "window"),
    [
        ({BETA: [LONG]}, {}, 1_000_000),
        ({BETA: LONG}, {}, 1_000_000),
        ({BETA: ["context-400k"]}, {}, 400_000),
        ({}, {"anthropic-beta": f"{INTERLEAVED},{LONG}"}, 1_000_000),
        ({BETA: [INTERLEAVED, "context-management-2025-06-27"]}, {}, 0),
    ],
)
def test_a_beta_says_for_how_long_a_window_it_asks(
    more: dict[str, Any], headers: dict[str, str], window: int
) -> None:
    """The model's own window is held at the most, so a longer one has to be known."""
    call, _ = granted(claude(**more), Family.ANTHROPIC, headers)
    assert call.bounds.window_tokens == window


def test_a_text_that_grows_when_it_is_composed_is_held_for_as_it_grows() -> None:
    """One character of three bytes becomes 18 characters; its time does not grow by the square."""
    grown = "\ufdfa"
    reordered = "\u0301\u0316" * 90_000
    for text, least in (
        (grown * 99, 33 * 99), (reordered, 4 * 90_000), (grown * 600_000, 33 * 600_000)
    ):  # fmt: skip
        assert granted(converse({"text": text}))[0].bounds.input_tokens >= least


@pytest.mark.parametrize(
    ("more", "least"),
    [({}, 1), ({"n": 5_000}, 5_000), ({"N": 3}, 3), ({"num_return_sequences": 4}, 4)],
)
def test_an_answer_is_never_cut_below_a_token_for_each_that_is_asked_for(
    more: dict[str, Any], least: int
) -> None:
    """Else what is left of a budget would be held, and as many tokens as answers be billed."""
    call, longest = granted({"messages": [], **more}, Family.OPENAI)
    assert call.bounds.least_output_tokens == least
    for tokens in (least, longest):
        bill = billed("openai", call.encoded(tokens), {})
        assert bill is not None
        assert bill.output <= tokens


def test_thoughts_fit_into_the_shortest_answer() -> None:
    body = claude(**{**THOUGHTS, "max_tokens": 10_000, BETA: [INTERLEAVED]})
    assert granted(body, Family.ANTHROPIC)[0].bounds.least_output_tokens == 9_001


@pytest.mark.parametrize(
    "body",
    [b'\xef\xbb\xbf{"max_tokens":9}', '{"max_tokens":9}'.encode("utf-16"), b'{"max_tokens":1e3}',
     b'{"max_tokens":1.0}', b'{"max_tokens":-0}', b'{"temperature":NaN}', b'{"temperature":1e999}',
     b'{"max_tokens":' + b"9" * 5_000 + b"}", b'{"a":"\\ud800"}', b"[]", b"null", b"{} {}", b""],
)  # fmt: skip
def test_bytes_that_two_readers_may_read_differently_are_refused(body: bytes) -> None:
    assert held_for(body, Family.ANTHROPIC, {}) is None


@pytest.mark.parametrize(
    ("body", "longest"),
    [(b'{"max_tokens":5,"max_tokens":900}', 900), (b'{"max_tokens":900,"max_tokens":5}', 5),
     (b'{"max_tokens":5,"max_\\u0074okens":900}', 900),
     (b'{"Max-Tokens":900,"max_tokens":5}', 900)],
)  # fmt: skip
def test_a_name_that_is_there_twice_is_sent_once(body: bytes, longest: int) -> None:
    """With the value that was read."""
    call, asked = granted(body, Family.ANTHROPIC)
    assert call.encoded(asked) == b'{"max_tokens":%d}' % longest
