"""How much a request can cost at the most: no text of it escapes, whatever form it has."""

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.bedrock import (
    Family,
    WrongLengthError,
    bounds,
    bounds_of,
    read_max_output,
    with_max_output,
)
from pricekeeper.bedrock.bounds import (
    AUDIO_TOKENS,
    DOCUMENT_TOKENS,
    IMAGE_TOKENS,
    INPUT_TOKENS_MAX,
    TEMPLATE_TOKENS,
    TOOL_TOKENS,
    UNKNOWN_TOKENS,
    VIDEO_TOKENS,
)

TEXT = "words of a prompt " * 60
PICTURE = "iVBORw0KGgo" * 20_000

NAMES = (
    "messages content text type source bytes data url image document image_url images cachePoint "
    "cache_control input json tools ttl n max_tokens inferenceConfig requestMetadata serviceTier ü"
)
names = st.sampled_from(NAMES.split()) | st.text(max_size=5)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.sampled_from(["image", "document", "video", "1h", "ephemeral"])
)
junk = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=25,
)
bodies = st.dictionaries(names, junk, max_size=6)

MEDIA = {"image", "image_url", "input_image", "audio", "video", "input_audio", "document"}
NOT_PROMPT = {"requestMetadata", "inferenceConfig", "serviceTier"}


def text_bytes(value: Any, *, in_medium: bool = False) -> int:
    """All text in it, but what may be the bytes or the address of a picture.

    That is any string under ``bytes``, ``data`` or ``url`` of something that looks like a medium.
    """
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list):
        return sum(text_bytes(one, in_medium=in_medium) for one in value)
    if not isinstance(value, dict):
        return 0
    in_medium = in_medium or value.get("type") in MEDIA if _is_hashable(value) else in_medium
    return sum(_member_bytes(name, inner, in_medium=in_medium) for name, inner in value.items())


def _is_hashable(value: dict[str, Any]) -> bool:
    return isinstance(value.get("type"), str)


def _member_bytes(name: str, inner: Any, *, in_medium: bool) -> int:
    if in_medium and name in ("bytes", "data", "url") and isinstance(inner, str):
        return 0
    below = in_medium and name in ("source", "image_url", "input_audio")
    return text_bytes(inner, in_medium=below or name in MEDIA)


@given(bodies)
def test_the_bound_is_never_below_the_bytes_of_the_text(body: dict[str, Any]) -> None:
    """Whatever the body is: every string in it counts, unless it is a picture's own."""
    prompt = {name: value for name, value in body.items() if name not in NOT_PROMPT}
    if isinstance(prompt.get("images"), list):
        prompt["images"] = [one for one in prompt["images"] if not isinstance(one, str)]
    with pytest.MonkeyPatch.context() as patch:  # what is allowed for media hides nothing
        patch.setattr(bounds, "_MEDIA", dict.fromkeys(bounds._MEDIA, 0))
        for name in ("IMAGE_TOKENS", "UNKNOWN_TOKENS", "TOOL_TOKENS", "TEMPLATE_TOKENS"):
            patch.setattr(bounds, name, 0)
        assert bounds_of(body).input_tokens >= text_bytes(prompt)


@given(junk, st.sampled_from(["input", "inputSchema", "json", "input_schema", "parameters"]))
def test_what_tools_are_given_is_never_below_the_json_of_it(value: Any, name: str) -> None:
    """A model is shown it as JSON, with all marks and escapes; nothing in there is a picture."""
    body = {"messages": [{"content": [{"toolUse": {name: value}}]}]}
    assert bounds_of(body).input_tokens >= len(json.dumps(value))


