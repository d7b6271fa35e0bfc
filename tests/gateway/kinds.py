"""A deployment with models that write no text, and one whose answers are short."""

from pathlib import Path
from typing import Any, Final

import yaml

PRICED_UNIT: Final = "tool_call:nova_grounding"
TEXT: Final = {
    "premium": "us.anthropic.claude-opus-5-5",
    "short": "us.meta.llama3-3-70b-instruct-v1:0",
    "nova": "us.amazon.nova-pro-v1:0",
    "titan": "amazon.titan-text-premier-v1:0",
    "cohere": "cohere.command-r-plus-v1:0",
    "gpt": "openai.gpt-oss-120b-1:0",
}
SHORT_TOKENS: Final = 400
"""The longest answer of ``short``."""
NO_TEXT: Final = {
    "vectors": "amazon.titan-embed-text-v2:0",
    "profile-vectors": "arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/abcd",
    "nova-vectors": "amazon.nova-2-multimodal-embeddings-v1:0",
    "cohere-vectors": "us.cohere.embed-v4:0",
    "cohere-ranks": "cohere.rerank-v3-5:0",
    "ranks": "amazon.rerank-v1:0",
    "pictures": "amazon.titan-image-generator-v2:0",
    "canvas": "amazon.nova-canvas-v1:0",
    "stable": "us.stability.stable-image-core-v1:1",
    "films": "luma.ray-v2:0",
}
INPUT_USD_MICROS: Final = 2
"""What a token of a prompt costs, of any model."""
OUTPUT_USD_MICROS: Final = 7
"""What a token of an answer costs, of any model that writes text."""

BODIES: Final[dict[str, dict[str, Any]]] = {
    "vectors": {"inputText": "hello", "dimensions": 256, "normalize": True},
    "profile-vectors": {"inputText": "hello"},
    "nova-vectors": {
        "taskType": "SINGLE_EMBEDDING",
        "singleEmbeddingParams": {
            "embeddingPurpose": "GENERIC_INDEX",
            "text": {"truncationMode": "END", "value": "hello"},
            "segmentationConfig": {"maxLengthChars": 800},
        },
    },
    "cohere-vectors": {"texts": ["hello"], "input_type": "search_query"},
    "cohere-ranks": {
        "query": "hello",
        "documents": ["a", "b"],
        "api_version": 2,
        "max_tokens_per_doc": 512,
    },
    "ranks": {"query": "hello", "documents": [{"type": "text", "text": "a"}]},
    "pictures": {
        "taskType": "TEXT_IMAGE",
        "textToImageParams": {"text": "hello"},
        "imageGenerationConfig": {"numberOfImages": 1},
    },
    "canvas": {
        "taskType": "TEXT_IMAGE",
        "textToImageParams": {"text": "hello"},
        "imageGenerationConfig": {"width": 512},
    },
    "stable": {"prompt": "hello", "aspect_ratio": "1:1"},
    "films": {"prompt": "hello"},
}
"""What each of those is asked."""


def write_deployment(folder: Path) -> Path:
    """The deployment file with all of them."""
    path = folder / "kinds.yaml"
    models = {label: _entry(label, model_id) for label, model_id in {**TEXT, **NO_TEXT}.items()}
    path.write_text(yaml.safe_dump({"version": 1, "models": models}))
    return path


def _entry(label: str, model_id: str) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if label == "profile-vectors":
        more["priced_as"] = NO_TEXT["vectors"]
    if label in NO_TEXT:
        more["max_output_tokens"] = 1
    elif label == "short":
        more["max_output_tokens"] = SHORT_TOKENS
    more["counts_tokens"] = label == "nova"
    if label == "premium":
        more["units"] = {PRICED_UNIT: 30_000_000}
    output_micros = OUTPUT_USD_MICROS * 1_000_000
    return {
        "bedrock_model_id": model_id,
        "family": label,
        "tier": "any",
        "description": label,
        "context_window_tokens": 10_000,
        "default_pricing": {
            "input_price_usd_micros_per_1m": INPUT_USD_MICROS * 1_000_000,
            "output_price_usd_micros_per_1m": 0 if label in NO_TEXT else output_micros,
        },
        **more,
    }
