"""Formats money and times for people."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

MICROS_PER_CENT: Final = 10_000
MICROS_PER_USD: Final = 1_000_000
LAST_EPOCH: Final = 253_402_300_799


def usd(micros: int) -> str:
    """Dollars and cents; six decimals below one cent."""
    if micros < 0:
        return f"-{usd(-micros)}"
    decimals = 6 if 0 < micros < MICROS_PER_CENT else 2
    scale = 10 ** (6 - decimals)
    whole, rest = divmod(micros // scale, 10**decimals)
    return f"${whole:,}.{rest:0{decimals}}"


def usd_exact(micros: int) -> str:
    """Dollars and cents, and any further decimals."""
    whole, rest = divmod(micros, MICROS_PER_USD)
    decimals = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"${whole:,}.{decimals}"


def rfc3339(epoch_ms: int) -> str:
    """The time in UTC with whole seconds; at most the year 9999."""
    return _rfc3339(min(epoch_ms // 1000, LAST_EPOCH))


@lru_cache(maxsize=4096)
def _rfc3339(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
