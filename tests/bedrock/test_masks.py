"""Nothing that is added to a body lowers what is held for it."""

import copy
import os
import random
from typing import Any

import pytest

from bedrock.judged import (
    CONVERSE_BLOCKS,
    DATA,
    NAMES,
    S3,
    VALUES,
    a_body,
    claude,
    converse,
    judged,
    objects_in,
    states_length,
    tokens_of,
)
from pricekeeper.bedrock import BedrockCall, BodyRefusedError, Family
from pricekeeper.bedrock.judging import MAX_OUTPUT_TOKENS, WINDOW_TOKENS

BODIES = int(os.environ.get("PRICEKEEPER_MASKED_BODIES", "5000"))
SHARES = 10
_CACHES = ("none", "5m", "1h")
_DEARER_TIERS = ("priority", "optimized")


def hold(call: BedrockCall) -> tuple[int, int, int, bool]:
    """What is held for a call, as numbers that may grow."""
    bounds = call.bounds
    longest = MAX_OUTPUT_TOKENS if bounds.max_output_tokens is None else bounds.max_output_tokens
    is_dearer = bounds.service_tier in _DEARER_TIERS
    return bounds.input_tokens, longest, _CACHES.index(bounds.cache_write), is_dearer


@pytest.mark.parametrize("share", range(SHARES))
def test_adding_a_member_anywhere_never_lowers_a_hold(share: int) -> None:
    """Input, output, cache and tier: each stays or grows, or the body is refused.

    The first longest answer that is stated is the exception: that is what it is for.
    """
    rng = random.Random(share)
    accepted = 0
    for _ in range(BODIES // SHARES):
        body, family = a_body(rng)
        before = judged(body, family)
        masked = copy.deepcopy(body)
        holder = rng.choice([*objects_in(masked)])
        name, value = rng.choice(NAMES), copy.deepcopy(rng.choice(VALUES))
        if name in holder:
            continue
        holder[name] = value
        try:
            after = judged(masked, family)
        except BodyRefusedError:
            continue
        accepted += 1
        was, now = hold(before), hold(after)
        if before.bounds.max_output_tokens is None and states_length({name: value}):
            was, now = (was[0] - 8, 0, *was[2:]), (now[0], 0, *now[2:])  # its digits are fewer
        assert all(a <= b for a, b in zip(was, now, strict=True)), (family, name, value, was, now)
    assert accepted > BODIES // SHARES // 10


DOCUMENT = {"name": "d", "format": "csv", "source": S3}
PDF = {"type": "document", "source": {"type": "url", "url": "https://x.example"}}


@pytest.mark.parametrize("name", ["text", "content", "bytes", "data", "url", "type", "foo"])
@pytest.mark.parametrize("value", [None, "", "x", [], [None], {}, "image"], ids=str)
def test_a_member_that_bedrock_does_not_read_hides_no_document(name: str, value: Any) -> None:
    """In the source, in the document or beside it: it is refused, dropped, or changes nothing."""
    for depth in range(3):
        body = converse({"document": copy.deepcopy(DOCUMENT)})
        block = body["messages"][0]["content"][0]
        holder = (block, block["document"], block["document"]["source"])[depth]
        if name in holder:
            continue
        holder[name] = value
        try:
            call = judged(body)
        except BodyRefusedError:
            continue
        assert call.bounds.input_tokens == WINDOW_TOKENS
        assert depth == 1 or value is None
        assert value is not None or f'"{name}":null' not in call.encoded(9).decode()


@pytest.mark.parametrize("holder", ["image_url", "input_audio", "source", "image", "file"])
def test_a_holder_of_another_medium_hides_no_document(holder: str) -> None:
    """What a family's shape does not have holds the window."""
    hidden: dict[str, Any] = {"type": "image", holder: {"url": "x", "document": DOCUMENT}}
    for family in (Family.ANTHROPIC, Family.OPENAI, Family.OTHER):
        call = None
        try:
            call = judged(claude(hidden, PDF), family)
        except BodyRefusedError:
            continue
        assert call.bounds.is_open


@pytest.mark.parametrize("block", CONVERSE_BLOCKS, ids=lambda one: next(iter(one)))
def test_what_is_sent_is_what_was_judged(block: dict[str, Any]) -> None:
    """Members that are null are not sent; all others are, as they were."""
    body = converse(block, inferenceConfig={"maxTokens": 7})
    holder = next(iter(block.values()))
    masked = copy.deepcopy(body)
    if isinstance(holder, dict):
        masked["messages"][0]["content"][0][next(iter(block))]["foo"] = None
    masked["system"] = None
    assert judged(masked).written(7) == body


def test_two_members_of_a_union_are_refused() -> None:
    """Bedrock's parser takes exactly one, and which one it would take is not certain."""
    two = {"text": "x", "document": DOCUMENT}
    for block in (two, {"image": {"format": "png", "source": {**S3, "bytes": "x"}}}, {}):
        with pytest.raises(BodyRefusedError, match="exactly one member"):
            judged(converse(block))


def test_an_unknown_member_is_refused_by_its_name_in_converse() -> None:
    """The message names the shape, the member, and what there is; long names are cropped."""
    with pytest.raises(BodyRefusedError, match=r"ContentBlock has no member 'foo'; .*text, image"):
        judged(converse({"foo": {"bytes": DATA}}))
    with pytest.raises(BodyRefusedError) as refused:
        judged(converse({"text": "x"}, **{"f" * 9_999: 1}))
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("family", [one for one in Family if one is not Family.NOVA])
def test_an_unknown_member_of_a_family_holds_the_window(family: Family) -> None:
    """New features work, dearly; null is no feature."""
    body = {"prompt": "x"} if family is Family.LLAMA else {"message": "x"}
    known = {"temperature": 0.5}
    assert tokens_of({**body, **known, "new_feature": None}, family) == tokens_of(
        {**body, **known}, family
    )
    assert tokens_of({**body, "new_feature": {"bytes": DATA}}, family) == WINDOW_TOKENS


def test_a_longest_answer_in_an_unknown_member_is_refused() -> None:
    """It would be obeyed, and can't be held for."""
    body = {"inputs": "x", "parameters": {"max_new_tokens": 9}}
    with pytest.raises(BodyRefusedError, match="'max_new_tokens'"):
        judged(body, Family.OTHER)
