"""``pricekeeper demo``: a company's day in 22 seconds, through the real service."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer
from rich.console import Console

from pricekeeper.cli import exits
from pricekeeper.cli.backends import quiet_logs
from pricekeeper.cli.command import print_json
from pricekeeper.cli.demo.clock import FastClock
from pricekeeper.cli.demo.company import Company
from pricekeeper.cli.demo.traffic import (
    AFTER_MIDNIGHT_MS,
    PERSONAS,
    ZONE,
    DemoLedger,
    Planned,
    plan_day,
    quotas,
)
from pricekeeper.cli.demo.view import AppState, Board, Result, going_on, shown, summary
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.terminal import make_console
from pricekeeper.clock import SystemClock
from pricekeeper.metering import day_start_ms, next_midnight_ms, org_day
from pricekeeper.pricing import load_catalogue
from pricekeeper.settings import API_LIMITS_PER_MINUTE, Settings, SqliteLocation
from pricekeeper.testing.serving import running_service

__all__ = ["demo_settings", "demonstrate"]

AGGREGATE_EVERY_SECS: Final = 300


def demonstrate(*, secs: int, calls: int, seed: int, keep: str | None, as_json: bool) -> None:
    """Simulate the day, show it, and check its sums."""
    quiet_logs()
    org_id = str(uuid.uuid4())
    console = make_console()
    with _folder(keep) as folder:
        day = _live(folder, org_id, secs, plan_day(calls, seed), None if as_json else console)
        result = asyncio.run(day)
    store = None if keep is None else f"sqlite:///{Path(keep).resolve()}/demo.db"
    if as_json:
        print_json({"org_id": org_id, "timezone": ZONE, **result.answer()})
    else:
        console.print(summary(result), going_on(store, org_id), soft_wrap=True)
    if not result.is_good:
        raise typer.Exit(exits.FAILED)


async def _live(
    folder: Path, org_id: str, secs: int, planned: list[Planned], console: Console | None
) -> Result:
    today = org_day(ZONE, SystemClock().now_ms())
    starts_at_ms = day_start_ms(ZONE, today)
    ends_at_ms = next_midnight_ms(ZONE, starts_at_ms)
    clock, settings, catalogue = FastClock(starts_at_ms), demo_settings(folder), load_catalogue()
    apps = {one.app_id: AppState(one.app_id, quotas(one, planned, catalogue)) for one in PERSONAS}
    board, ledger = Board(starts_at_ms, ends_at_ms, apps), DemoLedger(catalogue)
    with running_service(settings, clock) as url:
        async with Company(url, org_id, clock, board, ledger) as company:
            await company.set_up(settings.provisioning_key or "", planned)
            clock.run((ends_at_ms - starts_at_ms + AFTER_MIDNIGHT_MS) // (secs * 1000))
            async with shown(console, board, clock):
                await company.live_through(planned)
                differences = await company.audit()
            return Result(board, ledger, differences, company.renewals)


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="pricekeeper-demo-") as temporary:
            yield Path(temporary)
        return
    folder = Path(keep)
    if folder.exists() and any(folder.iterdir()):
        raise MisusedError(f"--keep {keep}: the folder is not empty; name a new one")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def demo_settings(folder: Path) -> Settings:
    """A small company's service, with all files in this folder."""
    return Settings(
        store=SqliteLocation(str(folder / "demo.db")),
        data_dir=folder / "data",
        provisioning_key=secrets.token_hex(16),
        api_limits_per_minute=dict(API_LIMITS_PER_MINUTE),
        aggregator_interval_secs=AGGREGATE_EVERY_SECS,
        log_level="error",
        drain_secs=0,
    )
