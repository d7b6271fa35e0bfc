"""Bodies that are judged in the tests: real ones of each family, and members to add to them."""

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

from pricekeeper.bedrock import BedrockCall, Family, judge
from pricekeeper.bedrock.lengths import ADDITIONAL
from pricekeeper.bedrock.shapes import is_length

TEXT = "words of a prompt " * 60
DATA = "iVBORw0KGgo" * 2_000
S3 = {"s3Location": {"uri": "s3://bucket/key"}}


def judged(body: Mapping[str, Any], family: Family | None = None, **more: Any) -> BedrockCall:
    """The call of a copy of the body, which a judge changes."""
    return judge(copy.deepcopy(dict(body)), family, **more)


def tokens_of(body: Mapping[str, Any], family: Family | None = None, **more: Any) -> int:
    return judged(body, family, **more).bounds.input_tokens


def converse(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}], **more}


def claude(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**converse(*blocks), "max_tokens": 100, **more}


CONVERSE_BLOCKS: list[dict[str, Any]] = [
    {"text": TEXT},
    {"image": {"format": "png", "source": {"bytes": DATA}}},
    {"image": {"format": "png", "source": S3}},
    {"document": {"name": "d", "format": "csv", "source": {"bytes": "x" * 999}}},
    {"document": {"name": "d", "format": "pdf", "source": {"bytes": "x" * 999}}},
    {"document": {"name": "d", "source": {"text": TEXT}}},
    {"document": {"name": "d", "source": {"content": [{"text": TEXT}]}}},
    {"document": {"name": "d", "format": "txt", "source": S3}},
    {"video": {"format": "mp4", "source": {"bytes": DATA}}},
    {"video": {"format": "mp4", "source": S3}},
    {"audio": {"format": "mp3", "source": {"bytes": DATA}}},
    {"audio": {"format": "mp3", "source": S3}},
    {"toolUse": {"toolUseId": "t", "name": "n", "input": {"a": {"b": [1, "ü"]}}}},
    {"toolResult": {"toolUseId": "t", "content": [{"json": {"a": "b"}}, {"text": TEXT}]}},
    {"toolResult": {"toolUseId": "t", "content": [
        {"document": {"name": "d", "format": "csv", "source": S3}}]}},
    {"cachePoint": {"type": "default"}},
    {"reasoningContent": {"reasoningText": {"text": TEXT, "signature": "s"}}},
    {"searchResult": {"source": "s", "title": "t", "content": [{"text": TEXT}]}},
]  # fmt: skip
CLAUDE_BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": TEXT, "cache_control": {"type": "ephemeral"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    {"type": "image", "source": {"type": "url", "url": "https://x.example"}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": TEXT}},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                                    "data": DATA}},
    {"type": "document", "source": {"type": "url", "url": "https://x.example"}},
    {"type": "tool_use", "id": "t", "name": "n", "input": {"a": [1]}},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": TEXT}]},
    {"type": "thinking", "thinking": TEXT, "signature": "s"},
]  # fmt: skip
OPENAI_PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": TEXT},
    {"type": "image_url", "image_url": {"url": DATA}},
    {"type": "image_url", "image_url": DATA},
    {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    {"type": "file", "file": {"file_id": "f"}},
]
TOOLS: dict[str, Any] = {
    "toolConfig": {"tools": [{"toolSpec": {"name": "n", "inputSchema": {"json": {"type": "o"}}}}]}
}
CLAUDE_TOOLS: list[dict[str, Any]] = [
    {"name": "n", "input_schema": {"type": "object"}},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "web_search_20250305", "name": "web_search"},
]


