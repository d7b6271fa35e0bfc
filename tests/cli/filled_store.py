"""A store with an item of every kind, made by a service, commands, and writes of rare items."""

import asyncio
import contextlib
import uuid
from datetime import UTC, datetime

import apsw

from cli.conftest import ORG, Cli, serving
from pricekeeper.activity.event import Group
from pricekeeper.activity.items import (
    DenialKey,
    FeedItem,
    denials_put,
    denied_put,
    feed_put,
    watch_put,
)
from pricekeeper.alerts.items import claim_update
from pricekeeper.authorizations.items import marker_put, unsettled_put
from pricekeeper.budgets import ACCOUNTS, Balance
from pricekeeper.budgets.items import file_update
from pricekeeper.client import Api
from pricekeeper.client.errors import DeniedError
from pricekeeper.client_ids import Client
from pricekeeper.clock import SystemClock
from pricekeeper.days import org_day
from pricekeeper.export.daily import ExportState
from pricekeeper.ledger.items import (
    first_chapter,
    head_key,
    outcomes_key,
    outcomes_update,
    sheet_put,
)
from pricekeeper.ledger.position import Chapter, Position
from pricekeeper.ledger.sheet import Sheet, sheet_attributes
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import account_update, lacking_update, total_key
from pricekeeper.metering.journal_items import Repair, repair_put
from pricekeeper.pricing import load_catalogue
from pricekeeper.pricing.items import StatedPrices, price_item
from pricekeeper.pricing.prices import PriceTable, RateCard
from pricekeeper.selection.items import override_key
from pricekeeper.storage import Item, Key, Put, Query, Set, Store, Update
from pricekeeper.storage import tables as t
from pricekeeper.storage.kept_rows import EXPORT_STATE
from pricekeeper.storage.sqlite.codec import unpack
from pricekeeper.tenants.recounts import Recount, recount_put
from pricekeeper.tokens.access_token import Principal
from pricekeeper.tokens.validation import revocation
from pricekeeper.values import AppId, OrgId
from stored_items import EPOCH, LATER

APP = "chat"
_ROWS = 'SELECT pk, sk, item FROM "{}"'
CHANNEL = ("--org", ORG, "--to", "https://hooks.example.com/x", "--secret", "0123456789abcdef")
SETTINGS = """
{"org_name": "Acme", "timezone": "UTC", "quota_scope": "APP",
 "model_ordering": ["premium", "standard", "economy"],
 "quotas": {"premium": 1000, "standard": 50000000, "economy": 500000},
 "tag_keys": ["team"], "session_limit": 2, "max_output_tokens_cap": 4096,
 "rate_limits": {"*": {"rpm": {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60000}}},
 "budgets": [{"name": "monthly", "window": "MONTH", "limit_usd_micros": 90000000}]}
"""
APP_SETTINGS = """
{"app_name": "Chat", "model_ordering": ["premium", "standard"], "session_limit": 2,
 "quotas": {"premium": 1000, "standard": 50000000}, "max_output_tokens_cap": 2048,
 "tight_mode_threshold_pct": 90, "refresh_interval_normal_secs": 200,
 "refresh_interval_tight_secs": 20,
 "rate_limits": {"*": {"rpm": {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60000}}},
 "budgets": [{"name": "team", "window": "DAY", "limit_usd_micros": 9000000, "per_tag": "team"},
             {"name": "daily", "window": "DAY", "limit_usd_micros": 9000000}]}
"""


def fill_store(cli: Cli) -> None:
    """Leave every kind of item in the commands' store."""
    for name, text in (("org.json", SETTINGS), ("app.json", APP_SETTINGS)):
        (cli.folder / name).write_text(text)
    with serving(cli):
        cli.claim(cli.ok("org", "put", ORG, "--file", "org.json"))
        client_id = cli.claim(cli.ok("app", "put", ORG, APP, "--file", "app.json"))
        for number in range(3):  # with a limit of two sessions
            cli.log_in(client_id, f"agent/{number}")
        cli.ok("alerts", "set", "ops", *CHANNEL)
        cli.ok("alerts", "set", "all", *CHANNEL[2:])
        made = cli.ok(
            "admin-keys", "create", "on-call", "--role", "OPERATOR", "--org", ORG, "--days", "9"
        )
        request_id = asyncio.run(_use(cli, client_id))
        cli.ok("usage", "void", ORG, request_id, "--reason", "a test")
        cli.ok("override", "set", ORG, "premium", APP)
        cli.ok("admin-keys", "whoami", "--key", made["key"])
        made = cli.ok("admin-keys", "rotate", made["key_id"])
        cli.ok("admin-keys", "whoami", "--key", made["key"])
        for who in ((ORG,), (ORG, APP)):
            cli.ok("freeze", *who, "--reason", "a test")
            cli.claim(cli.ok("credentials", "rotate", *who, "--grace-hours", "9"))
    cli.place = ()
    for who in ((ORG,), (ORG, APP)):
        cli.ok("credentials", "rotate", *who)
    cli.ok("credentials", "provisioning-key", ORG)
    cli.ok("aggregate")
    cli.on_store(_write_rare_items)


