"""The store that the settings name: whether it is there, and what people call it."""

from __future__ import annotations

from pathlib import Path

from pricekeeper.settings import MEMORY, Settings, SqliteLocation


def is_missing_file(settings: Settings) -> bool:
    """Whether the store is a file that nobody has made yet; opening it would make it."""
    match settings.store:
        case SqliteLocation(path) if path != MEMORY:
            return not Path(path).exists()
    return False


def store_name(settings: Settings) -> str:
    """The store as people would point to it."""
    match settings.store:
        case SqliteLocation(path):
            return path if path == MEMORY else str(Path(path).resolve())
        case location:
            return f"DynamoDB in {location.region}, tables {location.prefix}*"
