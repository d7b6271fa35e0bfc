"""What is done on the store itself: tables, totals, prices, keys, and no traces."""

import os
import stat
import uuid
from pathlib import Path

import pytest

import stored_items as written
from authorizations.conftest import HELD_USD_PICOS, Instance, a_budget
from cli.conftest import ORG, ORG_FLAGS, Cli, drop_a_table
from metering.conftest import a_policy
from pricekeeper.authorizations import LedgerCheck, State
from pricekeeper.authorizations.reading import AuthorizationReader, Regions
from pricekeeper.budgets import Balance
from pricekeeper.cli import exits
from pricekeeper.cli.opening import store_name
from pricekeeper.clock import SystemClock
from pricekeeper.ledger import Ledger
from pricekeeper.metering import WindowSpend
from pricekeeper.settings import read_settings
from pricekeeper.storage import Delete, Store
from pricekeeper.storage.format import FORMAT_KEY, FORMAT_VERSION
from pricekeeper.storage.tables import ALL_TABLES, CONFIG
from selection.conftest import SettableClock
from stored_items import on_store, write_items

NAMES = {table.name for table in ALL_TABLES}
_DATA = Path(__file__).parents[1] / "pricing" / "data"
OFFERS = f"aws:us-east-1:{_DATA / 'AmazonBedrockFoundationModels.json'}"
"""Prices of some of the built-in models."""


@pytest.fixture(params=["sqlite", "dynamodb"])
def store(request: pytest.FixtureRequest, cli: Cli) -> Cli:
    """Commands on an empty store of each kind."""
    if request.param == "dynamodb":
        endpoint: str = request.getfixturevalue("dynamodb_local")
        prefix = f"cli-{uuid.uuid4().hex[:8]}-"
        url = f"dynamodb://us-east-1?prefix={prefix}&endpoint={endpoint}"
        cli.monkeypatch.setenv("PRICEKEEPER_STORE", url)
    return cli


def test_everybodys_spend_is_shown_on_each_store(store: Cli) -> None:
    """With names, and quotas by label; the same commands on DynamoDB."""
    store.ok("org", "put", ORG, *ORG_FLAGS)
    store.ok("app", "put", ORG, "chat", "--name", "Chat")
    answer = store.ok("usage", "show", "--all")
    (org,) = answer["orgs"]
    assert (org["org_name"], org["apps"][0]["app_name"]) == ("Acme", "Chat")
    assert org["apps"][0]["models"]["premium"]["quota_usd_micros"] == 50_000_000
    assert store.ok("aggregate")["failed"] == 0
    assert "totals written" in store("aggregate").out


def test_tables_are_missing_then_created(store: Cli) -> None:
    """Status creates nothing, and says so with its exit code."""
    missing = store("tables", "status", "--json")
    assert (missing.code, missing.json["tables"]) == (1, dict.fromkeys(NAMES, False))
    assert store.ok("tables", "create")["tables"] == dict.fromkeys(NAMES, True)
    assert store.ok("tables", "status")["tables"] == dict.fromkeys(NAMES, True)
    assert store.ok("tables", "create")["tables"] == dict.fromkeys(NAMES, True)


def test_one_missing_table_is_named(cli: Cli) -> None:
    """Which one, and that the others are there."""
    cli.ok("tables", "create")
    drop_a_table(cli.folder / "demo.db")
    done = cli("tables", "status", "--json")
    assert (done.code, done.json["tables"]) == (
        1,
        {**dict.fromkeys(NAMES, True), "Sessions": False},
    )


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite://:memory:", ":memory:"),
        ("dynamodb://eu-west-1?prefix=pk-", "DynamoDB in eu-west-1, tables pk-*"),
    ],
)
def test_a_store_has_a_name_for_people(url: str, name: str) -> None:
    assert store_name(read_settings({"PRICEKEEPER_STORE": url})) == name