@given(bodies, st.text(min_size=1, max_size=200))
def test_more_text_is_a_higher_bound(body: dict[str, Any], text: str) -> None:
    """By its bytes at the least."""
    more = {**body, "system": text}
    less = {**body, "system": ""}
    grown = bounds_of(more).input_tokens - bounds_of(less).input_tokens
    assert grown >= len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"text": TEXT}, TEXT),
        ([{"role": "user", "content": [{"text": TEXT}]}], TEXT),
        ([{"role": "user", "content": [{"text": "日本語" * 300}]}], "日本語" * 300),
        ([{"content": [{"toolResult": {"content": [{"json": {"document": {"source": TEXT}}}]}}]}],
         TEXT),
        ([{"content": [{"toolUse": {"input": {"image": {"source": {"bytes": TEXT}}}}}]}], TEXT),
        ([{"content": [{"image": {"source": {"bytes": "aGk="}, "error": {"message": TEXT}}}]}],
         TEXT),
        ([{"content": [{"document": {"name": TEXT, "source": {"bytes": "aGk="}}}]}], TEXT),
        ([{"content": [{"document": {"context": TEXT, "source": {"bytes": "aGk="}}}]}], TEXT),
        ([{"content": [{"document": {"source": {"text": TEXT}}}]}], TEXT),
        ([{"content": [{"document": {"source": {"content": [{"text": TEXT}]}}}]}], TEXT),
        ([{"content": [{"type": "document", "source": {"type": "content", "content": TEXT}}]}],
         TEXT),
        ([{"content": [{"type": "document", "title": TEXT, "source": {"data": "aGk="}}]}], TEXT),
        ([{"content": [{"type": "search_result", "source": TEXT}]}], TEXT),
        ([{"content": [{"cachePoint": {"type": TEXT}}]}], TEXT),
        ([{"content": [{"guardContent": {"text": {"text": TEXT}}}]}], TEXT),
    ],
)  # fmt: skip
def test_text_is_found_wherever_a_request_can_have_it(value: Any, text: str) -> None:
    """In messages, tools, documents and beside pictures."""
    escaped = json.dumps(text)[1:-1]
    without = json.loads(json.dumps(value).replace(escaped, ""))
    bound = bounds_of({"messages": value}).input_tokens
    grown = bound - bounds_of({"messages": without}).input_tokens
    assert grown >= len(text.encode())
    assert bound >= TEMPLATE_TOKENS + grown


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({"image": {"format": "png", "source": {"bytes": PICTURE}}}, IMAGE_TOKENS),
        ({"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}}, IMAGE_TOKENS),
        ({"type": "image", "source": {"type": "base64", "data": PICTURE}}, IMAGE_TOKENS),
        ({"type": "image", "source": {"type": "url", "url": "https://x.example"}}, IMAGE_TOKENS),
        ({"type": "image_url", "image_url": {"url": PICTURE}}, IMAGE_TOKENS),
        ({"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}, IMAGE_TOKENS),
        ({"type": "input_audio", "input_audio": {"data": PICTURE}}, AUDIO_TOKENS),
        ({"audio": {"format": "mp3", "source": {"bytes": PICTURE}}}, AUDIO_TOKENS),
        ({"type": "audio_url", "audio_url": {"url": "https://x.example"}}, AUDIO_TOKENS),
        ({"type": "video_url", "video_url": {"url": "https://x.example"}}, VIDEO_TOKENS),
        ({"type": "document_url", "document_url": "https://x.example"},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "file_url", "file_url": {"url": "https://x.example"}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"video": {"format": "mp4", "source": {"bytes": PICTURE}}}, VIDEO_TOKENS),
        ({"document": {"name": "d", "format": "csv", "source": {"bytes": "x" * 999}}},
         DOCUMENT_TOKENS + 3 * 999),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain",
                                         "data": "x" * 999}}, DOCUMENT_TOKENS + 3 * 999),
        *(({"document": {"name": "d", "format": form, "source": {"bytes": "x" * 999}}},
           DOCUMENT_TOKENS + UNKNOWN_TOKENS) for form in ("pdf", "docx", "xlsx", "new", 7)),
        ({"document": {"name": "d", "source": {"bytes": "x" * 999}}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"document": {"format": "pdf", "source": {"bytes": "x" * 999, "text": "t"}}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                                         "data": "x"}}, DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "document", "format": "txt",
          "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,eA=="}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "file", "file": {"file_id": "f"}}, DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "container_upload", "file_id": "f"}, DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"document": {"name": "d", "source": {"s3Location": {"uri": "s3://b/k"}}}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "document", "source": {"type": "url", "url": "https://x.example"}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
        ({"type": "document", "source": {"type": "file", "file_id": "f"}},
         DOCUMENT_TOKENS + UNKNOWN_TOKENS),
    ],
)  # fmt: skip
def test_media_have_bounds_of_their_own(block: dict[str, Any], tokens: int) -> None:
    """Their bytes are no text; nor do those of a document say how long it is, unless it is text."""
    bound = bounds_of({"messages": [{"role": "user", "content": [block]}]}).input_tokens
    assert tokens <= bound <= tokens + 300


def test_pictures_beside_a_prompt_of_llamas_are_pictures() -> None:
    """They are plain strings in a list."""
    bound = bounds_of({"prompt": "hello", "images": [PICTURE, PICTURE]}).input_tokens
    assert 2 * IMAGE_TOKENS <= bound <= 2 * IMAGE_TOKENS + 200


