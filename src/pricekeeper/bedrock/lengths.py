"""Reads the longest answer of a body, and writes it where the model reads it.

It is uncertain which of several names a model obeys. So the highest value counts and is written
under the family's own name, and the other names are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from pricekeeper.bedrock.families import Family
from pricekeeper.bedrock.shapes import BodyRefusedError, is_length, is_times

Holders: TypeAlias = list[tuple[str, dict[str, Any]]]
ADDITIONAL: Final = "additionalModelRequestFields"
"""Converse passes this to the model unchanged."""
CONFIGS: Final = ("inferenceConfig", "textGenerationConfig")
_OUTER: Final = (*CONFIGS, ADDITIONAL)
_OWN_NAMES: Final[Mapping[Family | None, tuple[str | None, str]]] = {
    None: ("inferenceConfig", "maxTokens"),
    Family.ANTHROPIC: (None, "max_tokens"),
    Family.NOVA: ("inferenceConfig", "maxTokens"),
    Family.TITAN: ("textGenerationConfig", "maxTokenCount"),
    Family.LLAMA: (None, "max_gen_len"),
    Family.MISTRAL: (None, "max_tokens"),
    Family.COHERE: (None, "max_tokens"),
    Family.OPENAI: (None, "max_completion_tokens"),
    Family.OTHER: (None, "max_tokens"),
}
"""Where each family reads the longest answer; ``None`` is ``converse``."""
_CONVERSE: Final = "inferenceConfig.maxTokens"
_OF_OTHERS: Final = ("max_tokens", "max_completion_tokens")
"""Obeyed by unknown families; other names are uncertain."""
_THOUGHTS: Final = ("thinking", "reasoning_config")
_COMPACTION: Final = "compact"
"""A context edit that makes the model read everything again and summarise it."""


def take_lengths(holders: Holders, family: Family | None) -> int | None:
    """Remove the longest answers from a body; returns the highest, or ``None``.

    ``family`` is ``None`` for ``converse``. Raises `BodyRefusedError` for a value that is no count.
    """
    longest = None
    for path, holder in holders:
        for name in [name for name in holder if is_length(name)]:
            if family is None and not path.startswith(ADDITIONAL) and path + name != _CONVERSE:
                continue
            value = holder.pop(name)
            if value is None:
                continue
            if family is Family.OTHER and path + name not in _OF_OTHERS:
                raise BodyRefusedError(f"{path}{name}: this model may ignore it; use max_tokens")
            longest = max(longest or 0, _count(f"{path}{name}", value))
    return longest


def budget_of(holders: Holders) -> int:
    """The stated maximum of thinking tokens.

    They count in the longest answer, except between tool calls, where the length of the answer is
    unbounded.
    """
    most = 0
    for _, holder in holders:
        for name in _THOUGHTS:
            thoughts = holder.get(name)
            budget = thoughts.get("budget_tokens") if type(thoughts) is dict else None
            if budget is not None:
                most = max(most, _count(f"{name}.budget_tokens", budget))
    return most


def write_length(body: dict[str, Any], tokens: int, family: Family | None) -> dict[str, Any]:
    """The body with that longest answer, under the family's own name."""
    outer, name = _OWN_NAMES[family]
    if outer is None:
        return {**body, name: tokens}
    return {**body, outer: {**body.get(outer, {}), name: tokens}}


def answers_of(holders: Holders) -> int:
    """The number of requested answers."""
    most = 1
    for path, holder in holders:
        for name in filter(is_times, holder):
            if holder[name] is not None:
                most = max(most, _count(f"{path}{name}", holder[name]))
    return most


def is_compacting(holders: Holders) -> bool:
    """Whether the model may read everything again and also answer with a summary."""
    for _, holder in holders:
        context = holder.get("context_management")
        edits = context.get("edits") if isinstance(context, dict) else None
        if isinstance(edits, list) and any(
            isinstance(one, dict) and str(one.get("type")).startswith(_COMPACTION) for one in edits
        ):
            return True
    return False


def holders_of(body: dict[str, Any]) -> Holders:
    """The objects of a body that may state a longest answer, with their paths."""
    found = [("", body)]
    for outer in _OUTER:
        inside = body.get(outer)
        if inside is None:
            continue
        if type(inside) is not dict:
            raise BodyRefusedError(f"{outer}: must be an object")
        found.append((f"{outer}.", inside))
        if outer == ADDITIONAL:
            configs = [inner for inner in CONFIGS if type(inside.get(inner)) is dict]
            found += [(f"{outer}.{inner}.", inside[inner]) for inner in configs]
    return found


def _count(path: str, value: Any) -> int:
    if type(value) is not int or value <= 0:
        raise BodyRefusedError(f"{path}: must be a whole number above zero")
    return value
