"""What the gateway tells the server about a connection, beyond what ASGI has words for."""

from __future__ import annotations

from typing import Final

ABORT: Final = "pricekeeper.abort"
"""The type of the message that ends a connection whose answer can't be finished."""
