"""``aggregate``, ``migrate``, ``adopt``, ``tables``, ``limits repair`` and ``spool``."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Where
from pricekeeper.cli.command import Output, bare_command, store_command
from pricekeeper.cli.drawing import Facts, Section, done, usd
from pricekeeper.cli.opening import is_missing_file, open_local_store
from pricekeeper.cli.options import argument, option
from pricekeeper.cli.tables import Column, listing, number
from pricekeeper.cli.terminal import harmless_json
from pricekeeper.cli.usage import limits
from pricekeeper.clock import SystemClock
from pricekeeper.errors import InvalidValueError, StoreMisconfiguredError
from pricekeeper.settings import Settings, parse_store_location
from pricekeeper.values import parse_app_id, parse_org_id

if TYPE_CHECKING:
    from pricekeeper.storage import Store


tables = typer.Typer(no_args_is_help=True, help="The store's tables.")
top = typer.Typer()
EXISTS = ("exists", "green")
MISSING = ("missing", "red")


@store_command(top, "aggregate")
async def aggregate(settings: Settings) -> Output:
    """Bring all totals up to date once, for cron where no service does it.

    It also decides alerts, which running services deliver, and charges expired authorizations of
    dead services at what they hold.

    [dim]* * * * * pricekeeper aggregate --json >> aggregate.log[/dim]
    """
    from pricekeeper.alerts import make_look  # noqa: PLC0415
    from pricekeeper.cli.aggregator_lambda import aggregate_and_sweep  # noqa: PLC0415
    from pricekeeper.pricing import load_catalogue  # noqa: PLC0415

    catalogue = load_catalogue(settings.config_path)
    async with open_local_store(settings) as store:
        clock = SystemClock()
        look, days = make_look(store, clock, catalogue), settings.retention_days
        report = await aggregate_and_sweep(store, clock, retention_days=days, look=look)
    heading = Text("aggregated", "bold green")
    if report.unreadable:
        heading = Text(f"{report.unreadable} accounts can't be read; the others are done", "yellow")
    if report.unswept:
        heading = Text("some expired authorizations were not charged; run it again", "yellow")
    if report.failed:
        heading = Text(f"{report.failed} totals could not be updated; run it again", "bold red")
    lag = "unknown: the first run" if report.lag_ms is None else f"{report.lag_ms / 1000:.1f} s"
    about: dict[str, str | Text] = {
        "accounts": str(report.accounts),
        "totals written": str(report.written),
        "lag": lag,
        "authorizations expired": str(report.expired),
        **{f"error {n}": Text(text, "red") for n, text in enumerate(report.errors, 1)},
    }
    incomplete = report.failed or report.unreadable or report.unswept
    code = exits.FAILED if incomplete else exits.OK
    return Output(report, Section(heading, Facts(about)), code)


@store_command(top, "migrate")
async def migrate(settings: Settings) -> Output:
    """Migrate the store to the format of this version. So far there is only one format.

    [dim]pricekeeper migrate[/dim]
    """
    from pricekeeper.storage.format import FORMAT_VERSION  # noqa: PLC0415

    async with open_local_store(settings):
        pass  # opening checks the format
    said = f"nothing to do: the store has format {FORMAT_VERSION}, that of this version"
    return Output({"format": FORMAT_VERSION, "migrated": False}, done(said))


@store_command(top, "adopt")
async def adopt(
    settings: Settings,
    orgs: Annotated[list[str], argument("ORG...", "The organisations' ids.")],
    *,
    source: Annotated[str, option("--from URL", "The other service's store; it is only read.")],
    apps: Annotated[
        list[str] | None,
        option("--app APP", "An app that has usage and no settings of its own; may be repeated."),
    ] = None,
) -> Output:
    """Take over organisations from another service with the schema document's tables.

    Copies usage, fallbacks and overrides of today, settings and credentials. Safe to repeat: it
    never counts usage twice. Run it once while the other service is running, and again after it
    has stopped.

    [dim]pricekeeper adopt $ORG --from "dynamodb://eu-central-1?prefix=old-"[/dim]
    """
    from pricekeeper.adoption import Adopter  # noqa: PLC0415
    from pricekeeper.pricing import load_catalogue, split_micros  # noqa: PLC0415

    other = replace(settings, store=parse_store_location(source))
    if other.store == settings.store:
        raise InvalidValueError("--from", "is this store; give ours another file or table prefix")
    wanted = [parse_org_id(org) for org in orgs]
    more_apps = [parse_app_id(app) for app in apps or ()]
    labels = load_catalogue(settings.config_path).labels
    async with (
        open_local_store(settings) as store,
        open_local_store(other, any_format=True) as theirs,
    ):
        adopter = Adopter(
            theirs, store, SystemClock(), retention_days=settings.retention_days, labels=labels
        )
        adoptions = [await adopter.adopt(org_id, more_apps) for org_id in wanted]
    sections = [
        Section(
            Text(f"adopted {one.org_id}", "bold green"),
            Facts(
                {
                    "organisation and apps added": f"{one.clients_added} of {one.apps + 1}",
                    "daily totals changed": f"{one.accounts_changed} of {one.accounts}",
                    "cost adopted in all": usd(split_micros(one.cost_usd_picos)[0]),
                    "fallbacks and overrides added": str(one.sticky_added),
                }
            ),
        )
        for one in adoptions
    ]
    next_step = Text("next: stop the other service, run this again, then: pricekeeper serve", "dim")
    return Output({"adopted": adoptions}, Section(Text("adoption"), *sections, next_step))


@store_command(tables, "create")
async def create_tables(settings: Settings) -> Output:
    """Create missing tables, and wait until they can be used.

    On DynamoDB it also turns on the removal of expired items, in existing tables too.

    [dim]pricekeeper tables create --store "dynamodb://eu-central-1?prefix=prod-"[/dim]
    """
    from pricekeeper.storage import enable_expiry  # noqa: PLC0415

    async with open_local_store(settings, may_create=True, any_format=True) as store:
        await store.create_tables()
        await enable_expiry(settings.store, clock=SystemClock())
        found = await find_tables(store)
    return Output({"tables": found}, done("all tables exist", "next: pricekeeper serve"))


@store_command(tables, "status")
async def show_tables(settings: Settings) -> Output:
    """Show which tables exist. Exit 1 if one is missing. Nothing is created.

    [dim]pricekeeper tables status[/dim]
    """
    from pricekeeper.storage.tables import ALL_TABLES  # noqa: PLC0415

    if is_missing_file(settings):
        found = {one.name: False for one in ALL_TABLES}
    else:
        async with open_local_store(settings, any_format=True) as store:
            found = await find_tables(store)
    rows = listing(
        found,
        Column("table", str),
        Column("", lambda name: Text(*(EXISTS if found[name] else MISSING))),
    )
    complete = all(found.values())
    parts = [rows] if complete else [rows, Text("create them: pricekeeper tables create", "dim")]
    code = exits.OK if complete else exits.FAILED
    return Output({"tables": found}, Section(Text("tables", "bold"), *parts), code)


@store_command(tables, "show")
async def show_items(
    settings: Settings,
    table: Annotated[str, argument("TABLE", "The table, such as DailyTotal.")],
    *,
    limit: Annotated[int, option("--limit N", "Items of each kind.", min=1, max=100)] = 1,
    key: Annotated[
        str | None, option("--pk PK", "The item with this key, or items of this partition.")
    ] = None,
    sort: Annotated[str | None, option("--sk SK", "With --pk: the item's sort key.")] = None,
) -> Output:
    """Show real items of a table as JSON: one of each kind, with secrets hidden.

    It reads known partitions, never a whole table. Items that no other item names, such as revoked
    tokens, need --pk. docs/schema.md explains each table.

    [dim]pricekeeper tables show DailyTotal --limit 3[/dim]
    """
    from pricekeeper.cli.readable_items import readable_item  # noqa: PLC0415
    from pricekeeper.cli.table_items import TableItems  # noqa: PLC0415
    from pricekeeper.pricing import load_catalogue  # noqa: PLC0415
    from pricekeeper.storage.tables import ALL_TABLES  # noqa: PLC0415

    named = {one.name.lower(): one for one in ALL_TABLES}.get(table.lower())
    if named is None:
        known = ", ".join(one.name for one in ALL_TABLES)
        raise InvalidValueError("TABLE", f"must be one of {known}")
    if sort is not None and (key is None or not named.sorted):
        raise InvalidValueError("--sk", "needs --pk, and a table with sort keys")
    model_ids = tuple(one.bedrock_model_id for one in load_catalogue(settings.config_path))
    now_ms = SystemClock().now_ms()
    async with open_local_store(settings, any_format=True) as store:
        items = TableItems(store, limit=limit, now_ms=now_ms, model_ids=model_ids)
        found = await (items.find(named) if key is None else items.read_key(named, key, sort))
    shown = [readable_item(named, item) for item in found]
    text = msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
    picture = Text(harmless_json(text))
    if not shown:
        picture = Text("no other item names one; show an item by its key with --pk PK", "dim")
    return Output({"table": named.name, "items": shown}, picture)


async def find_tables(store: Store) -> dict[str, bool]:
    """Find out which tables exist, by reading each."""
    from pricekeeper.storage import Key  # noqa: PLC0415
    from pricekeeper.storage.tables import ALL_TABLES  # noqa: PLC0415

    found = {}
    for one in ALL_TABLES:
        try:
            await store.get(one, Key("status", "status" if one.sorted else None))
        except StoreMisconfiguredError as error:
            if not _is_missing_table(error):
                raise
            found[one.name] = False
        else:
            found[one.name] = True
    return found


def _is_missing_table(error: StoreMisconfiguredError) -> bool:
    text = str(error).lower()
    return "no such table" in text or "resourcenotfound" in text


DryRun = Annotated[bool, option("--dry-run", "Show what would change; change nothing.")]


@store_command(limits, "repair")
async def repair_buckets(settings: Settings, *, dry_run: DryRun = False) -> Output:
    """Reset token buckets whose last refill is in the future, after a clock jumped.

    Run it where the clock is right, then restart services whose clock is in doubt. Balances are
    kept, and debts become empty buckets. The store also forgets times ahead of this clock.

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
    return Output(answer, _repair_picture(answer))


