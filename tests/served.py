"""A service in this process, on a real socket: quicker to start than a process of its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from http_fixtures import ENVIRONMENT, Api
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.settings import Settings, read_settings
from pricekeeper.testing.serving import running_service


def settings_in(
    folder: Path, environment: Mapping[str, str] | None = None, *, store: str = "", **changes: Any
) -> Settings:
    """Those of `http_fixtures`, with all files in this folder, and what the test changes."""
    quiet = {"PRICEKEEPER_LOG_LEVEL": "error", "PRICEKEEPER_DRAIN_SECS": "0"}
    places = {
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        "PRICEKEEPER_STORE": store or f"sqlite:///{folder}/store.db",
    }
    variables = {**ENVIRONMENT, **quiet, **places, **(environment or {})}
    return replace(read_settings(variables), **changes)


@contextmanager
def served(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    clock: Clock | None = None,
    store: str = "",
    **changes: Any,
) -> Iterator[Api]:
    """Serve until the end of the block."""
    settings = settings_in(folder, environment, store=store, **changes)
    with running_service(settings, clock or SystemClock()) as url:
        yield Api(url)
