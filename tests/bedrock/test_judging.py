"""How much a request can use at the most, and what is sent instead of it."""

import json
from typing import Any

import pytest
from botocore.loaders import Loader
from hypothesis import given
from hypothesis import strategies as st

from bedrock.judged import DATA, S3, TEXT, claude, converse, judged, objects_in, tokens_of
from converse_model import shapes_of_model
from pricekeeper.bedrock import BodyRefusedError, Family, answers_with_text, judge
from pricekeeper.bedrock.body_shapes import CONVERSE
from pricekeeper.bedrock.judging import TEMPLATE_TOKENS, WINDOW_TOKENS
from pricekeeper.bedrock.lengths import ADDITIONAL
from pricekeeper.bedrock.shapes import (
    DOCUMENT_TOKENS,
    IMAGE_TOKENS,
    TOOL_TOKENS,
    VIDEO_TOKENS,
    is_length,
)

ANTHROPIC, OPENAI, LLAMA = Family.ANTHROPIC, Family.OPENAI, Family.LLAMA


def test_the_shapes_are_those_of_awss_model() -> None:
    """A newer model fails this test: decide what its new members can make a model read."""
    assert shapes_of_model() == CONVERSE.strip()
    shapes = Loader().load_service_model("bedrock-runtime", "service-2")["shapes"]
    for name in ("Converse%sRequest", "Guardrail%sConfiguration"):
        assert shapes[name % ""]["members"].keys() <= shapes[name % "Stream"]["members"].keys()


def test_a_stream_may_say_how_its_guardrail_reads_along() -> None:
    """A member that only ``ConverseStream`` has; both operations are judged by one shape."""
    guardrail = {"guardrailIdentifier": "id", "streamProcessingMode": "async"}
    assert judged(converse({"text": "hi"}, guardrailConfig=guardrail)).bounds.uses == ("guardrail",)


texts = st.text(max_size=40) | st.just(TEXT)


@given(st.lists(texts, max_size=5), texts, st.sampled_from([None, *Family]))
def test_the_bound_is_never_below_the_bytes_of_the_text(
    said: list[str], system: str, family: Family | None
) -> None:
    """In any member: byte-level tokenizers make no more tokens."""
    if family in (None, Family.NOVA):
        body = converse(*({"text": one} for one in said), system=[{"text": system}])
    else:
        body = {**claude(*({"type": "text", "text": one} for one in said)), "system": system}
    total = "".join((*said, system)).encode("utf-8", "surrogatepass")
    assert tokens_of(body, family) >= len(total) + TEMPLATE_TOKENS