async def _use(cli: Cli, client_id: str) -> str:
    async with Api(cli.place[1], client_id, cli.secrets[client_id]) as api:
        tags = {"team": "red"}
        for request_id in (None, str(uuid.uuid4())):
            recorded = await api.record("premium", 900, 90, request_id=request_id, tags=tags)
        await api.select(force_check=True)
        held = [
            await api.authorize(900, 90, tags=tags, authorization_id=own)
            for own in (None, str(uuid.uuid4()), None)
        ]
        await api.capture(held[0].id, 800, 80)
        await api.void(held[1].id, reason="a test")
        leased = await api.acquire("premium", {"rpm": 1})
        await api.adjust(leased.lease_id, {"rpm": 1})
        await api.release(leased.lease_id)
        with contextlib.suppress(DeniedError):
            await api.authorize(9_000_000, 90)
    return str(recorded.request_id)


async def _write_rare_items(store: Store) -> None:
    """Items of rare moments, by the functions that write them."""
    now_ms = SystemClock().now_ms()
    app = Client(OrgId(ORG), AppId(APP))
    (item,) = (await store.query(Query(t.CONFIG, f"ORG#{ORG}", prefix="APP#"))).items
    accounts = f"{app.client_id}@{item['incarnation']}{ACCOUNTS}"
    head = await store.get(t.USAGE_AGG_SHARDED, head_key(ORG))
    assert head is not None
    day, region = org_day("UTC", now_ms), first_chapter(head).region
    denied = DenialKey(ORG, now_ms // 60_000, "0" * 12, "ab")
    group = Group(APP, "LIMITS", "premium", "RATE_LIMIT_EXCEEDED", 1, now_ms, now_ms, {})
    chapter = Chapter(region + "0", "0" * 13)
    seal = sheet_attributes(ORG, Sheet(b"nonce", now_ms, next=chapter))
    rates = RateCard(input=1, output=1)
    prices = PriceTable(default=rates, priority=rates, batch=rates)
    stated = StatedPrices(table=prices, source="test", fetched_at_epoch=EPOCH)
    today = datetime.now(UTC).date()
    token = Principal(app.org_id, app.app_id, app.client_id, frozenset(), "", "jti", EPOCH, LATER)
    queue = {"pending": 1, "due_ms": 0, "failures": 1, "oldest_ms": now_ms}
    lease = {"lease": "instance", "leased_until_ms": now_ms}
    for put in (
        repair_put(Repair(ORG, "20260101"), "nonce", LATER),
        feed_put(ORG, FeedItem(1, (), is_complete=True, written_at_ms=now_ms)),
        watch_put(ORG, 1, now_ms),
        marker_put(ORG, region, LATER),
        unsettled_put(ORG, region, LATER),
        denials_put(denied, group, LATER),
        denied_put(denied, LATER),
        revocation(token, now_ms // 1000),
        recount_put(Recount(app, now_ms)),
        sheet_put(ORG, Position(chapter, 9), seal, LATER),
        Put(t.PRICING_CACHE, price_item(next(iter(load_catalogue())), today, stated)),
        Put(t.ALERTS, {"PK": "OUTBOX", "SK": "DEPLOYMENT#all", **queue, **lease}),
    ):
        await store.put(put)
    account = Account(f"ORG#{ORG}#APP#{APP}", "premium", day)
    balances = {f"daily.D{day}": Balance(3, 2, 1)}
    comeback = {"quota_usd_micros": 1000, "is_back": True, "policy_epoch": EPOCH}
    for update in (
        claim_update("SECRETS", day),
        lacking_update(account, now_ms),
        account_update(ORG, account.partition, "has_adopted", LATER),
        Update(*total_key(account), (Set("adopted", b"[0,0,0,0,0,0,0]"),)),
        outcomes_update(outcomes_key(ORG, f"o{region}0"), {"0.0": "v0."}, chapter.name, LATER),
        file_update(Key(accounts, "ALL"), balances, 1, chapter.name, now_ms),
        file_update(Key(accounts, "TAG#team#red"), balances, 1, chapter.name, now_ms),
        Update(
            t.STICKY_STATE,
            override_key(app, day),
            (
                Set("comeback.premium", comeback),
                Set("comeback_version", 1),
                Set("history_comeback_1", b"\x90"),
            ),
        ),
        Update(*EXPORT_STATE, (Set("day", day), Set("kept_from_epoch", EPOCH))),
    ):
        await store.update(update)
    await ExportState(store).take_lease("instance", now_ms, 1000)


def all_items(cli: Cli) -> dict[str, list[Item]]:
    """Every item of each table."""
    connection = apsw.Connection(str(cli.folder / "demo.db"))
    try:
        return {
            table.name: [
                unpack(data, Key(pk, sk if table.sorted else None))
                | ({"PK": pk, "SK": sk} if table.sorted else {"PK": pk})
                for pk, sk, data in connection.execute(_ROWS.format(table.name))
            ]
            for table in t.ALL_TABLES
        }
    finally:
        connection.close()
