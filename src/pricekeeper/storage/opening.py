"""Opens the store at a location. Only this module knows the adapters."""

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
    """Open the store at that location. Its tables may be missing.

    ``start_wait_ms`` bounds the wait for an unreachable store when tables are created.
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
    """Let DynamoDB remove expired items. SQLite's adapter removes them itself."""
    match location:
        case DynamoDbLocation():
            async with _open_dynamodb(location, clock) as store:
                await store.enable_expiry()


async def find_tables_without_expiry(location: StoreLocation, *, clock: Clock) -> list[str]:
    """The tables whose expired items only take up space, because expiry is off."""
    match location:
        case DynamoDbLocation():
            async with _open_dynamodb(location, clock) as store:
                return [table.name for table in await store.find_tables_without_expiry()]
    return []


def read_leap_ms(location: StoreLocation) -> int:
    """How far wall time was ahead when a service last doubted it, else 0."""
    match location:
        case SqliteLocation(path):
            from pricekeeper.storage.sqlite.moments import load_moments  # noqa: PLC0415

            moments = load_moments(path)
            return 0 if moments is None else moments.leap_ms
    return 0


def forget_moments_ahead(location: StoreLocation, *, now_ms: int, dry_run: bool) -> bool:
    """Remove later moments than this right time; returns whether there were any."""
    match location:
        case SqliteLocation(path):
            from pricekeeper.storage.sqlite.moments import forget_ahead  # noqa: PLC0415

            return forget_ahead(path, now_ms, dry_run=dry_run)
    return False


async def find_damage(
    location: StoreLocation, *, clock: Clock, patience_ms: int
) -> FileCheck | None:
    """Check the file of an embedded store; ``None`` for other stores."""
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
