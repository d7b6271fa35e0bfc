"""Opens the store that the settings name, for commands: alone, or with all that a service opens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pricekeeper.bootstrap import Services, open_services
from pricekeeper.cli.stores import is_missing_file, store_name
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.credentials.pepperfile import FILE as PEPPER_FILE
from pricekeeper.errors import StoreMisconfiguredError
from pricekeeper.settings import Settings
from pricekeeper.storage import Store, open_store


@asynccontextmanager
async def open_local_services(
    settings: Settings, *, may_create: bool = False
) -> AsyncIterator[Services]:
    """Open everything that the service would open, and leave no keys where it has none.

    A new store gets new keys and a new pepper, as at a first start. But a store that is there
    already has a service somewhere with its own, and whatever were made here beside it would
    be taken for those later.
    """
    is_new = is_missing_file(settings)
    if not may_create:
        _require_store(settings)
    with ExitStack() as closing:
        if not is_new and not has_pepper(settings):
            folder = closing.enter_context(TemporaryDirectory(prefix="pricekeeper-"))
            settings = replace(settings, data_dir=Path(folder))
        async with open_services(settings) as services:
            yield services


def has_pepper(settings: Settings) -> bool:
    """Whether the service's own pepper is at hand: in the data folder, or where a setting says."""
    return settings.pepper is not None or (settings.data_dir / PEPPER_FILE).exists()


@asynccontextmanager
async def open_local_store(
    settings: Settings, *, may_create: bool = False, clock: Clock | None = None
) -> AsyncIterator[Store]:
    """Open the store alone, for what needs neither keys nor prices; create nothing in it."""
    if not may_create:
        _require_store(settings)
    store = await open_store(settings.store, clock=clock or SystemClock())
    try:
        yield store
    finally:
        await store.close()


def _require_store(settings: Settings) -> None:
    if is_missing_file(settings):
        raise StoreMisconfiguredError(f"there is no store: {store_name(settings)} is missing")
