"""Services are opened in order and closed in reverse, also after errors."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from attribution import BY
from http_fixtures import ORG
from logins import log_in
from pricekeeper.bootstrap import Services, open_services
from pricekeeper.errors import (
    KeyringError,
    SettingsError,
    StoreClosedError,
    StoreError,
    StoreFormatError,
)
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.metering import Usage, org_day
from pricekeeper.metering.service import Metering
from pricekeeper.settings import Settings, SqliteLocation
from pricekeeper.storage import Put, Query
from pricekeeper.storage.format import FORMAT_KEY, FORMAT_VERSION
from pricekeeper.storage.tables import CONFIG, USAGE_AGG_SHARDED
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import parse_org_id

LIMITS = (Limit("requests", 100, 1, 86_400_000),)


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    """Settings of an instance that leaves nothing running behind, however it ends."""
    yield Settings(SqliteLocation(str(tmp_path / "store.db")), data_dir=tmp_path / "data")
    running = {task.get_name() for task in asyncio.all_tasks()}
    running |= {thread.name for thread in threading.enumerate()}
    running -= {"pricekeeper-drain", "pricekeeper-later"}  # a client's, of tests before these
    assert not [name for name in running if name.startswith("pricekeeper-")]
    assert names_in(tmp_path) <= {"store.db", "data"}  # no log of a database that is open still


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def an_org(services: Services) -> Policy:
    org_id = parse_org_id(str(uuid.uuid4()))
    return (
        await services.credentials.provision(Client(org_id), {**ORG, "quota_scope": "ORG"}, BY)
    ).policy


def a_record() -> Usage:
    return Usage(
        request_id=str(uuid.uuid4()), model_label="premium", input_tokens=1000, output_tokens=0
    )


async def test_a_store_of_another_format_is_refused_before_anything_is_written(
    settings: Settings,
) -> None:
    """A service that started would half-read it; two of this version may start at once."""
    async with open_services(settings) as services, open_services(settings):
        assert await services.store.get(CONFIG, FORMAT_KEY) is not None
        newer = {**FORMAT_KEY.attributes, "version": FORMAT_VERSION + 1}
        await services.store.put(Put(CONFIG, newer))
    with pytest.raises(StoreFormatError, match="install the version"):
        async with open_services(settings):
            pass


async def test_closing_commits_what_was_accepted_and_gives_back_what_was_fetched(
    settings: Settings,
) -> None:
    """Features close first, the store last."""
    async with open_services(settings) as services:
        policy = await an_org(services)
        accepted = asyncio.create_task(services.metering.record(policy, a_record()))
        request = services.limiter.prepare(
            "org-1", "premium", {"requests": 1}, limits=LIMITS, ahead=40
        )
        for _ in range(2):  # the second takes a block as well
            await request.take()
        left = await services.limiter.peek("org-1", "premium", limits=LIMITS)
        assert left["requests"].remaining < 60
        await asyncio.sleep(0)
    assert (await accepted).outcome == "accepted"
    async with open_services(settings) as services:
        left = await services.limiter.peek("org-1", "premium", limits=LIMITS)
        assert left["requests"].remaining == 98
        day = (await accepted).receipt.org_day
        totals = await services.metering.read_totals(policy.scope_key, ["premium"], day, live=True)
        assert [total.requests for total in totals.values()] == [1]


async def test_a_block_that_fails_closes_everything_all_the_same(settings: Settings) -> None:
    """And its error is the one that is raised."""
    opened: list[Services] = []

    async def fail() -> None:
        async with open_services(settings) as services:
            opened.append(services)
            await an_org(services)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(StoreClosedError):
        await opened[0].tenants.list_orgs()


@pytest.mark.parametrize("feature", [Limiter, Metering])
async def test_who_fails_to_close_keeps_nobody_else_from_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, feature: type[Limiter | Metering]
) -> None:
    """The store still closes its file, and the error is raised."""

    async def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(feature, "close", fail)
    with pytest.raises(ZeroDivisionError):
        async with open_services(settings) as services:
            await an_org(services)
    with pytest.raises(StoreClosedError):
        await services.tenants.list_orgs()


async def test_what_fails_after_the_store_was_opened_closes_it_again(settings: Settings) -> None:
    """Signing keys that can't be read: nothing is served, and nothing stays open."""
    settings.data_dir.mkdir(mode=0o700)
    keys = settings.data_dir / "signing-keys.json"
    keys.write_text("{}")
    keys.chmod(0o600)
    with pytest.raises(KeyringError):
        async with open_services(settings):
            pytest.fail("it was opened")


async def test_what_fails_before_the_store_is_opened_opens_none(
    settings: Settings, tmp_path: Path
) -> None:
    """An unreadable pepper is reported before a database is made."""
    settings.data_dir.mkdir(mode=0o700)
    (settings.data_dir / "pepper").write_text("nonsense")
    with pytest.raises(SettingsError):
        async with open_services(settings):
            pytest.fail("it was opened")
    assert names_in(tmp_path) == {"data"}


async def test_a_store_that_can_not_be_opened_is_told(tmp_path: Path) -> None:
    """As one of our own errors, which a command can tell in one line."""
    (tmp_path / "folder.db").mkdir()
    settings = Settings(SqliteLocation(str(tmp_path / "folder.db")), data_dir=tmp_path / "data")
    with pytest.raises(StoreError):
        async with open_services(settings):
            pytest.fail("it was opened")


async def test_two_instances_share_a_file_their_keys_and_their_pepper(settings: Settings) -> None:
    """A secret claimed at one opens a session at the other, whose token the first accepts."""
    async with open_services(settings) as one, open_services(settings) as other:
        org_id = parse_org_id(str(uuid.uuid4()))
        provisioned = await one.credentials.provision(Client(org_id), ORG, BY)
        assert provisioned.retrieval is not None
        claimed = await one.credentials.claim(provisioned.retrieval.token.reveal(), BY)
        grant = await log_in(other.identity, claimed.client_id, claimed.client_secret.reveal())
        assert (await one.identity.validate(grant.access_token)).client_id == claimed.client_id


async def test_usage_is_kept_for_as_long_as_the_settings_say(settings: Settings) -> None:
    """By metering and by the aggregator."""
    kept = replace(settings, retention_days=400)
    async with open_services(kept) as services:
        policy = await an_org(services)
        await services.metering.record(policy, a_record())
        assert (await services.aggregator.run_once()).written
        tick = await services.store.query(Query(USAGE_AGG_SHARDED, "TICKS"))
        day = org_day(policy.timezone, services.clock.now_ms())
        (spent,) = (await services.store.query(Query(USAGE_AGG_SHARDED, f"SPENT#{day}"))).items
        for item in (*tick.items, spent):
            left_secs = item["expires_at_epoch"] - services.clock.now_ms() // 1000
            assert 400 * 86_400 < left_secs < 403 * 86_400, item


async def test_the_aggregators_interval_is_the_settings_before_the_files(
    settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path.parent / f"{tmp_path.name}.yaml"
    example = Path(__file__).parents[2] / "config.example.yaml"
    file.write_text(example.read_text("utf-8").replace("interval_secs: 60", "interval_secs: 20"))
    for given, config_path, interval_secs in ((None, None, 60), (None, file, 20), (0, file, 0)):
        changed = replace(settings, aggregator_interval_secs=given, config_path=config_path)
        async with open_services(changed) as services:
            assert services.aggregator_interval_secs == interval_secs