def a_body(rng: random.Random) -> tuple[dict[str, Any], Family | None]:
    """A body as a client may send it, and its family."""
    family = rng.choice([None, None, *Family])
    match family:
        case None | Family.NOVA:
            body = converse(*rng.sample(CONVERSE_BLOCKS, rng.randint(1, 3)))
            body |= rng.choice([{}, TOOLS, {"inferenceConfig": {"temperature": 1}}])
            body |= rng.choice([{}, {"inferenceConfig": {"maxTokens": 50}}])
            if family is None:
                body |= rng.choice([{}, {ADDITIONAL: {"top_k": 5}}, {"requestMetadata": {"a": "b"}},
                                    {"serviceTier": {"type": "flex"}}])  # fmt: skip
        case Family.ANTHROPIC:
            body = claude(*rng.sample(CLAUDE_BLOCKS, rng.randint(1, 3)))
            body |= rng.choice([{}, {"tools": rng.sample(CLAUDE_TOOLS, 1)}, {"system": TEXT}])
        case Family.TITAN:
            body = {"inputText": TEXT, "textGenerationConfig": {"maxTokenCount": 9}}
        case Family.LLAMA:
            body = {"prompt": TEXT, "images": [DATA], "max_gen_len": 9}
        case Family.COHERE:
            body = {"message": TEXT, "chat_history": [{"message": TEXT}], "max_tokens": 9}
        case _:
            body = claude(*rng.sample(OPENAI_PARTS, rng.randint(1, 3)))
            body |= rng.choice([{}, {"tools": [{"type": "function", "function": {"name": "n"}}]}])
    return copy.deepcopy(body), family


NAMES = [
    "type", "text", "image", "document", "video", "audio", "source", "bytes", "data", "url",
    "s3Location", "content", "format", "name", "media_type", "file_id", "image_url",
    "input_audio", "detail", "title", "context", "citations", "error", "cachePoint",
    "cache_control", "ttl", "toolUse", "toolResult", "toolConfig", "tools", "systemTool",
    "input", "json", "system", "messages", "requestMetadata", "inferenceConfig", "serviceTier",
    "service_tier", "performanceConfig", "promptVariables", "additionalModelRequestFields",
    "textGenerationConfig", "maxTokens", "max_tokens", "max_completion_tokens",
    "max_new_tokens", "max_output_tokens", "max_gen_len", "maxTokenCount", "n", "best_of",
    "num_generations", "images", "guardContent", "reasoningContent", "searchResult",
    "citationsContent", "toolAddition", "mcp_servers", "web_search_options",
    "context_management", "guardrailConfig", "outputConfig", "thinking", "foo", "MaxTokens",
    "max-tokens", "N", "candidateCount", "num_return_sequences", "anthropic_beta", "speed",
    "inference_geo", "prediction", "modalities", "reasoning_effort", "container",
    "budget_tokens", "stream_options", "metadata", "output_config", "reasoning_config",
    "guardrailIdentifier", "latency",
]  # fmt: skip
VALUES: list[Any] = [
    None, "", "x", "image", "csv", "pdf", "text/plain", "default", "priority", "flex", "1h", "5m",
    "image_url", "document", "base64", 0, 1, 7, 2**40, True, 1.5, [], {}, [{}], ["x"], [None],
    {"text": "x"}, {"text": None}, [{"text": "x"}], {"type": "text", "text": "x"},
    {"bytes": "x"}, {"url": "x"}, {"data": "x"}, {"type": "priority"}, {"latency": "optimized"},
    {"uri": "s3://b/k"}, S3, {"format": "png", "source": {"bytes": "x"}}, {"maxTokens": 3},
    {"max_tokens": 3}, {"type": "default"}, {"ttl": "1h"}, {"json": {"a": "b"}},
    {"edits": [{"type": "compact_20260112"}]}, {"tools": [{"systemTool": {"name": "x"}}]},
    "optimized", "fast", "us", "audio", 5, ["context-1m-2025-08-07"],
    ["interleaved-thinking-2025-05-14"], {"type": "enabled", "budget_tokens": 9_000},
    {"format": "mp3", "source": {"bytes": "x" * 99}}, {"guardrailIdentifier": "g"},
    "\ufdfa" * 300, {"text": "\ufdfa" * 99}, {"name": "d", "source": {"text": "a. " * 3_000}},
    [{"type": "advisor_20260301", "name": "a"}], [{"type": "web_search_20250305", "name": "w"}],
]  # fmt: skip


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a body."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def states_length(value: Any) -> bool:
    """Whether it says how long an answer may be."""
    return any(is_length(name) for one in objects_in(value) for name in one)
