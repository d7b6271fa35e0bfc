"""Which family a model is of, by its id."""

from __future__ import annotations

from typing import Final

from pricekeeper.standin.families.anthropic import ANTHROPIC
from pricekeeper.standin.families.completions import COHERE, LLAMA, MISTRAL, TITAN
from pricekeeper.standin.families.family import ModelFamily
from pricekeeper.standin.families.nova import NOVA
from pricekeeper.standin.families.openai import OPENAI
from pricekeeper.standin.refusals import AwsFault

FAMILIES: Final[dict[str, ModelFamily]] = {
    "anthropic.": ANTHROPIC,
    "amazon.nova": NOVA,
    "amazon.titan-text": TITAN,
    "cohere.": COHERE,
    "meta.": LLAMA,
    "mistral.": MISTRAL,
    "openai.": OPENAI,
}
"""By what an id contains: a region's prefix or an ARN may be before it."""


def family_of(model_id: str) -> ModelFamily:
    """The family of a model, or of what an inference profile or an ARN names."""
    for marker, family in FAMILIES.items():
        if marker in model_id:
            return family
    known = ", ".join(FAMILIES)
    raise AwsFault("ResourceNotFoundException", f"the model's id must contain one of {known}")
