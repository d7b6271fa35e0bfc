"""Reads Bedrock's own JSON: what a request can use at most, and what a reply says it used.

The gateway and the wrapped AWS clients share it: `judge` for requests, `usage`, `streams` and `sse`
for replies, `refusals` for errors that are free. It is pure, except for the process in `reading`.
"""

from pricekeeper.bedrock.families import (
    AUTO,
    Family,
    Operation,
    answers_with_text,
    family_of_body,
    family_of_model,
)
from pricekeeper.bedrock.judging import MAX_OUTPUT_TOKENS, BedrockCall, CallBounds, Terms, judge
from pricekeeper.bedrock.shapes import BodyRefusedError, CacheWrite
from pricekeeper.bedrock.streams import StreamUsage
from pricekeeper.bedrock.usage import Usage, usage_of_converse, usage_of_invoke

__all__ = [
    "AUTO",
    "MAX_OUTPUT_TOKENS",
    "BedrockCall",
    "BodyRefusedError",
    "CacheWrite",
    "CallBounds",
    "Family",
    "Operation",
    "StreamUsage",
    "Terms",
    "Usage",
    "answers_with_text",
    "family_of_body",
    "family_of_model",
    "judge",
    "usage_of_converse",
    "usage_of_invoke",
]
