"""The operations of Bedrock's runtime, and the model families with bodies of their own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Final

AUTO: Final = "auto"


class Operation(Enum):
    """An operation that runs a model: its name in AWS's service model, and the end of its path."""

    CONVERSE = ("Converse", "converse")
    CONVERSE_STREAM = ("ConverseStream", "converse-stream")
    INVOKE = ("InvokeModel", "invoke")
    INVOKE_STREAM = ("InvokeModelWithResponseStream", "invoke-with-response-stream")

    def __init__(self, api_name: str, path_end: str) -> None:
        self.api_name = api_name
        self.path_end = path_end
        self.is_stream = path_end.endswith("stream")
        self.is_converse = path_end.startswith("converse")
        """Whether all models have the same body; else it is the family's own."""


class Family(StrEnum):
    """Models whose requests and replies have the same form."""

    ANTHROPIC = "anthropic"
    NOVA = "nova"
    TITAN = "titan"
    LLAMA = "llama"
    MISTRAL = "mistral"
    COHERE = "cohere"
    OPENAI = "openai"
    OTHER = "other"


_IN_THE_ID: Final = (
    ("anthropic.", Family.ANTHROPIC),
    ("amazon.nova", Family.NOVA),
    ("amazon.titan", Family.TITAN),
    ("meta.", Family.LLAMA),
    ("mistral.", Family.MISTRAL),
    ("cohere.", Family.COHERE),
    ("openai.", Family.OPENAI),
)
_IN_THE_BODY: Final = (
    ("anthropic_version", Family.ANTHROPIC),
    ("schemaVersion", Family.NOVA),
    ("inferenceConfig", Family.NOVA),
    ("textGenerationConfig", Family.TITAN),
    ("inputText", Family.TITAN),
    ("max_gen_len", Family.LLAMA),
    ("max_completion_tokens", Family.OPENAI),
    ("message", Family.COHERE),
)

_WITHOUT_TEXT: Final = ("embed", "rerank", "canvas", "image", "reel", "sonic")
_PROVIDERS_WITHOUT_TEXT: Final = (".stability.", ".luma.")


def family_of_model(model_id: str) -> Family:
    """The family that a model id, profile id or ARN names."""
    for part, family in _IN_THE_ID:
        if part in model_id:
            return family
    return Family.OTHER


def family_of_body(body: Mapping[str, Any]) -> Family:
    """The family of an ``invoke`` body, or `Family.OTHER`."""
    for name, family in _IN_THE_BODY:
        if name in body:
            return family
    return Family.OTHER


def answers_with_text(model_id: str) -> bool:
    """Whether a model writes text, judging by its id; true if the id does not tell.

    The id must name a provider: a label such as ``image-captions`` tells nothing. In the service,
    `Model.writes_text` from the deployment file decides.
    """
    for part in model_id.split("/"):
        if any(one in f".{part}" for one in _PROVIDERS_WITHOUT_TEXT):
            return False
        name = part.partition(".")[2]
        if any(one in name for one in _WITHOUT_TEXT):
            return False
    return True