@given(st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=9,
))  # fmt: skip
def test_what_tools_are_given_is_never_below_the_json_of_it(value: Any) -> None:
    """A model is shown it as JSON, with all marks, spaces and escapes."""
    used = {"toolUse": {"toolUseId": "t", "name": "n", "input": value}}
    assert tokens_of(converse(used)) >= len(json.dumps(value)) * (value is not None)


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({"image": {"format": "png", "source": {"bytes": DATA}}}, IMAGE_TOKENS),
        ({"image": {"format": "png", "source": S3}}, IMAGE_TOKENS),
        ({"audio": {"format": "mp3", "source": {"bytes": "x"}}}, WINDOW_TOKENS),
        ({"video": {"format": "mp4", "source": {"bytes": DATA}}}, VIDEO_TOKENS),
        ({"document": {"name": "d", "format": "csv", "source": {"bytes": "x" * 999}}},
         DOCUMENT_TOKENS + 3 * 999),
        ({"document": {"name": "d", "source": {"text": "x" * 999}}}, DOCUMENT_TOKENS + 3 * 999),
        ({"guardContent": {"image": {"format": "png", "source": {"bytes": DATA}}}}, IMAGE_TOKENS),
        ({"audio": {"format": "mp3", "source": S3}}, WINDOW_TOKENS),
        ({"video": {"format": "mp4", "source": S3}}, WINDOW_TOKENS),
        *(({"document": {"name": "d", "format": form, "source": {"bytes": "x"}}}, WINDOW_TOKENS)
          for form in ("pdf", "docx", "xlsx", "new")),
        ({"document": {"name": "d", "format": "txt", "source": S3}}, WINDOW_TOKENS),
        ({"toolAddition": {"tool": {"name": "n"}}}, WINDOW_TOKENS),
    ],
)  # fmt: skip
def test_media_of_converse_have_bounds_of_their_own(block: dict[str, Any], tokens: int) -> None:
    """A picture's bytes are no text. Those of a document say how long it is only if it is text."""
    for body, family in ((converse(block), None), (converse(block), Family.NOVA)):
        bound = tokens_of(body, family)
        assert tokens <= bound <= tokens + 300 * (tokens < WINDOW_TOKENS)
    inside = {"toolResult": {"toolUseId": "t", "content": [block]}}
    if next(iter(block)) in ("image", "document", "video"):
        assert tokens <= tokens_of(converse(inside))


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({"type": "image", "source": {"type": "base64", "data": DATA}}, IMAGE_TOKENS),
        ({"type": "image", "source": {"type": "url", "url": "https://x.example"}}, IMAGE_TOKENS),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain",
                                         "data": "x" * 999}}, DOCUMENT_TOKENS + 3 * 999),
        ({"type": "document", "source": {"type": "content", "content": [
            {"type": "text", "text": "x" * 999}]}}, DOCUMENT_TOKENS + 3 * 999),
        *(({"type": "document", "source": source}, WINDOW_TOKENS) for source in (
            {"type": "base64", "media_type": "application/pdf", "data": "x"},
            {"type": "url", "url": "https://x.example"}, {"type": "file", "file_id": "f"})),
        ({"type": "container_upload", "file_id": "f"}, WINDOW_TOKENS),
        ({"type": "new_kind_20270101", "text": "x"}, WINDOW_TOKENS),
    ],
)  # fmt: skip
def test_media_of_anthropic_have_bounds_of_their_own(block: dict[str, Any], tokens: int) -> None:
    for body in (claude(block), claude({"type": "tool_result", "content": [block]})):
        assert tokens <= tokens_of(body, ANTHROPIC) <= tokens + 400


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}, IMAGE_TOKENS),
        ({"type": "image_url", "image_url": DATA}, IMAGE_TOKENS),
        ({"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}, WINDOW_TOKENS),
        ({"type": "video_url", "video_url": {"url": "https://x.example"}}, WINDOW_TOKENS),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,eA=="}},
         WINDOW_TOKENS),
    ],
)  # fmt: skip
def test_media_of_openai_have_bounds_of_their_own(part: dict[str, Any], tokens: int) -> None:
    for family in (OPENAI, Family.MISTRAL, Family.OTHER):
        assert tokens <= tokens_of(claude(part), family) <= tokens + 300


def test_pictures_beside_a_prompt_of_llamas_are_pictures() -> None:
    """They are plain strings in a list; anything else in it is unknown."""
    bound = tokens_of({"prompt": "hello", "images": [DATA, DATA]}, LLAMA)
    assert 2 * IMAGE_TOKENS <= bound <= 2 * IMAGE_TOKENS + 200
    assert tokens_of({"prompt": "hello", "images": [DATA, {}]}, LLAMA) == WINDOW_TOKENS


@pytest.mark.parametrize(
    ("document", "told"),
    [({"format": "csv", "name": "d"}, "must have a source"),
     ({"name": "d", "source": {"bytes": "x"}}, "must state its format")],
)  # fmt: skip
def test_a_document_that_does_not_say_what_it_is_is_refused(
    document: dict[str, Any], told: str
) -> None:
    with pytest.raises(BodyRefusedError, match=told):
        judged(converse({"document": document}))
    with pytest.raises(BodyRefusedError, match="must state its media_type"):
        judged(claude({"type": "document", "source": {"type": "base64"}}), ANTHROPIC)


def test_a_plain_prompt_is_bounded_closely() -> None:
    """The budget is not held for much more than the text."""
    bound = tokens_of(converse({"text": TEXT}, inferenceConfig={"stopSequences": ["x" * 500]}))
    assert len(TEXT) <= bound <= len(TEXT) + 150


def test_what_a_model_does_not_read_is_not_held_for() -> None:
    more = {"requestMetadata": {"a": "v" * 250}, "serviceTier": {"type": "flex"}}
    assert tokens_of(converse({"text": "x"}, **more)) <= tokens_of(converse({"text": "x"})) + 60


