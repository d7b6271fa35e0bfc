"""From a store's URL to an open store. Nobody else needs to know which adapters exist."""

from __future__ import annotations

from pricekeeper.clock import Clock
from pricekeeper.settings import DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage.port import Store
from pricekeeper.telemetry import StoreMeter


async def open_store(
    location: StoreLocation, *, clock: Clock, meter: StoreMeter | None = None
) -> Store:
    """Open the store at that location. Its tables may still have to be created.

    The adapter is imported here and not above, so that an embedded store never pays for
    importing an AWS client, nor the other way round.
    """
    meter = meter or StoreMeter()
    match location:
        case SqliteLocation(path):
            from pricekeeper.storage.sqlite.store import SqliteStore  # noqa: PLC0415

            return await SqliteStore.open(path, clock=clock, meter=meter)
        case DynamoDbLocation():
            from pricekeeper.storage.dynamodb.store import DynamoDbStore  # noqa: PLC0415

            return await DynamoDbStore.open(location, clock=clock, meter=meter)
