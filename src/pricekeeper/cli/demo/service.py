"""How the demo's service is run: as a small company would run it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from pricekeeper.settings import API_LIMITS_PER_MINUTE, Settings, SqliteLocation
from pricekeeper.testing.serving import running_service

__all__ = ["demo_settings", "running_service"]

AGGREGATE_EVERY_SECS: Final = 300


def demo_settings(folder: Path) -> Settings:
    """With everything in that folder."""
    return Settings(
        store=SqliteLocation(str(folder / "demo.db")),
        data_dir=folder / "data",
        provisioning_key=secrets.token_hex(16),
        api_limits_per_minute=dict(API_LIMITS_PER_MINUTE),
        aggregator_interval_secs=AGGREGATE_EVERY_SECS,
        log_level="error",
        drain_secs=0,
    )