def test_tools_add_their_instructions() -> None:
    """And Anthropic's own tools a text of their own each, also those that Converse hands on."""
    tool = {"toolSpec": {"name": "n", "inputSchema": {"json": {}}}}
    plain = tokens_of(converse({"text": "x"}))
    assert tokens_of(converse({"text": "x"}, toolConfig={"tools": [tool]})) >= plain + TOOL_TOKENS
    own = [{"type": "computer_20250124", "name": "c"}, {"type": "bash_20250124", "name": "b"}]
    for body, family in (
        (converse({"text": "x"}, **{ADDITIONAL: {"tools": own}}), None),
        (claude({"type": "text", "text": "x"}, tools=own), ANTHROPIC),
    ):
        found = judged(body, family).bounds
        assert plain + 3 * TOOL_TOKENS <= found.input_tokens <= plain + 4 * TOOL_TOKENS
        assert not found.is_open


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    nested: Any = TEXT
    for _ in range(100_000):
        nested = [nested]
    used = {"toolUse": {"toolUseId": "t", "name": "n", "input": nested}}
    for body in (converse({"text": nested}), converse(used)):
        with pytest.raises(BodyRefusedError):
            judge(body, None)


MARKED = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("body", "family", "expected"),
    [
        (converse({"text": "x"}), None, "none"),
        (converse(system=[{"cachePoint": {"type": "default"}}]), None, "5m"),
        (converse(system=[{"cachePoint": {"type": "default", "ttl": "5m"}}]), None, "5m"),
        (converse({"cachePoint": {"type": "default", "ttl": "1h"}}), None, "1h"),
        (converse({"cachePoint": {"ttl": "1h"}}, {"cachePoint": {"type": "default"}}), None, "1h"),
        (converse(toolConfig={"tools": [{"cachePoint": {"type": "default"}}]}), None, "5m"),
        (converse({"toolUse": {"input": {"cachePoint": {"ttl": "1h"}}}}), None, "none"),
        (claude({**MARKED, "cache_control": {"type": "ephemeral"}}), ANTHROPIC, "5m"),
        (claude({**MARKED, "cache_control": {"type": "ephemeral", "ttl": "1h"}}), ANTHROPIC, "1h"),
        (claude(cache_control={"type": "ephemeral"}), ANTHROPIC, "5m"),
        (claude({"type": "image", "source": {"type": "base64", "data": "x"},
                 "cache_control": {"ttl": "1h"}}), ANTHROPIC, "1h"),
        (claude(cache_control=True), ANTHROPIC, "1h"),
        (claude(new={"deep": [{"cache_control": {}}]}), ANTHROPIC, "5m"),
        *((claude(cache_control={"ttl": ttl}), ANTHROPIC, "1h") for ttl in ("1H", "2h", 3600)),
    ],
)  # fmt: skip
def test_marks_say_for_how_long_the_cache_is_written(
    body: dict[str, Any], family: Family | None, expected: str
) -> None:
    """The longest counts, wherever it is, and if a mark is none that is known."""
    assert judged(body, family).bounds.cache_write == expected


HEADER = "x-amzn-bedrock-service-tier"


@pytest.mark.parametrize(
    ("body", "headers", "tier"),
    [
        ({"serviceTier": {"type": "priority"}}, {}, "priority"),
        ({}, {HEADER: "flex"}, "flex"),
        ({"service_tier": "flex"}, {}, "flex"),
        ({"service_tier": "flex"}, {HEADER: "flex"}, "flex"),
        ({"service_tier": "auto"}, {}, "auto"),
        ({"service_tier": "standard_only"}, {}, None),
        ({"service_tier": "default"}, {}, None),
        ({"performanceConfig": {"latency": "optimized"}}, {}, "optimized"),
        ({}, {"x-amzn-bedrock-performanceconfig-latency": "optimized"}, "optimized"),
        ({}, {}, None),
    ],
)
def test_the_tier_is_the_one_that_is_asked_for(
    body: dict[str, Any], headers: dict[str, str], tier: str | None
) -> None:
    """In the body of Converse or of a family, or in a header."""
    found = judged({"message": "x", **body}, OPENAI, headers=headers).bounds
    assert found.service_tier == tier


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"serviceTier": {"type": "default"}}, {HEADER: "priority"}),
        ({"service_tier": "priority"}, {HEADER: "flex"}),
        ({"service_tier": "priority", "serviceTier": {"type": "flex"}}, {}),
        ({ADDITIONAL: {"service_tier": "priority"}, "serviceTier": {"type": "flex"}}, {}),
        ({"service_tier": {"type": "priority"}}, {}),
        ({"service_tier": ["priority"]}, {}),
        ({"serviceTier": "priority"}, {}),
        ({"serviceTier": {"type": 7}}, {}),
        ({"serviceTier": {"type": "no tier at all"}}, {}),
        ({"performanceConfig": "optimized"}, {}),
    ],
)
def test_a_tier_that_another_hides_is_refused(
    body: dict[str, Any], headers: dict[str, str]
) -> None:
    """Which of two places is served depends on the path and the model."""
    for family in (None, OPENAI):
        with pytest.raises(BodyRefusedError):
            judged(body, family, headers=headers)


