"""Reads Bedrock's own JSON: what a request can use at most, and what a reply says it used.

Shared by the gateway and the wrapped AWS clients: `judge` for requests, `usage`, `streams` and
`sse` for replies, `refusals` for free errors. Pure, except for the process in `reading`.
"""

from pricekeeper.bedrock.families import (
    AUTO,
    Family,
    Operation,
    answers_with_text,
    family_of_body,
    family_of_model,
)
from pricekeeper.bedrock.judging import (
    BETA_HEADER,
    GUARDRAIL_HEADER,
    MAX_OUTPUT_TOKENS,
    METADATA_HEADER,
    NOT_PROMPT,
    SERVICE_TIER,
    WINDOW_TOKENS,
    BedrockCall,
    CallBounds,
    Terms,
    judge,
)
from pricekeeper.bedrock.refusals import is_free_refusal, read_error, was_never_sent
from pricekeeper.bedrock.shapes import GUARDRAIL, BodyRefusedError, CacheWrite
from pricekeeper.bedrock.sse import SseUsage
from pricekeeper.bedrock.streams import StreamUsage
from pricekeeper.bedrock.usage import (
    LATENCY_HEADER,
    NOT_JSON,
    OPTIMIZED,
    TIER_HEADER,
    Usage,
    decode_telling,
    tier_with,
    usage_of_converse,
    usage_of_invoke,
)

__all__ = [
    "AUTO",
    "BETA_HEADER",
    "GUARDRAIL",
    "GUARDRAIL_HEADER",
    "LATENCY_HEADER",
    "MAX_OUTPUT_TOKENS",
    "METADATA_HEADER",
    "NOT_JSON",
    "NOT_PROMPT",
    "OPTIMIZED",
    "SERVICE_TIER",
    "TIER_HEADER",
    "WINDOW_TOKENS",
    "BedrockCall",
    "BodyRefusedError",
    "CacheWrite",
    "CallBounds",
    "Family",
    "Operation",
    "SseUsage",
    "StreamUsage",
    "Terms",
    "Usage",
    "answers_with_text",
    "decode_telling",
    "family_of_body",
    "family_of_model",
    "is_free_refusal",
    "judge",
    "read_error",
    "tier_with",
    "usage_of_converse",
    "usage_of_invoke",
    "was_never_sent",
]