def test_a_bound_is_no_more_than_any_model_reads() -> None:
    """A prompt of gigabytes is refused by Bedrock, and costs nothing."""
    assert bounds_of({"prompt": "x" * 3_000_000}).input_tokens == INPUT_TOKENS_MAX


def test_a_plain_prompt_is_bounded_closely() -> None:
    """The budget is not held for much more than the text."""
    bound = bounds_of({"messages": [{"role": "user", "content": [{"text": TEXT}]}]}).input_tokens
    assert len(TEXT) <= bound <= len(TEXT) + 150


def test_tools_add_their_instructions() -> None:
    """A model is told how to use them."""
    without = bounds_of({"messages": [], "system": []}).input_tokens
    tools: list[dict[str, Any]] = [{"tools": []}, {"toolConfig": {"tools": []}}]
    for tool in tools:
        assert bounds_of({"messages": [], **tool}).input_tokens >= without + TOOL_TOKENS - 50


def test_a_body_may_be_nested_deeper_than_python_calls_itself() -> None:
    """Nothing raises, and the text at its bottom counts."""
    nested: Any = TEXT
    for _ in range(100_000):
        nested = [nested]
    assert bounds_of({"messages": nested}).input_tokens >= len(TEXT) + 100_000


def test_a_long_body_takes_time_by_its_length_and_not_by_its_square() -> None:
    """Ten times the messages take about ten times as long."""

    def took_secs(count: int) -> float:
        messages = [{"role": "user", "content": [{"text": "hello"}]} for _ in range(count)]
        began = time.perf_counter()
        bounds_of({"messages": messages})
        return time.perf_counter() - began

    short = min(took_secs(2_000) for _ in range(5))
    long = min(took_secs(20_000) for _ in range(3))
    assert long < 40 * short


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": []}, "none"),
        ({"system": [{"text": "x"}, {"cachePoint": {"type": "default"}}]}, "5m"),
        ({"system": [{"cachePoint": {"type": "default", "ttl": "5m"}}]}, "5m"),
        ({"system": [{"cachePoint": {"type": "default", "ttl": "1h"}}]}, "1h"),
        ({"system": [{"cachePoint": {"ttl": "1h"}}, {"cachePoint": {"type": "default"}}]}, "1h"),
        ({"messages": [{"content": [{"text": "x", "cache_control": {"type": "ephemeral"}}]}]},
         "5m"),
        ({"messages": [{"content": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}]}]},
         "1h"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "1h"),
        ({"messages": [{"content": [
            {"type": "image", "source": {"data": "x"}, "cache_control": {"ttl": "1h"}}]}]}, "1h"),
        ({"toolConfig": {"tools": [{"cachePoint": {"type": "default"}}]}}, "5m"),
        ({"messages": [{"toolUse": {"input": {"cachePoint": {"ttl": "1h"}}}}]}, "none"),
        ({"system": [{"cachePoint": None}]}, "none"),
        ({"system": [{"cachePoint": "default"}]}, "1h"),
        ({"cache_control": True}, "1h"),
        *(({"cache_control": {"ttl": ttl}}, "1h") for ttl in ("1H", "2h", 3600, True)),
    ],
)  # fmt: skip
def test_marks_say_for_how_long_the_cache_is_written(body: dict[str, Any], expected: str) -> None:
    """The longest counts, wherever it is, and if a mark is none that is known."""
    assert bounds_of(body).cache_write == expected