def _repair_picture(answer: dict[str, Any]) -> RenderableType:
    buckets, lines = answer["buckets"], list[RenderableType]()
    if answer["store_ahead"]:
        what = "has" if answer["dry_run"] else "forgot"
        lines.append(Text(f"the store {what} a time ahead of this clock", "bold"))
    if not buckets:
        heading = f"no bucket of {answer['clients']} clients is ahead of this clock"
        return Section(Text(heading, "green"), *lines)
    rows = listing(
        buckets,
        Column("client", "client_id", wraps=True),
        Column("model", "resource"),
        number("ahead (s)", "ahead_secs"),
    )
    what = "would be reset to now" if answer["dry_run"] else "reset to now"
    return Section(Text(f"{len(buckets)} {what}", "bold"), *lines, rows)


spool = typer.Typer(no_args_is_help=True, help="Usage that an app has not reported yet.")


@bare_command(spool, "show")
async def show_spool(_: Where) -> Output:
    """Show usage that waits to be reported, and usage that the service has rejected.

    $PRICEKEEPER_URL, $PRICEKEEPER_CLIENT_ID and $PRICEKEEPER_CLIENT_SECRET name the app,
    $PRICEKEEPER_SPOOL_DIR its folder if it is not the default.

    [dim]pricekeeper spool show[/dim]
    """
    from pricekeeper.client import spool_command  # noqa: PLC0415
    from pricekeeper.client.configuration import KeeperSettings  # noqa: PLC0415

    answer = spool_command.look(KeeperSettings.read({}), SystemClock())
    return Output(answer, Text("\n".join(spool_command.picture_of_look(answer))))


@bare_command(spool, "flush")
async def flush_spool(_: Where) -> Output:
    """Report the usage that ended apps have left. Exit 1 if some remains.

    Files of running apps are left to them.

    [dim]pricekeeper spool flush[/dim]
    """
    from pricekeeper.client import spool_command  # noqa: PLC0415
    from pricekeeper.client.configuration import KeeperSettings  # noqa: PLC0415

    given = KeeperSettings.read({})
    answer = await asyncio.to_thread(spool_command.tell_now, given, SystemClock())
    picture = Text("\n".join(spool_command.picture_of_telling(answer)))
    return Output(answer, picture, spool_command.code_of_telling(answer))
