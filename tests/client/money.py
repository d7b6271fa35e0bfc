"""What a service has counted for a client, in micro-dollars."""

from typing import Any, Final, NamedTuple

from pricekeeper.client import Api, AsyncPriceKeeper

BUDGET: Final[dict[str, Any]] = {
    "name": "monthly",
    "window": "MONTH",
    "limit_usd_micros": 10**12,
}
"""A budget that holds all calls, and that hardly any test reaches."""


COST_USD_MICROS: Final = (1_000 * 4_400_000 + 100 * 22_000_000) // 1_000_000
"""A call of 1,000 tokens in and 100 out."""
HELD_USD_MICROS: Final = (1_000 * 4_400_000 + 500 * 22_000_000) // 1_000_000
"""It is held for 500 tokens out."""
BLIND_USD_MICROS: Final = (1_000 * 8_800_000 + 500 * 22_000_000) // 1_000_000
"""Its maximum without the service: the prompt may be written to the cache."""


class Money(NamedTuple):
    """The state of the budget."""

    spent: int
    held: int
    unsettled: int = 0
    """Charged for calls whose usage was never reported."""


async def money_of(client: Api | AsyncPriceKeeper) -> Money:
    """What the client has spent, and what is held for calls under way."""
    (budget,) = (await client.budgets())["budgets"]
    return Money(*(budget[f"{name}_usd_micros"] for name in Money._fields))
