"""What a family of models has: a body that is asked, a body that answers, and the chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pricekeeper.standin.prompt import Body, Prompt
from pricekeeper.standin.turn import Turn


class ModelFamily(NamedTuple):
    """The bodies of one family."""

    read: Callable[[Body], Prompt]
    """What a request asks for; raises `AwsFault` if it can't be understood."""
    reply: Callable[[Turn], dict[str, Any]]
    chunks: Callable[[Turn], list[dict[str, Any]]] = lambda _: []
    """The bodies of a stream. The last one gets the invocation's metrics from InvokeModel."""
    writes_text: bool = True
    """Whether it can be asked for a stream, and with Converse."""
    counts_tokens: bool = True
    """Whether the headers of an answer say what was used."""