@pytest.mark.parametrize(
    ("body", "headers", "tier"),
    [
        ({"serviceTier": {"type": "priority"}}, {}, "priority"),
        ({}, {"x-amzn-bedrock-service-tier": "flex"}, "flex"),
        ({"service_tier": "flex"}, {}, "flex"),
        ({"service_tier": "auto"}, {}, None),
        ({"service_tier": "standard_only"}, {}, None),
        ({"serviceTier": {"type": 7}}, {}, None),
        ({"serviceTier": "priority"}, {}, None),
        ({"serviceTier": {"type": "no tier at all"}}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_tier_is_the_one_that_is_asked_for(
    body: dict[str, Any], headers: dict[str, str], tier: str | None
) -> None:
    """In the body of Converse or of OpenAI's models, or in a header."""
    assert bounds_of(body, headers).service_tier == tier


@pytest.mark.parametrize(
    ("body", "headers", "tags"),
    [
        ({"requestMetadata": {"a": "b"}}, {}, {"a": "b"}),
        ({}, {"x-amzn-bedrock-request-metadata": '{"a": "b"}'}, {"a": "b"}),
        ({"requestMetadata": {"a": 1, "b": None, "c": "d"}}, {}, {"c": "d"}),
        ({"requestMetadata": ["a"]}, {}, {}),
        ({}, {"x-amzn-bedrock-request-metadata": "{"}, {}),
        ({}, {"x-amzn-bedrock-request-metadata": "[" * 100_000}, {}),
    ],
)
def test_metadata_becomes_tags(
    body: dict[str, Any], headers: dict[str, str], tags: dict[str, str]
) -> None:
    """What is no text is left out."""
    assert dict(bounds_of(body, headers).tags) == tags


LENGTHS: list[tuple[Family | None, dict[str, Any], tuple[str, ...]]] = [
    (None, {"inferenceConfig": {"temperature": 1}}, ("inferenceConfig", "maxTokens")),
    (None, {}, ("inferenceConfig", "maxTokens")),
    (Family.ANTHROPIC, {}, ("max_tokens",)),
    (Family.NOVA, {"inferenceConfig": {}}, ("inferenceConfig", "maxTokens")),
    (Family.NOVA, {"inferenceConfig": {"max_new_tokens": 9}},
     ("inferenceConfig", "max_new_tokens")),
    (Family.TITAN, {}, ("textGenerationConfig", "maxTokenCount")),
    (Family.LLAMA, {}, ("max_gen_len",)),
    (Family.MISTRAL, {}, ("max_tokens",)),
    (Family.COHERE, {}, ("max_tokens",)),
    (Family.OPENAI, {}, ("max_completion_tokens",)),
    (Family.OPENAI, {"max_tokens": 9}, ("max_tokens",)),
    (Family.OTHER, {}, ("max_tokens",)),
    (Family.ANTHROPIC, {"max_tokens_to_sample": 9}, ("max_tokens_to_sample",)),
]  # fmt: skip


@pytest.mark.parametrize(("family", "body", "path"), LENGTHS)
def test_the_longest_answer_is_written_where_the_family_has_it(
    family: Family | None, body: dict[str, Any], path: tuple[str, ...]
) -> None:
    """And is what the bounds read there; the rest of the body is as it was."""
    changed = with_max_output({"prompt": "x", **body}, 77, family)
    found: Any = changed
    for name in path:
        found = found[name]
    assert found == 77
    assert bounds_of(changed).max_output_tokens == 77
    assert changed["prompt"] == "x"
    assert body.get("inferenceConfig", {}).get("temperature") == changed.get(
        "inferenceConfig", {}
    ).get("temperature")


def stated(body: Any) -> Iterator[int]:
    """Every length that a body states."""
    for name, value in body.items():
        if isinstance(value, dict):
            yield from stated(value)
        elif "max" in name.lower():
            yield value


lengths = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 10**6),
        "max_completion_tokens": st.integers(1, 10**6),
        "max_gen_len": st.integers(1, 10**6),
        "inferenceConfig": st.fixed_dictionaries(
            {}, optional={"maxTokens": st.integers(1, 10**6), "max_new_tokens": st.just(5)}
        ),
        "textGenerationConfig": st.fixed_dictionaries(
            {}, optional={"maxTokenCount": st.integers(1, 10**6)}
        ),
        "additionalModelRequestFields": st.fixed_dictionaries(
            {}, optional={"max_tokens": st.integers(1, 10**6)}
        ),
    },
)


