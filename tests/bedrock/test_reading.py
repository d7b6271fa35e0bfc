"""Bodies are read in time by their length, and handed over to another process unread."""

import json
import random
from typing import Any

import pytest

from bedrock.judged import a_body
from counted_calls import calls
from pricekeeper.bedrock import Family
from pricekeeper.bedrock.reading import (
    MEMBERS_MAX,
    NESTED_MAX,
    SHORT_BODY_BYTES,
    VALUES_MAX,
    Question,
    hand_over,
    read_and_judge,
    take_over,
)

CALLS_MAX = 20_000
"""What the event loop may do at one stroke for a body that it judges itself."""


def converse(blocks: int, block: Any) -> bytes:
    content = [block] * blocks
    body = {"messages": [{"role": "user", "content": content}], "inferenceConfig": {"maxTokens": 9}}
    return json.dumps(body, separators=(",", ":")).encode()


@pytest.mark.parametrize("seed", range(100))
def test_what_is_handed_over_is_the_same(seed: int) -> None:
    """The bounds, and what goes out for any longest answer."""
    body, family = a_body(random.Random(seed))
    question = Question(family, is_signed=True)
    here = read_and_judge(question, json.dumps(body).encode())
    there = take_over(hand_over(here))
    assert (there.refused, there.model) == (here.refused, here.model)
    assert there.content_sha256 == here.content_sha256
    assert here.call is not None
    assert there.call is not None
    assert there.call.bounds == here.call.bounds
    for longest in (1, 50, 4_096):
        assert json.loads(there.call.encoded(longest)) == json.loads(here.call.encoded(longest))


def test_taking_over_costs_the_same_however_many_values_there_are() -> None:
    """So the event loop does no more for 45,000 blocks than for one."""

    def work(blocks: int) -> int:
        data = hand_over(read_and_judge(Question(None), converse(blocks, {"text": "a" * 2_000})))

        def take() -> None:
            call = take_over(data).call
            assert call is not None
            call.encoded(7)

        return calls(take)

    assert work(4_000) == work(1)


@pytest.mark.parametrize(
    ("block", "family"),
    [
        ({"text": "a"}, None),
        ({"image": {"format": "png", "source": {"bytes": "a"}}}, None),
        ({"type": "text", "text": "a"}, Family.ANTHROPIC),
        ({"x": 1}, Family.ANTHROPIC),
        ([], Family.OPENAI),
    ],
)
def test_a_body_that_the_event_loop_judges_has_a_bound(block: Any, family: Family | None) -> None:
    """The worst that fits into a short body, counted."""
    blocks = SHORT_BODY_BYTES // (len(json.dumps(block, separators=(",", ":"))) + 1) - 100
    body = converse(blocks, block)
    assert SHORT_BODY_BYTES // 2 < len(body) <= SHORT_BODY_BYTES
    assert calls(lambda: read_and_judge(Question(family), body)) <= CALLS_MAX


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"messages":[' + b"0," * (VALUES_MAX + 1) + b"0]}", "values at most"),
        (json.dumps({f"n{n}": 1 for n in range(MEMBERS_MAX + 1)}).encode(), "members at most"),
        (b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "must be a JSON object"),
        (b"[]", "must be a JSON object"),
        (b'{"a":"\xff"}', "must be a JSON object"),
        (b"", "must be a JSON object"),
    ],
)
def test_what_is_no_call_is_refused_by_name(body: bytes, why: str) -> None:
    judged = read_and_judge(Question(None), body)
    assert judged.call is None
    assert why in judged.refused
    assert take_over(hand_over(judged)) == judged


def test_depth_is_no_matter_of_where_it_is_read() -> None:
    """A body that is nested as deeply as may be is written again without trouble."""
    body = b'{"messages":[],"additionalModelRequestFields":{"a":' + b"[" * (NESTED_MAX // 2)
    body += b"]" * (NESTED_MAX // 2) + b"}}"
    judged = read_and_judge(Question(None), body)
    assert judged.call is not None
    assert judged.call.encoded(5)
