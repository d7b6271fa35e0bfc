"""``limits repair``: buckets that a leaping clock refilled in the future come back to now."""

import asyncio
import os
import uuid

import apsw
import pytest

from cli.conftest import ORG, ORG_FLAGS, Cli
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.settings import read_settings
from pricekeeper.storage import open_store
from pricekeeper.storage.sqlite.moments import Moments, write_moments
from pricekeeper.tenants import Client, Tenants
from pricekeeper.values import AppId, OrgId

RPM = Limit.per_hour("rpm", 60)
DAY_SECS = 86_400
ORG_CLIENT = Client(OrgId(ORG))
APP_CLIENT = Client(OrgId(ORG), AppId("chat"))


@pytest.fixture(params=["sqlite", "dynamodb"])
def registered(request: pytest.FixtureRequest, cli: Cli) -> Cli:
    """An organisation with an app, on a store of each kind."""
    if request.param == "dynamodb":
        endpoint: str = request.getfixturevalue("dynoxide")
        prefix = f"cli-{uuid.uuid4().hex[:8]}-"
        url = f"dynamodb://us-east-1?prefix={prefix}&endpoint={endpoint}"
        cli.monkeypatch.setenv("PRICEKEEPER_STORE", url)
    cli.ok("org", "put", ORG, *ORG_FLAGS)
    cli.ok("app", "put", ORG, "chat", "--name", "Chat")
    return cli


def drain(client: Client, resource: str, *, ahead_secs: int = 0) -> int:
    """Take all that there is by a clock that is ahead; how many tokens that was."""

    async def spree() -> int:
        clock = SystemClock()
        store = await open_store(read_settings(os.environ).store, clock=clock)
        entity = (await Tenants(store, clock, ()).read_registered_policy(client)).bucket_entity
        leapt = ManualClock(clock.now_ms() + ahead_secs * 1_000)
        limiter = Limiter(store, clock=leapt, limits=[RPM])
        taken = 0
        while (await limiter.try_acquire(entity, resource, {"rpm": 10})).granted:
            taken += 10
        await store.close()
        return taken

    return asyncio.run(spree())


def test_buckets_of_every_client_are_brought_back(registered: Cli) -> None:
    """Those that are ahead, each named, with how far; the others are left alone."""
    drain(APP_CLIENT, "premium", ahead_secs=DAY_SECS)
    drain(ORG_CLIENT, "economy", ahead_secs=DAY_SECS)
    drain(APP_CLIENT, "standard")
    told = registered.ok("limits", "repair", "--dry-run")
    assert (told["dry_run"], told["clients"]) == (True, 2)
    assert [(one["client_id"], one["resource"]) for one in told["buckets"]] == [
        (f"org-{ORG}", "economy"),
        (f"org-{ORG}-app-chat", "premium"),
    ]
    assert all(DAY_SECS - 60 < one["ahead_secs"] <= DAY_SECS for one in told["buckets"])

    assert len(registered.ok("limits", "repair")["buckets"]) == 2
    assert registered.ok("limits", "repair")["buckets"] == []
    assert drain(APP_CLIENT, "premium", ahead_secs=1_800) == 30  # half an hour refills half


def test_people_are_told_what_was_repaired(registered: Cli) -> None:
    """And that there is nothing to repair, if so."""
    assert "no bucket of 2 clients is ahead" in registered("limits", "repair").out
    drain(APP_CLIENT, "premium", ahead_secs=DAY_SECS)
    would = registered("limits", "repair", "--dry-run").out
    assert "would be reset to now" in would
    assert f"org-{ORG}-app-chat" in would
    assert "premium" in would
    done = registered("limits", "repair").out
    assert "reset to now" in done
    assert f"org-{ORG}-app-chat" in done


def test_a_store_that_is_ahead_forgets_it(cli: Cli) -> None:
    """Else services would doubt a clock that was set right; `doctor` names the command."""
    cli.ok("org", "put", ORG, *ORG_FLAGS)
    connection = apsw.Connection(str(cli.folder / "demo.db"))
    write_moments(connection, Moments(SystemClock().now_ms() + 400 * DAY_SECS * 1_000))
    connection.close()
    refused = cli("credentials", "rotate", ORG)
    assert refused.code == 5
    assert "CLOCK_IN_DOUBT" in refused.err
    assert "the store has a time ahead" in cli("limits", "repair", "--dry-run").out
    assert cli.ok("limits", "repair")["store_ahead"]
    assert not cli.ok("limits", "repair")["store_ahead"]
    assert cli("credentials", "rotate", ORG).code == 0
