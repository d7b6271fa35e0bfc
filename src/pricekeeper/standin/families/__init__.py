"""The families of models, found by model id."""

from __future__ import annotations

from typing import Final

from pricekeeper.standin.families.anthropic import ANTHROPIC
from pricekeeper.standin.families.completions import COHERE, LLAMA, MISTRAL, TITAN
from pricekeeper.standin.families.family import ModelFamily
from pricekeeper.standin.families.nova import NOVA
from pricekeeper.standin.families.openai import OPENAI
from pricekeeper.standin.families.without_text import WITHOUT_TEXT
from pricekeeper.standin.refusals import AwsFault

FAMILIES: Final[dict[str, ModelFamily]] = {
    **WITHOUT_TEXT,
    "anthropic.": ANTHROPIC,
    "amazon.nova": NOVA,
    "amazon.titan-text": TITAN,
    "cohere.": COHERE,
    "meta.": LLAMA,
    "mistral.": MISTRAL,
    "openai.": OPENAI,
}
"""By a part of the id, which may follow a region prefix or be in an ARN."""


def require_text(model_id: str) -> None:
    """Refuse a model without Converse."""
    if any(marker in model_id for marker in WITHOUT_TEXT):
        raise AwsFault(
            "ValidationException",
            "This action doesn't support the model that you provided. Try again with a supported "
            "text or chat model.",
        )


def family_of(model_id: str) -> ModelFamily:
    """The family of a model id, profile or ARN."""
    for marker, family in FAMILIES.items():
        if marker in model_id:
            return family
    known = ", ".join(FAMILIES)
    raise AwsFault("ResourceNotFoundException", f"the model's id must contain one of {known}")
