"""Whether a record can be true: far more tokens than its model can hold are a mistake.

A record beyond what any call can use was counted in the wrong unit, summed over many calls, or made
up, and one such record spends a whole organisation's quota. So it is refused.

The bound is `TIMES_MAX` times what the deployment file states, because a true record that is
refused is spend that nobody sees. Windows grow under the same model id (200,000 tokens became a
million behind a header), a call whose tools run on the server reports the sum of its rounds, and
nobody updates the file in time.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.errors import InvalidValueError
from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.cost import TokenUsage
from pricekeeper.pricing.prices import COMPONENTS, Component

TIMES_MAX: Final = 10


def check_plausible(model: Model, usage: TokenUsage) -> None:
    """Raise `InvalidValueError`, naming the field, if no call of that model can have used so much.

    The tokens of the prompt count together against the context window, those from and for the
    cache included. The field that is named is the largest of them.
    """
    prompt_tokens = usage.input_tokens
    if not model.input_includes_cache_tokens:
        prompt_tokens += usage.cache_tokens
    prompt_tokens_max = TIMES_MAX * model.context_window_tokens
    if prompt_tokens > prompt_tokens_max:
        prompt = [component for component in COMPONENTS if component is not Component.OUTPUT]
        largest = max(prompt, key=usage.tokens)
        raise InvalidValueError(
            largest.tokens_field,
            f"a prompt of {prompt_tokens} tokens in all is more than {prompt_tokens_max}, "
            f"{TIMES_MAX} times the context window of '{model.label}'; report each call by itself",
        )
    check_answer_plausible(model, usage.output_tokens)


def check_answer_plausible(model: Model, output_tokens: int) -> None:
    """The same for the answer alone."""
    output_tokens_max = TIMES_MAX * model.max_output_tokens
    if output_tokens > output_tokens_max:
        raise InvalidValueError(
            Component.OUTPUT.tokens_field,
            f"{output_tokens} is more than {output_tokens_max}, {TIMES_MAX} times the "
            f"longest answer of '{model.label}'; report each call by itself",
        )
