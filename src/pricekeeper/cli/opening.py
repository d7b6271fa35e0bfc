"""Open the store, alone or with all services. Imports are late, to keep ``--help`` quick."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import StoreMisconfiguredError
from pricekeeper.settings import MEMORY, DynamoDbLocation, Settings, SqliteLocation

if TYPE_CHECKING:
    from pricekeeper.bootstrap import Services
    from pricekeeper.storage import Store


@asynccontextmanager
async def open_local_services(
    settings: Settings, *, may_create: bool = False
) -> AsyncIterator[Services]:
    """Open everything that the service opens, without leaving new keys in the data folder.

    An existing store has a service's keys, so keys made here go to a temporary folder.
    """
    from pricekeeper.bootstrap import open_services  # noqa: PLC0415

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
    """Whether the service's pepper can be read."""
    from pricekeeper.credentials.peppers import PEPPER_FILE  # noqa: PLC0415

    return settings.pepper is not None or (settings.data_dir / PEPPER_FILE).exists()


@asynccontextmanager
async def open_local_store(
    settings: Settings,
    *,
    may_create: bool = False,
    any_format: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[Store]:
    """Open the store alone; ``any_format`` skips the check."""
    from pricekeeper.storage import open_store, require_format  # noqa: PLC0415

    if not may_create:
        _require_store(settings)
    store = await open_store(settings.store, clock=clock or SystemClock())
    try:
        if not any_format:
            await require_format(store)
        yield store
    finally:
        await store.close()


def _require_store(settings: Settings) -> None:
    if is_missing_file(settings):
        raise StoreMisconfiguredError(f"there is no store at {store_name(settings)}")


def store_file(settings: Settings) -> Path | None:
    """The store's file, if it is one."""
    match settings.store:
        case SqliteLocation(path) if path != MEMORY:
            return Path(path)
    return None


def is_missing_file(settings: Settings) -> bool:
    """Whether opening the store would create its file."""
    path = store_file(settings)
    return path is not None and not path.exists()


def store_name(settings: Settings) -> str:
    """Name the store for people."""
    match settings.store:
        case SqliteLocation(path):
            return path if path == MEMORY else str(Path(path).resolve())
        case DynamoDbLocation(region=region, prefix=prefix):
            return f"DynamoDB in {region}, tables {prefix}*"
