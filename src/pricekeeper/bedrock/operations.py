"""The four operations of Bedrock's runtime that run a model."""

from __future__ import annotations

from enum import Enum


class Operation(Enum):
    """An operation: its name in AWS's service model, and the last part of its path."""

    CONVERSE = ("Converse", "converse")
    CONVERSE_STREAM = ("ConverseStream", "converse-stream")
    INVOKE = ("InvokeModel", "invoke")
    INVOKE_STREAM = ("InvokeModelWithResponseStream", "invoke-with-response-stream")

    def __init__(self, api_name: str, path_end: str) -> None:
        self.api_name = api_name
        self.path_end = path_end
        self.is_stream = path_end.endswith("stream")
        """Whether the answer comes in events."""
        self.is_converse = path_end.startswith("converse")
        """Whether the body is the same for every model; else it is the model family's own."""
