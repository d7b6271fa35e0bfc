"""What a family of models has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pricekeeper.standin.read_request import Body, ReadRequest
from pricekeeper.standin.turn import Turn


class ModelFamily(NamedTuple):
    """The bodies of one family."""

    read: Callable[[Body], ReadRequest]
    """Raises `AwsFault` for an invalid request."""
    reply: Callable[[Turn], dict[str, Any]]
    chunks: Callable[[Turn], list[dict[str, Any]]] = lambda _: []
    """InvokeModel adds its metrics to the last."""
    writes_text: bool = True
    """Whether it has streams and Converse."""
    counts_tokens: bool = True
    """Whether headers state the usage."""
