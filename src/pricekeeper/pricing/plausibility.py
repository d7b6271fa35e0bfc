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

    output_tokens_max = TIMES_MAX * model.max_output_tokens
    if usage.output_tokens > output_tokens_max:
        raise InvalidValueError(
            Component.OUTPUT.tokens_field,
            f"{usage.output_tokens} is more than {output_tokens_max}, {TIMES_MAX} times the "
            f"longest answer of '{model.label}'; report each call by itself",
        )


def require_text(model: Model) -> None:
    """Raise `InvalidValueError` if the model can't answer with text."""
    if not model.writes_text:
        raise InvalidValueError(
            "model",
            f"'{model.label}' ({model.bedrock_model_id}) writes no text: name a label that does; "
            "its own calls name it, use InvokeModel and ask for no output",
        )


def answer_tokens(model: Model, asked_tokens: int, least_tokens: int | None) -> int:
    """How long an answer a call may have that asks for so many tokens.

    A call that may be lowered, down to ``least_tokens``, gets at most the longest answer that the
    deployment file states, and none from a model that writes no text. Raises `InvalidValueError` if
    the model can't take the call.
    """
    if not model.writes_text:
        if asked_tokens and least_tokens is None:
            require_text(model)
        return 0
    longest = model.max_output_tokens
    if least_tokens is not None and least_tokens <= longest:
        return min(asked_tokens, longest)
    if asked_tokens > TIMES_MAX * longest:
        raise InvalidValueError("max_output_tokens", too_short(model, asked_tokens))
    return asked_tokens


def too_short(model: Model, asked_tokens: int) -> str:
    """Why a model's answers are too short for a call."""
    return (
        f"the longest answer of '{model.label}' has {model.max_output_tokens} tokens, and "
        f"{asked_tokens} are asked for; ask for less, or name a label with longer answers"
    )
