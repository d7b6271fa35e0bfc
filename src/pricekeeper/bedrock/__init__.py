"""What Bedrock's runtime is asked and what it reports, read from its own JSON.

The wrapper of other people's clients and the gateway both use it: what a request can use at the
most (`judge`), what a reply or a stream says was used (`usage`, `streams`), and which errors are
surely free (`refusals`). All of it is pure.
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
