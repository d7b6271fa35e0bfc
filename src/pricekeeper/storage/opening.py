"""Opens the store at a location. No other module knows which adapters exist."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pricekeeper.clock import Clock
from pricekeeper.settings import MEMORY, DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage.port import Store
from pricekeeper.telemetry import StoreMeter

if TYPE_CHECKING:
    from pricekeeper.storage.dynamodb.store import DynamoDbStore
    from pricekeeper.storage.sqlite.database import FileCheck


async def open_store(
    location: StoreLocation,
    *,
    clock: Clock,
    meter: StoreMeter | None = None,
    start_wait_ms: int = 0,
) -> Store:
    """Open the store at that location. Its tables may still have to be created.

    ``start_wait_ms`` is how long creating them waits for a store that can't be reached yet.

    The adapter is imported here and not above, so that an embedded store never pays for
    importing an AWS client, nor the other way round.
    """
    meter = meter or StoreMeter()
    match location:
        case SqliteLocation(path):
            from pricekeeper.storage.sqlite.store import SqliteStore  # noqa: PLC0415

            return await SqliteStore.open(path, clock=clock, meter=meter)
        case DynamoDbLocation():
            from pricekeeper.storage.dynamodb.client import Limits  # noqa: PLC0415
            from pricekeeper.storage.dynamodb.store import DynamoDbStore  # noqa: PLC0415

            limits = Limits(start_wait_ms=start_wait_ms)
            return await DynamoDbStore.open(location, clock=clock, meter=meter, limits=limits)


async def enable_expiry(location: StoreLocation, *, clock: Clock) -> None:
    """Let DynamoDB remove expired items by itself. For SQLite the adapter removes them."""
    match location:
        case DynamoDbLocation():
            async with _open_dynamodb(location, clock) as store:
                await store.enable_expiry()


async def find_tables_without_expiry(location: StoreLocation, *, clock: Clock) -> list[str]:
    """Find the tables whose expired items nobody removes: they only take up space."""
    match location:
        case DynamoDbLocation():
            async with _open_dynamodb(location, clock) as store:
                return [table.name for table in await store.find_tables_without_expiry()]
    return []


def read_leap_ms(location: StoreLocation) -> int:
    """Read how far wall time was ahead when a service last doubted it; 0 if it did not."""
    match location:
        case SqliteLocation(path):
            from pricekeeper.storage.sqlite.moments import load_moments  # noqa: PLC0415

            moments = load_moments(path)
            return 0 if moments is None else moments.leap_ms
    return 0


def forget_moments_ahead(location: StoreLocation, *, now_ms: int, dry_run: bool) -> bool:
    """Let the store forget moments after now, by a clock that is right; whether it knew any.

    A service doubts a clock that is behind such a moment.
    """
    match location:
        case SqliteLocation(path):
            from pricekeeper.storage.sqlite.moments import forget_ahead  # noqa: PLC0415

            return forget_ahead(path, now_ms, dry_run=dry_run)
    return False


async def find_damage(
    location: StoreLocation, *, clock: Clock, patience_ms: int
) -> FileCheck | None:
    """Whether the file of an embedded store is whole; ``None`` for a store that is no file."""
    match location:
        case SqliteLocation(path) if path != MEMORY:
            from pricekeeper.storage.sqlite.database import check_file  # noqa: PLC0415

            return await asyncio.to_thread(check_file, path, clock, patience_ms)
    return None


@asynccontextmanager
async def _open_dynamodb(location: DynamoDbLocation, clock: Clock) -> AsyncIterator[DynamoDbStore]:
    from pricekeeper.storage.dynamodb.store import DynamoDbStore  # noqa: PLC0415

    store = await DynamoDbStore.open(location, clock=clock, meter=StoreMeter())
    try:
        yield store
    finally:
        await store.close()