@pytest.mark.parametrize(
    ("body", "headers", "tags"),
    [
        ({"requestMetadata": {"a": "b"}}, {}, {"a": "b"}),
        ({}, {"x-amzn-bedrock-request-metadata": '{"a": "b"}'}, {"a": "b"}),
        ({"requestMetadata": None}, {}, {}),
        ({}, {"x-pricekeeper-tag-a": "b"}, {"a": "b"}),
        ({"requestMetadata": {"a": "b", "c": "d"}}, {"x-pricekeeper-tag-a": "z"},
         {"a": "z", "c": "d"}),
    ],
)  # fmt: skip
def test_metadata_and_headers_become_tags(
    body: dict[str, Any], headers: dict[str, str], tags: dict[str, str]
) -> None:
    """A header wins over ``requestMetadata``, and that over the tags of a client."""
    assert judged(body, headers=headers).bounds.tags == tags
    of_client = judged(body, headers=headers, tags={"a": "y", "b": "x"}).bounds.tags
    assert of_client == {"a": "y", "b": "x", **tags}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"requestMetadata": {"a": 1}}, {}),
        ({"requestMetadata": {"a": None}}, {}),
        ({"requestMetadata": ["a"]}, {}),
        ({"requestMetadata": {f"k{number}": "v" for number in range(17)}}, {}),
        ({"requestMetadata": {f"k{number}": "v" for number in range(16)}},
         {"x-pricekeeper-tag-team": "search"}),
        ({}, {"x-amzn-bedrock-request-metadata": "{"}),
        ({}, {"x-amzn-bedrock-request-metadata": "[" * 100_000}),
        ({}, {"x-amzn-bedrock-request-metadata": '{"a": "\\ud800"}'}),
        ({}, {"x-pricekeeper-tag-": "v"}),
    ],
)  # fmt: skip
def test_metadata_that_can_be_no_tags_is_refused(
    body: dict[str, Any], headers: dict[str, str]
) -> None:
    """Without its tag a call would count against another budget."""
    with pytest.raises(BodyRefusedError, match=r"tags|requestMetadata"):
        judged(body, headers=headers)


LENGTHS: list[tuple[Family | None, tuple[str, ...]]] = [
    (None, ("inferenceConfig", "maxTokens")),
    (Family.NOVA, ("inferenceConfig", "maxTokens")),
    (Family.TITAN, ("textGenerationConfig", "maxTokenCount")),
    (Family.LLAMA, ("max_gen_len",)),
    (Family.OPENAI, ("max_completion_tokens",)),
    *((family, ("max_tokens",))
      for family in (Family.ANTHROPIC, Family.MISTRAL, Family.COHERE, Family.OTHER)),
]  # fmt: skip
RIVALS: list[dict[str, Any]] = [
    {}, {"max_tokens": 9}, {"max_completion_tokens": 9, "max_gen_len": None},
    {"inferenceConfig": {"maxTokens": 9, "temperature": 1}}, {"textGenerationConfig": {}},
    {"inferenceConfig": {"max_new_tokens": 9}}, {"max_tokens_to_sample": 9, "maxTokens": 3},
    {"max_output_tokens": 9}, {"MAX-NEW-TOKENS": 9}, {"num_predict": 9},
    {ADDITIONAL: {"max_tokens": 9, "inferenceConfig": {"max_new_tokens": 9}}},
]  # fmt: skip