def test_an_organisation_of_another_service_is_adopted(cli: Cli) -> None:
    """Its settings and spend, once, and the answer says what to do next."""
    cli.ok("tables", "create")
    theirs = f"sqlite:///{cli.folder}/theirs.db"
    scope = f"ORG#{ORG}#APP#web"
    on_store(theirs, lambda store: store.create_tables())
    write_items(
        theirs,
        written.org_config(ORG),
        written.app_config(ORG, "api"),
        written.daily_total(scope, "premium", written.today()),
    )
    (first,) = cli.ok("adopt", ORG, "--from", theirs, "--app", "web")["adopted"]
    assert (first["apps"], first["clients_added"], first["accounts_changed"]) == (2, 2, 1)
    again = cli("adopt", ORG, "--from", theirs, "--app", "web")
    assert "0 of 1" in again.out
    assert "next: stop the other service" in again.out
    assert cli.ok("org", "get", ORG)["org_name"] == "sample_corp"
    ours = f"sqlite:///{cli.folder}/demo.db"
    refused = cli("adopt", ORG, "--from", ours)
    assert (refused.code, "another file or table prefix" in refused.err) == (2, True)


def test_a_store_that_is_not_there_is_not_made_by_looking(cli: Cli) -> None:
    """A misspelt path is reported, and leaves no empty database."""
    for words in (
        ("org", "list"), ("usage", "show", ORG), ("aggregate",), ("prices", "show"),
        ("tables", "status"), ("doctor",),
    ):  # fmt: skip
        assert cli(*words).code == 1, words
    assert list(cli.folder.iterdir()) == []


