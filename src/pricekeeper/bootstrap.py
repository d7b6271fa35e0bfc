"""The composition root: from settings to running services, in one place.

Nothing else constructs a store or a system clock. Services are opened together and closed in
the reverse order, also when something fails in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pricekeeper.clock import Clock, SystemClock
from pricekeeper.settings import Settings
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter


@dataclass(frozen=True, slots=True)
class Services:
    """What a running instance is made of."""

    settings: Settings
    clock: Clock
    meter: StoreMeter
    store: Store


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Open everything on the running event loop, and close it at the end."""
    clock, meter = SystemClock(), StoreMeter()
    store = await open_store(settings.store, clock=clock, meter=meter)
    try:
        await store.create_tables()
        yield Services(settings, clock, meter, store)
    finally:
        await store.close()