@pytest.mark.parametrize(("family", "path"), LENGTHS)
@pytest.mark.parametrize("rivals", RIVALS, ids=str)
def test_the_longest_answer_is_written_under_the_familys_own_name(
    family: Family | None, path: tuple[str, ...], rivals: dict[str, Any]
) -> None:
    """And under no other; the highest that is stated is what counts."""
    try:
        call = judged(rivals, family)
    except BodyRefusedError:
        assert family in (None, Family.OTHER)  # only names that the model surely obeys
        return
    assert call.bounds.max_output_tokens == (9 if "9" in str(rivals) else None)
    found: Any = call.written(77)
    names = [name for one in objects_in(found) for name in one if is_length(name)]
    assert names == [path[-1]]
    for name in path:
        found = found[name]
    assert found == 77
    if "temperature" in str(rivals):
        assert call.written(77)["inferenceConfig"]["temperature"] == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 100, "max_completion_tokens": 300}, 300),
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 100, "num_generations": 2}, 200),
        ({"max_tokens": 100, "n": 2, "best_of": 5}, 500),
        ({"max_tokens": None, "max_completion_tokens": 100, "n": None}, 100),
        ({"max_tokens": 100, ADDITIONAL: {"n": 4, "max_tokens": 5}}, 400),
        ({}, None),
    ],
)
def test_several_answers_are_held_for(body: dict[str, Any], expected: int | None) -> None:
    """The highest length if there are several, times the answers that are asked for."""
    assert judged(body, OPENAI).bounds.max_output_tokens == expected


NO_COUNTS: tuple[Any, ...] = (0, -1, 1.0, 1e30, "5", True, [], {})


@pytest.mark.parametrize("value", NO_COUNTS, ids=str)
@pytest.mark.parametrize(
    "path",
    ["max_tokens", "n", "best_of", "inferenceConfig.maxTokens", f"{ADDITIONAL}.max_tokens",
     "textGenerationConfig.maxTokenCount", f"{ADDITIONAL}.n", f"{ADDITIONAL}.maxTokens",
     f"{ADDITIONAL}.max_new_tokens", f"{ADDITIONAL}.max_output_tokens",
     f"{ADDITIONAL}.inferenceConfig.maxTokens"],
)  # fmt: skip
def test_what_is_no_count_is_named(path: str, value: Any) -> None:
    body: Any = value
    for name in reversed(path.split(".")):
        body = {name: body}
    with pytest.raises(BodyRefusedError, match=f"^{path}: must be a whole number above zero$"):
        judged(body, OPENAI)
    if path.startswith((ADDITIONAL, "inferenceConfig")):
        with pytest.raises(BodyRefusedError, match=f"^{path}: must be a whole number above zero$"):
            judged(body)


@pytest.mark.parametrize("outer", ["inferenceConfig", "textGenerationConfig", ADDITIONAL])
@pytest.mark.parametrize("value", ["x", [1], 7])
def test_what_holds_a_longest_answer_is_an_object(outer: str, value: Any) -> None:
    with pytest.raises(BodyRefusedError, match=f"^{outer}: must be an object$"):
        judged({outer: value}, OPENAI)


def test_a_length_for_several_answers_is_shared_by_them() -> None:
    """What is held for is all of them together."""
    call = judged({"max_tokens": 100, "n": 3}, OPENAI)
    assert call.written(150)["max_completion_tokens"] == 50
    assert call.written(2)["max_completion_tokens"] == 1


@pytest.mark.parametrize(
    ("body", "family", "use"),
    [
        (converse(toolConfig={"tools": [{"systemTool": {"name": "nova_grounding"}}]}), None,
         "tool_call:nova_grounding"),
        (claude(tools=[{"type": "web_search_20250305", "name": "web_search"}]), ANTHROPIC,
         "tool_call:web_search"),
        (claude(tools=[{"type": "code_execution_20250825", "name": "x"}]), ANTHROPIC,
         "tool_call:code_execution"),
        (claude(mcp_servers=[{"type": "url", "url": "https://x.example"}]), ANTHROPIC,
         "tool_call:mcp"),
        ({"web_search_options": {}}, OPENAI, "tool_call:web_search"),
        (converse({"text": "x"}, **{ADDITIONAL: {"tools": [
            {"type": "web_search_20250305", "name": "w"}]}}), None, "tool_call:web_search"),
    ],
)  # fmt: skip
def test_tools_that_run_at_the_other_side_are_held_at_the_window(
    body: dict[str, Any], family: Family | None, use: str
) -> None:
    """The model reads their findings, which can't be counted before, and each use is billed."""
    found = judged(body, family).bounds
    assert (found.input_tokens, found.is_open, found.uses) == (WINDOW_TOKENS, True, (use,))


