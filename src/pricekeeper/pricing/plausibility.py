"""Refuses records with far more tokens than their model can process.

Such a record (a wrong unit, a sum over calls, made up) could use up a quota. The bound is
`TIMES_MAX` times the deployment file's limits, because refusing a true record hides spend: windows
grow under the same model id, and calls with server-side tools report the sum of their rounds.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.errors import InvalidValueError
from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.cost import TokenUsage
from pricekeeper.pricing.prices import COMPONENTS, Component

TIMES_MAX: Final = 10


def check_plausible(model: Model, usage: TokenUsage) -> None:
    """Raise `InvalidValueError` if no call of that model can use so much.

    All tokens of the prompt count against the context window. The error names the largest field.
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
            f"'{model.label}' ({model.bedrock_model_id}) writes no text: name a label that "
            "does, or name this one, use InvokeModel and ask for no output",
        )


def answer_tokens(model: Model, asked_tokens: int, least_tokens: int | None) -> int:
    """The longest answer to reserve for a call that asks for so many tokens.

    A call that may be lowered to ``least_tokens`` gets at most the model's longest answer, and none
    without text. Raises `InvalidValueError` if the model can't take it.
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
    """The message for a model whose answers are too short."""
    return (
        f"the longest answer of '{model.label}' has {model.max_output_tokens} tokens, and "
        f"{asked_tokens} are asked for; ask for less, or name a label with longer answers"
    )
