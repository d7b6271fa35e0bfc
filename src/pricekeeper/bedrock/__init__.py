"""What Bedrock's runtime is asked and what it reports, read from its own JSON.

The wrapper of other people's clients and the gateway both stand on this room: how many tokens a
request can cost at the most (`bounds`), what a reply or a stream says was used (`usage`,
`streams`), and which errors are surely free (`refusals`). All of it is pure.
"""

from pricekeeper.bedrock.bounds import (
    CallBounds,
    WrongLengthError,
    bounds_of,
    read_max_output,
    with_max_output,
)
from pricekeeper.bedrock.families import Family, answers_with_text, family_of_body, family_of_model
from pricekeeper.bedrock.operations import Operation
from pricekeeper.bedrock.streams import StreamUsage
from pricekeeper.bedrock.usage import Usage, usage_of_converse, usage_of_invoke

__all__ = [
    "CallBounds",
    "Family",
    "Operation",
    "StreamUsage",
    "Usage",
    "WrongLengthError",
    "answers_with_text",
    "bounds_of",
    "family_of_body",
    "family_of_model",
    "read_max_output",
    "usage_of_converse",
    "usage_of_invoke",
    "with_max_output",
]