@pytest.mark.parametrize(
    ("body", "family", "headers"),
    [
        (converse(guardrailConfig={"guardrailIdentifier": "g"}), None, {}),
        (claude(), ANTHROPIC, {"x-amzn-bedrock-guardrailidentifier": "g"}),
        ({"messages": [], "amazon-bedrock-guardrailConfig": {}}, OPENAI, {}),
    ],
)
def test_a_guardrail_is_billed_beside_tokens(
    body: dict[str, Any], family: Family | None, headers: dict[str, str]
) -> None:
    assert "guardrail" in judged(body, family, headers=headers).bounds.uses


def test_tools_of_the_callers_own_are_no_such() -> None:
    tools = [{"type": "bash_20250124", "name": "bash"}, {"name": "web_search", "input_schema": {}}]
    found = judged(claude(tools=tools, mcp_servers=None), ANTHROPIC).bounds
    assert found.input_tokens < 3 * TOOL_TOKENS
    assert (found.is_open, found.uses) == (False, ())


EDITS = {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]}


def test_a_conversation_that_is_summed_up_is_read_twice() -> None:
    text = {"type": "text", "text": TEXT}
    plain = judged(claude(text), ANTHROPIC)
    more = {ADDITIONAL: {"context_management": EDITS}, "inferenceConfig": {"maxTokens": 100}}
    for call in (
        judged(claude(text, context_management=EDITS), ANTHROPIC),
        judged(converse({"text": TEXT}, **more)),
    ):
        assert call.bounds.input_tokens >= 2 * plain.bounds.input_tokens - 100
        assert (call.bounds.max_output_tokens, call.bounds.is_open) == (200, True)
        assert "100" in str(call.encoded(200))


def test_other_edits_of_the_context_are_no_summing_up() -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}, "compact", {}]}
    found = judged(claude(context_management=edits), ANTHROPIC).bounds
    assert (found.max_output_tokens, found.is_open) == (100, False)


def test_a_prompt_that_is_kept_at_bedrock_holds_the_window() -> None:
    assert tokens_of({"promptVariables": {"a": {"text": "x"}}}) == WINDOW_TOKENS
    call = judged(converse({"text": "x"}))
    opened = call.opened_by(["premium", "arn:aws:bedrock:us-east-1:111122223333:prompt/P:1"]).bounds
    assert (opened.input_tokens, opened.is_open) == (WINDOW_TOKENS, True)
    assert call.opened_by(["premium"]) == call


def test_the_wrapper_holds_the_window_for_what_is_new_in_converse() -> None:
    """The caller's AWS client may know newer members; its service refuses what it does not know."""
    body = converse({"newBlock": {"bytes": DATA}})
    assert tokens_of(body, is_strict=False) == WINDOW_TOKENS


@pytest.mark.parametrize(
    ("model", "answers"),
    [("amazon.titan-embed-text-v2:0", False), ("cohere.rerank-v3-5:0", False),
     ("amazon.nova-canvas-v1:0", False), ("amazon.titan-image-generator-v2:0", False),
     ("stability.sd3-5-large-v1:0", False), ("amazon.nova-lite-v1:0", True),
     ("us.amazon.nova-reel-v1:1", False), ("image-chat", True), ("embedder", True),
     ("arn:aws:bedrock:us-east-1::foundation-model/amazon.titan-embed-text-v2:0", False)],
)  # fmt: skip
def test_what_has_no_answer_is_sent_as_it_is(model: str, answers: bool) -> None:
    """No length is written into the body of a model that makes vectors, an order or pictures."""
    assert answers_with_text(model) is answers
    body = {"taskType": "TEXT_IMAGE", "inferenceConfig": {"x": 1}}
    call = judged(body, Family.NOVA, has_answer=False)
    assert call.written(4_096) == body
    assert call.bounds.max_output_tokens == 0
