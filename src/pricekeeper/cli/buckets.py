"""``limits repair``: what an operator does to token buckets after a clock has leapt."""

from __future__ import annotations

from typing import Annotated, Any

from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.command import Output, store_command
from pricekeeper.cli.drawing import Section
from pricekeeper.cli.listing import table
from pricekeeper.cli.opening import open_local_store
from pricekeeper.cli.options import option
from pricekeeper.cli.usage import limits
from pricekeeper.clock import SystemClock
from pricekeeper.settings import Settings

__all__ = ["limits"]

DryRun = Annotated[bool, option("--dry-run", "Only tell what would be changed.")]


@store_command(limits, "repair")
async def repair_buckets(settings: Settings, *, dry_run: DryRun = False) -> Output:
    """Bring token buckets that a leaping clock refilled in the future back to now.

    Do this where the clock is right. Services heal such buckets by themselves while they run; a
    repaired one is right for new instances, too. Balances stay, and debts become empty buckets. A
    store that has noted a later time forgets it; a service that doubts this clock is then started
    again.

    [dim]pricekeeper limits repair --dry-run[/dim]
    """
    from pricekeeper.limiter import Limiter  # noqa: PLC0415
    from pricekeeper.storage import forget_moments_ahead  # noqa: PLC0415
    from pricekeeper.tenants import Tenants  # noqa: PLC0415

    clients, buckets = 0, []
    async with open_local_store(settings) as store:
        clock = SystemClock()
        limiter = Limiter(store, clock=clock)
        async for policy in Tenants(store, clock, ()).read_all():
            clients += 1
            buckets += [
                {
                    "client_id": policy.client_id,
                    "resource": found.resource,
                    "ahead_secs": found.ahead_ms // 1000,
                }
                for found in await limiter.repair(policy.bucket_entity, dry_run=dry_run)
            ]
    now_ms = clock.now_ms()
    ahead = forget_moments_ahead(settings.store, now_ms=now_ms, dry_run=dry_run)
    answer = {"dry_run": dry_run, "clients": clients, "buckets": buckets, "store_ahead": ahead}
    return Output(answer, _picture(answer))


def _picture(answer: dict[str, Any]) -> RenderableType:
    buckets, lines = answer["buckets"], list[RenderableType]()
    if answer["store_ahead"]:
        what = "knows" if answer["dry_run"] else "has forgotten"
        lines.append(Text(f"the store {what} a time that is ahead of this clock", "bold"))
    if not buckets:
        heading = f"no bucket is ahead of this clock, of {answer['clients']} clients"
        return Section(Text(heading, "green"), *lines)
    rows = table("client", "model", "ahead (s)", numbers=["ahead (s)"], wraps=["client"])
    for one in buckets:
        rows.add_row(Text(one["client_id"]), Text(one["resource"]), f"{one['ahead_secs']:,}")
    what = "would be brought back" if answer["dry_run"] else "brought back to now"
    return Section(Text(f"{len(buckets)} {what}", "bold"), *lines, rows)
