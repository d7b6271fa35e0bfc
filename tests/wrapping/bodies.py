"""What each family is asked with in ``invoke_model``."""

import json
from typing import Any

from wrapping.deployment import MODELS
from wrapping.world import directive

FAMILIES = [label for label in MODELS if label not in ("standard", "profile")]
"""The label of a model of each family."""


def body_of(family: str, max_tokens: int | None = 50, /, **script: Any) -> dict[str, Any]:
    """The family's own body, with what the stand-in is to do in its prompt."""
    text = directive(**script) if script else "hello"
    stated = {} if max_tokens is None else {_STATED[family]: max_tokens}
    chat = [{"role": "user", "content": text}]
    match family:
        case "premium" | "standard":
            version = {"anthropic_version": "bedrock-2023-05-31"}
            return {**version, "messages": chat, **stated}
        case "nova":
            said = [{"role": "user", "content": [{"text": text}]}]
            return {"schemaVersion": "messages-v1", "messages": said, "inferenceConfig": stated}
        case "titan":
            return {"inputText": text, "textGenerationConfig": stated}
        case "cohere":
            return {"message": text, **stated}
        case "gpt":
            return {"messages": chat, **stated}
        case _:
            return {"prompt": text, **stated}


_STATED = {
    "premium": "max_tokens",
    "standard": "max_tokens",
    "nova": "maxTokens",
    "titan": "maxTokenCount",
    "llama": "max_gen_len",
    "mistral": "max_tokens",
    "cohere": "max_tokens",
    "gpt": "max_completion_tokens",
}


def encoded(family: str, max_tokens: int | None = 50, /, **script: Any) -> bytes:
    """The body as bytes."""
    return json.dumps(body_of(family, max_tokens, **script)).encode()