@given(lengths, st.integers(1, 1000), st.sampled_from([None, *Family]))
def test_every_length_that_is_stated_is_lowered(
    body: dict[str, Any], most: int, family: Family | None
) -> None:
    """Whichever of them the model obeys, and there is one in any case."""
    before = json.dumps(body)
    changed = with_max_output(body, most, family)
    assert set(stated(changed)) == {most}
    assert json.dumps(body) == before


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 100}, 100),
        ({"max_tokens": 100, "max_completion_tokens": 300}, 300),
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 100, "num_generations": 2}, 200),
        ({"max_tokens": 100, "numResults": 3}, 300),
        ({"max_tokens": 100, "candidate_count": 4}, 400),
        ({"max_tokens": 100, "n": 2, "best_of": 5}, 500),
        ({"max_tokens": 100, "additionalModelRequestFields": {"n": 4}}, 400),
        ({"max_tokens": None, "max_completion_tokens": 100, "n": None}, 100),
        ({"additionalModelRequestFields": {"max_tokens": 500}}, 500),
        ({"inferenceConfig": {"maxTokens": 10}, "additionalModelRequestFields": {"max_tokens": 5}},
         10),
        ({"max_tokens": 0}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "many"}, None),
        ({"inferenceConfig": "many"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_longest_answer_is_what_the_body_states(
    body: dict[str, Any], expected: int | None
) -> None:
    """The highest if there are several, times the answers that are asked for."""
    assert bounds_of(body).max_output_tokens == expected


NO_COUNTS: tuple[Any, ...] = (0, -1, 1.0, 1e30, "5", True, [], {})


@pytest.mark.parametrize("value", NO_COUNTS, ids=str)
@pytest.mark.parametrize(
    "path",
    ["max_tokens", "n", "best_of", "inferenceConfig.maxTokens",
     "textGenerationConfig.maxTokenCount", "additionalModelRequestFields.max_tokens",
     "additionalModelRequestFields.n"],
)  # fmt: skip
def test_what_is_no_count_is_named(path: str, value: Any) -> None:
    body: Any = value
    for name in reversed(path.split(".")):
        body = {name: body}
    with pytest.raises(WrongLengthError, match=f"^{path}: must be a whole number above zero$"):
        read_max_output(body, None)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, None),
        ({"max_tokens": 5, "n": 2, "inferenceConfig": {"maxTokens": 1}}, None),
        ({"max_tokens": None, "n": None, "inferenceConfig": None}, None),
        ({"additionalModelRequestFields": {"inferenceConfig": {"topK": 20}}}, None),
        ({"additionalModelRequestFields": {"inferenceConfig": {"maxTokens": 9}}},
         "additionalModelRequestFields.inferenceConfig.maxTokens"),
        ({"inferenceConfig": "x"}, "inferenceConfig: must be an object"),
        ({"additionalModelRequestFields": [1]}, "additionalModelRequestFields: must be an object"),
    ],
)  # fmt: skip
def test_lengths_that_go_past_what_is_read_are_named(
    body: dict[str, Any], told: str | None
) -> None:
    """Nova takes some of its own settings there, but the longest answer is Converse's to say."""
    with nullcontext() if told is None else pytest.raises(WrongLengthError, match=f"^{told}"):
        read_max_output(body, None)


def test_a_length_for_several_answers_is_shared_by_them() -> None:
    """What is held for is all of them together."""
    assert with_max_output({"max_tokens": 100, "n": 3}, 150, Family.OPENAI)["max_tokens"] == 50
    assert with_max_output({"max_tokens": 100, "n": 9}, 3, Family.OPENAI)["max_tokens"] == 1


SERVED = [
    {"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"tools": [{"type": "code_execution_20250825", "name": "x"}]},
    {"mcp_servers": [{"type": "url", "url": "https://x.example"}]},
    {"web_search_options": {}},
]


@pytest.mark.parametrize("body", SERVED)
def test_tools_that_run_at_the_other_side_are_held_at_the_window(body: dict[str, Any]) -> None:
    """What they find is read by the model, and nobody can count it before."""
    found = bounds_of({"messages": [], **body})
    assert found.input_tokens >= UNKNOWN_TOKENS
    assert found.is_open


def test_tools_of_the_callers_own_are_no_such() -> None:
    tools = [{"type": "bash_20250124", "name": "bash"}, {"name": "web_search", "input_schema": {}}]
    found = bounds_of({"tools": tools, "mcp_servers": None})
    assert found.input_tokens < 2 * TOOL_TOKENS
    assert not found.is_open


EDITS = {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]}


@pytest.mark.parametrize(
    "asked",
    [{"context_management": EDITS},
     {"additionalModelRequestFields": {"context_management": EDITS}}],
)  # fmt: skip
def test_a_conversation_that_is_summed_up_is_read_twice(asked: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 100}
    found, plain = bounds_of({**body, **asked}), bounds_of(body)
    assert found.input_tokens >= 2 * plain.input_tokens
    assert found.max_output_tokens == 200
    assert found.is_open
    kept = with_max_output({**body, **asked}, 200, Family.ANTHROPIC)
    assert kept["max_tokens"] == 100


def test_other_edits_of_the_context_are_no_summing_up() -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}, "compact", {}]}
    found = bounds_of({"max_tokens": 100, "context_management": edits})
    assert (found.max_output_tokens, found.is_open) == (100, False)
