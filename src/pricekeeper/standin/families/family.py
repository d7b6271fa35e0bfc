"""What a family of models has: its requests, its answers and its stream chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pricekeeper.standin.read_request import Body, ReadRequest
from pricekeeper.standin.turn import Turn


class ModelFamily(NamedTuple):
    """The bodies of one family."""

    read: Callable[[Body], ReadRequest]
    """Read a request. Raises `AwsFault` if it is invalid."""
    reply: Callable[[Turn], dict[str, Any]]
    chunks: Callable[[Turn], list[dict[str, Any]]] = lambda _: []
    """The bodies of a stream. InvokeModel adds its metrics to the last one."""
    writes_text: bool = True
    """Whether it supports streams and Converse."""
    counts_tokens: bool = True
    """Whether an answer's headers state the usage."""