def test_the_first_organisation_starts_everything(cli: Cli) -> None:
    """As a first start of the service would: store, keys and pepper, readable by us alone."""
    cli.register()
    files = [cli.folder / "demo.db", *(cli.folder / "data").glob("[!.]*")]
    assert {file.name for file in files} >= {"demo.db", "pepper", "signing-keys.json"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_no_keys_are_made_beside_a_store_that_has_some_elsewhere(cli: Cli) -> None:
    """A second pepper would make secrets that never work."""
    cli.register()
    token = cli.ok("credentials", "rotate", ORG)["secret_retrieval"]["token"]
    elsewhere = cli.folder / "elsewhere"
    cli.monkeypatch.setenv("PRICEKEEPER_DATA_DIR", str(elsewhere))

    assert cli.ok("org", "get", ORG)["org_id"] == ORG
    assert cli.ok("credentials", "rotate", ORG, "chat")["secret_retrieval"]
    done = cli("credentials", "claim", token)
    assert done.code == 2
    assert "PRICEKEEPER_DATA_DIR" in done.err
    assert not elsewhere.exists()


def test_aggregate_charges_what_a_service_that_is_gone_has_left(store: Cli) -> None:
    """It reads as unsettled from its expiry on; `aggregate` moves its hold in the budget."""
    store.ok("tables", "create")
    location = os.environ["PRICEKEEPER_STORE"]
    midday_in = f"Etc/GMT{SystemClock().now_ms() // 3_600_000 % 24 - 12:+d}"  # no midnight is near
    policy = a_policy(budgets=(a_budget(),), timezone=midday_in)

    async def leave(opened: Store) -> None:
        instance = Instance(opened, SettableClock(SystemClock().now_ms() - 600_000))
        await instance.authorize(policy, hold_secs=10)
        await instance.close()

    async def look(opened: Store) -> tuple[list[Balance], list[State]]:
        findings = await LedgerCheck(opened, SystemClock()).check([policy])
        ledger = Ledger(opened, SystemClock(), WindowSpend(opened, SystemClock()).read_spend)
        reader = AuthorizationReader(opened, ledger)
        regions = Regions(opened, SystemClock(), reader)
        states = [one.state async for one in regions.read_unfinished(policy.org_id, set(State))]
        assert all(one.agrees for one in findings)
        return [one.enforced for one in findings], states

    on_store(location, leave)
    assert on_store(location, look) == (
        [Balance(HELD_USD_PICOS, HELD_USD_PICOS)],
        [State.UNSETTLED],
    )
    assert store.ok("aggregate")["expired"] == 1
    assert on_store(location, look) == (
        [Balance(HELD_USD_PICOS, 0, HELD_USD_PICOS)],
        [State.UNSETTLED],
    )
    assert store.ok("aggregate")["expired"] == 0


def test_a_new_store_has_nothing_to_migrate(store: Cli) -> None:
    """On tables that are empty, and on a store in use."""
    store.ok("tables", "create")
    for _ in range(2):
        assert store.ok("migrate") == {"format": FORMAT_VERSION, "migrated": False}
        store.ok("org", "put", ORG, *ORG_FLAGS)


@pytest.mark.parametrize(
    "words",
    [
        ("aggregate",),
        ("org", "list"),
        ("usage", "show", "--all"),
        ("audit", "verify"),
        ("ledger", "check"),
        ("limits", "repair"),
        ("prices", "refresh", "--source", OFFERS),
        ("migrate",),
    ],
    ids=" ".join,
)
def test_a_store_of_another_format_is_refused(store: Cli, words: tuple[str, ...]) -> None:
    """By every kind of command, with what to do next; nothing is half-read."""
    store.ok("tables", "create")
    store.ok("org", "put", ORG, *ORG_FLAGS)
    format_item = FORMAT_KEY.attributes
    write_items(os.environ["PRICEKEEPER_STORE"], (CONFIG, {**format_item, "version": 2}))
    refused = store(*words)
    assert refused.code == exits.FAILED
    assert "format 2" in refused.err
    assert "install the version" in " ".join(refused.err.split())
    assert "tables create" not in refused.err
    on_store(os.environ["PRICEKEEPER_STORE"], lambda one: one.delete(Delete(CONFIG, FORMAT_KEY)))
    refused = store(*words)
    assert refused.code == exits.FAILED
    assert "no format version" in " ".join(refused.err.split())


def test_prices_in_force(cli: Cli) -> None:
    """Exact, in the contract's names, with their source; shown without rounding."""
    cli.register()
    models = {model["label"]: model for model in cli.ok("prices", "show")["models"]}
    assert models["premium"]["input_price_usd_micros_per_1m"] == 4_400_000
    assert models["premium"]["source"] == "config"
    assert "$0.1375" in cli("prices", "show").out


def test_prices_are_refreshed_from_a_source(cli: Cli) -> None:
    """What the source says is in force afterwards; a second time nothing changes."""
    cli.register()
    first = cli.ok("prices", "refresh", "--source", OFFERS)
    assert {update["label"] for update in first["updated"]} == {"premium", "economy"}
    second = cli.ok("prices", "refresh", "--source", OFFERS)
    assert second["unchanged"] == ["premium", "economy"]
    sources = [model["source"] for model in cli.ok("prices", "show")["models"]]
    assert sources[0].startswith("pricing-cache:aws-price-list-us-east-1")
    assert sources[1] == "config"


@pytest.mark.parametrize("words", ["refresh", "check"])
def test_what_a_source_without_regions_leaves_alone_is_told(cli: Cli, words: str) -> None:
    """One line for each model, with the reason, and what the source has instead."""
    pytest.importorskip("genai_prices", reason="the extra 'prices' is not installed")
    cli.register()
    file = config_with_input_price(cli.folder, 4_500_000)

    answer = cli.ok("prices", words, "--source", "genai-prices", "--config", file)
    done = cli("prices", words, "--source", "genai-prices", "--config", file)

    assert [one["label"] for one in answer["left_alone"]] == ["premium", "standard", "economy"]
    assert answer["left_alone"][0]["differing"] == [
        {"price": "default.input", "old": 4_500_000, "new": 4_400_000}
    ]
    shown = " ".join(done.out.split())
    reason = "left alone: us. is billed at the rate of the region that is called, and genai-prices"
    assert f"premium: {reason} does not know regions" in shown
    assert "default.input $4.50 (source: $4.40)" in shown
    assert f"economy: {reason}" in shown
    assert done.code == 0


def config_with_input_price(folder: Path, micros: int) -> str:
    from pricekeeper.pricing import deployment  # noqa: PLC0415

    built_in = Path(deployment.__file__).with_name(deployment.BUILT_IN).read_text("utf-8")
    file = folder / "models.yaml"
    changed = built_in.replace(
        "input_price_usd_micros_per_1m: 4_400_000", f"input_price_usd_micros_per_1m: {micros}", 1
    )
    file.write_text(changed, encoding="utf-8")
    return str(file)


def test_a_file_that_differs_from_the_source_is_told(cli: Cli) -> None:
    """Exit code 1, as diff has it; agreement is 0."""
    assert cli("prices", "check", "--source", "genai-prices").code == 0
    file = config_with_input_price(cli.folder, 4_500_000)
    done = cli("prices", "check", "--source", OFFERS, "--config", file)
    assert done.code == 1
    assert "$4.50" in done.out


def test_a_price_that_is_not_believed_waits_for_a_person(cli: Cli) -> None:
    """Exit code 1 and the command that accepts it, which then works."""
    cli.ok("tables", "create")
    file = config_with_input_price(cli.folder, 44_000_000)
    words = ("prices", "refresh", "--source", OFFERS, "--config", file)
    done = cli(*words)
    assert done.code == 1
    assert "--accept premium" in done.out
    assert cli(*words, "--accept", "gold").code == 2
    assert cli(*words, "--accept", "premium").code == 0


def test_a_price_source_has_to_be_named(cli: Cli) -> None:
    """By option or setting; neither is a mistake that says which."""
    cli.ok("tables", "create")
    done = cli("prices", "refresh")
    assert done.code == 2
    assert "PRICEKEEPER_PRICE_SOURCE" in done.err


def test_a_key_is_added_and_signs_later(cli: Cli) -> None:
    """Both are kept, so sessions continue; with --drop-old only the new one is."""
    assert cli("keys", "rotate").code == 1
    cli.register()
    assert cli.ok("keys", "rotate")["keys"] == 2
    dropped = cli.ok("keys", "rotate", "--drop-old")
    assert (dropped["keys"], dropped["dropped_old"]) == (1, True)


def test_a_folder_that_a_command_makes_is_its_owners(cli: Cli) -> None:
    """In any order; the doctor has no complaint."""
    cli.monkeypatch.setenv("PRICEKEEPER_STORE", f"sqlite:///{cli.folder}/data/store.db")
    cli.ok("tables", "create")
    assert stat.S_IMODE((cli.folder / "data").stat().st_mode) == 0o700
    checks = cli("doctor", "--json").json["checks"]
    assert [one["level"] for one in checks if one["name"] == "data folder"] == ["OK"]


def test_a_misspelt_setting_is_told_by_every_command(cli: Cli) -> None:
    """On stderr, so that the answer is the answer; the doctor has it among its checks."""
    cli.register()
    cli.monkeypatch.setenv("PRICEKEEPER_STROE", "sqlite:///elsewhere.db")
    done = cli("org", "list", "--json")
    assert [one["org_id"] for one in done.json] == [ORG]
    told = "PRICEKEEPER_STROE is not a setting and has no effect; do you mean PRICEKEEPER_STORE?"
    assert done.err == f"WARNING {told}\n"
    doctor = cli("doctor", "--json")
    assert doctor.err == ""
    warned = [one for one in doctor.json["checks"] if one["level"] == "WARN"]
    (check,) = (one for one in warned if one["name"] == "settings")
    assert check["told"] == told
