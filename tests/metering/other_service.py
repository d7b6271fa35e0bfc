"""Another service, which counts usage in the schema document's literal shape.

These lines use as little of our code as they can, so that no change of ours changes what it writes.
"""

from random import Random

from pricekeeper.metering.counters import Account, Counters
from pricekeeper.storage import Add, Key, Put, Set, Store, Update
from pricekeeper.storage.tables import DAILY_TOTAL, USAGE_AGG_SHARDED

SHARDS = 8
MICRO = 1_000_000


def in_micros(counters: Counters) -> Counters:
    """Its counters know whole micro-dollars, and no cache tokens."""
    return Counters(
        counters.cost_usd_picos // MICRO * MICRO,
        counters.input_tokens,
        counters.output_tokens,
        requests=counters.requests,
    )


def _amounts(counters: Counters) -> dict[str, int]:
    return {
        "cost_usd_micros": counters.cost_usd_picos // MICRO,
        "input_tokens": counters.input_tokens,
        "output_tokens": counters.output_tokens,
        "requests": counters.requests,
    }


class OtherService:
    """Counts in one of eight shards, and sums them now and then."""

    def __init__(self, store: Store, randomness: Random) -> None:
        self._store = store
        self._random = randomness

    async def count(self, account: Account, counters: Counters) -> None:
        scope_key, label, day = account
        key = Key(f"{scope_key}#LABEL#{label}#SH#{self._random.randrange(SHARDS)}", f"DAY#{day}")
        adds = [Add(name, amount) for name, amount in _amounts(counters).items()]
        await self._store.update(
            Update(USAGE_AGG_SHARDED, key, (*adds, Set("updated_at_epoch", 1_737_640_800)))
        )

    async def put_total(self, account: Account, counters: Counters) -> None:
        scope_key, label, day = account
        key = {"PK": f"{scope_key}#LABEL#{label}", "SK": f"DAY#{day}"}
        await self._store.put(Put(DAILY_TOTAL, {**key, **_amounts(counters)}))
