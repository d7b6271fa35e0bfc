"""``spend``, ``usage list``, ``ledger rebuild`` and ``check``: on the store, and a service."""

import csv
import io
import json
import re

import pytest

from cli.conftest import MISSING_ORG, ORG, ORG_FLAGS, Cli
from pricekeeper.authorizations import AuthorizationRequest
from pricekeeper.bootstrap import Services
from pricekeeper.metering import Usage, org_day
from pricekeeper.storage import Add, Key, Set, Update
from pricekeeper.storage.tables import DAILY_TOTAL, RATE_BUCKETS
from pricekeeper.tenants import Client
from pricekeeper.values import AppId, OrgId

IDS = [f"7c9e6679-7425-40de-944b-e07fc1f90a{number:02x}" for number in range(3)]


@pytest.fixture
def spent(anywhere: Cli) -> str:
    """Three records of today, in the totals; the value is the day."""
    anywhere.register()
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--tag-keys", "team, feature")

    async def record(services: Services) -> str:
        policy = await services.tenants.find_policy(OrgId(ORG), AppId("chat"))
        for number, request_id in enumerate(IDS):
            usage = Usage(
                request_id=request_id,
                model_label="economy" if number == 2 else "premium",
                input_tokens=1000,
                output_tokens=500,
                tags={"team": ["red", "=2+2", "red"][number]},
            )
            await services.metering.record(policy, usage)
        await services.aggregator.run_once()
        return org_day(policy.timezone, services.clock.now_ms())

    day: str = anywhere.on_services(record)
    return f"{day[:4]}-{day[4:6]}-{day[6:]}"


def test_tag_keys_are_set_and_shown(anywhere: Cli) -> None:
    """By name; nothing takes them away."""
    answer = anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--tag-keys", "team, feature")
    assert answer["configuration"]["tag_keys"] == ["team", "feature"]
    assert "team, feature" in anywhere("org", "get", ORG).out
    answer = anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--tag-keys", "")
    assert answer["configuration"]["tag_keys"] == []
    assert anywhere("org", "put", ORG, *ORG_FLAGS, "--tag-keys", "a#b").code == 2


def test_spend_by_whatever_is_asked_for(anywhere: Cli, spent: str) -> None:
    """The same answer everywhere, and a table with the sum under it."""
    whole = anywhere.ok("spend", "--from", spent)
    assert [row["org"] for row in whole["rows"]] == [ORG]
    assert whole["total"]["requests"] == 3
    teams = anywhere.ok("spend", "--from", spent, "--to", spent, "--group-by", "tag:team,label")
    assert [(row["tag:team"], row["label"], row["requests"]) for row in teams["rows"]] == [
        ("=2+2", "premium", 1),
        ("red", "economy", 1),
        ("red", "premium", 1),
    ]
    shown = anywhere("spend", "--from", spent, "--group-by", "tag:team").out
    assert "in all" in shown
    assert "as of" in shown
    assert anywhere.ok("spend", "--from", spent, "--group-by", "")["rows"] == [whole["total"]]


def test_spend_as_csv(anywhere: Cli, spent: str) -> None:
    """The same rows, and no formula."""
    words = ("spend", "--from", spent, "--group-by", "tag:team")
    done = anywhere(*words, "--csv")
    assert done.code == 0
    names, *rows = csv.reader(io.StringIO(done.out))
    assert names[:2] == ["tag:team", "cost_usd_micros"]
    answer = anywhere.ok(*words)
    assert [row[1:] for row in rows] == [
        [str(value) for value in list(row.values())[1:]] for row in answer["rows"]
    ]
    assert [row[0] for row in rows] == ["'=2+2", "red"]


@pytest.mark.usefixtures("spent")
def test_single_records(anywhere: Cli) -> None:
    """The newest first, of an organisation or one app; and what fits."""
    everything = anywhere.ok("usage", "list", ORG)["records"]
    assert {record["request_id"] for record in everything} == set(IDS)
    assert anywhere.ok("usage", "list", ORG, "chat")["records"] == everything
    assert anywhere.ok("usage", "list", ORG, "other")["records"] == []
    red = anywhere.ok("usage", "list", ORG, "--tag", "team:red", "--label", "economy")["records"]
    assert [record["request_id"] for record in red] == [IDS[2]]
    assert IDS[0] in anywhere("usage", "list", ORG).out
    assert "no records" in anywhere("usage", "list", ORG, "--tag", "team:none").out
    assert anywhere.ok("usage", "list", ORG, "--tag", "nothing:")["records"] == everything
    refused = anywhere("usage", "list", ORG, "--tag", "team")
    assert (refused.code, "KEY:VALUE" in refused.err) == (2, True)


@pytest.mark.usefixtures("spent")
def test_a_voided_record_says_so(anywhere: Cli) -> None:
    """And so does its correction; the others say nothing of the kind."""
    assert "voided" not in anywhere("usage", "list", ORG).out
    done = anywhere.ok("usage", "void", ORG, IDS[0], "--reason", "a test")
    by_id = {one["request_id"]: one for one in anywhere.ok("usage", "list", ORG)["records"]}
    assert by_id[IDS[0]]["correction_id"] == done["correction_id"]
    assert by_id[done["correction_id"]]["voids"] == IDS[0]
    blocks = re.split(r"\n\s*\n", anywhere("usage", "list", ORG).out)
    found = {one: next(block for block in blocks if one in block) for one in by_id}
    words = {one: ("voided" in block, "correction" in block) for one, block in found.items()}
    assert words.pop(IDS[0]) == (True, False)
    assert words.pop(done["correction_id"]) == (False, True)
    assert set(words.values()) == {(False, False)}


def test_what_cannot_be_asked(anywhere: Cli, spent: str) -> None:
    """The field is named, and nothing is printed as an answer."""
    for words, field in (
        (("spend", "--from", "yesterday"), "from"),
        (("spend", "--from", spent, "--group-by", "colour"), "group_by"),
        (("usage", "list", ORG, "--after", "x"), "after"),
    ):
        done = anywhere(*words)
        assert (done.code, done.out) == (2, ""), done
        assert field in done.err
    assert anywhere("usage", "list", MISSING_ORG).code == 3


def test_a_day_is_made_anew(cli: Cli) -> None:
    """A lost total is restored, and the change is shown."""
    cli.register()

    async def record(services: Services) -> tuple[str, int]:
        policy = await services.tenants.find_policy(OrgId(ORG), AppId("chat"))
        usage = Usage(
            request_id=IDS[0], model_label="premium", input_tokens=1000, output_tokens=500
        )
        await services.metering.record(policy, usage)
        await services.aggregator.run_once()
        day = org_day(policy.timezone, services.clock.now_ms())
        key = Key(f"ORG#{ORG}#APP#chat#LABEL#premium", f"DAY#{day}")
        stored = await services.store.get(DAILY_TOTAL, key)
        assert stored is not None
        nothing = (Set("requests", 0), Set("cost_usd_picos", 0))
        await services.store.update(Update(DAILY_TOTAL, key, nothing))
        return day, stored["cost_usd_micros"]

    day, cost = cli.on_services(record)
    assert cli.ok("ledger", "rebuild", "--day", day, "--org", MISSING_ORG)["changes"] == []
    report = cli.ok("ledger", "rebuild", "--day", day)
    assert (report["day"], report["organisations"], report["failed"]) == (day, 1, 0)
    (change,) = report["changes"]
    assert (change["org_id"], change["total"]) == (ORG, f"DAY#{day}")
    assert (change["requests_before"], change["requests"]) == (0, 1)
    assert (change["cost_usd_micros_before"], change["cost_usd_micros"]) == (0, cost)
    assert cli.ok("ledger", "rebuild", "--day", day)["changes"] == []
    assert (
        "all totals are right; nothing changed"
        in cli("ledger", "rebuild", "--day", day, "--org", ORG).out
    )
    assert cli("ledger", "rebuild", "--day", "20261301").code == 2


def test_budgets_are_held_against_the_journal(cli: Cli) -> None:
    """What differs is named, is no success, and is set right if that is wanted."""
    cli.register()

    cli.ok("org", "put", ORG, *ORG_FLAGS, "--strict")

    async def authorize(services: Services) -> int:
        policy = await services.tenants.find_policy(OrgId(ORG), AppId("chat"))
        request = AuthorizationRequest(input_tokens=10, max_output_tokens=10)
        granted = await services.authorizations.authorize(policy, request)
        (held,) = [one for one in granted.authorization.grant.terms.accounts if "premium" in one.id]
        await services.store.update(Update(RATE_BUCKETS, held.key, (Add(f"u:{held.id}", 7),)))
        return granted.authorization.grant.held_usd_picos

    held = cli.on_services(authorize)
    done = cli("ledger", "check", "--json")
    assert done.code == 1
    accounts = {one["name"]: one for one in json.loads(done.out)["accounts"]}
    premium = accounts["quota-premium"]
    assert (premium["agrees"], premium["mended"]) == (False, False)
    assert premium["enforced_usd_picos"] == {"used": held + 7, "held": held, "unsettled": 0}
    assert premium["right_usd_picos"] == {"used": held, "held": held, "unsettled": 0}
    assert "differ" in cli("ledger", "check", "--org", ORG).out
    assert cli("ledger", "check", "--mend").code == 0
    assert all(one["agrees"] for one in cli.ok("ledger", "check")["accounts"])
    assert cli("ledger", "check", "--org", MISSING_ORG).code == 3


def test_an_organisation_that_can_not_be_read_is_named_and_others_are_checked(cli: Cli) -> None:
    """It fails, even if the others agree."""
    cli.register()
    for org in (ORG, MISSING_ORG):
        cli.ok("org", "put", org, *ORG_FLAGS, "--strict")

    async def damage(services: Services) -> None:
        request = AuthorizationRequest(input_tokens=10, max_output_tokens=10)
        for org, app in ((MISSING_ORG, None), (ORG, AppId("chat"))):
            policy = await services.tenants.read_policy(Client(OrgId(org), app))
            granted = await services.authorizations.authorize(policy, request)
        held = granted.authorization.grant.terms.accounts[0]
        await services.store.update(Update(RATE_BUCKETS, held.key, (Set(f"u:{held.id}", "x"),)))

    cli.on_services(damage)
    done = cli("ledger", "check", "--json")
    assert done.code == 1
    answer = json.loads(done.out)
    assert [one["org_id"] for one in answer["unreadable"]] == [ORG]
    assert {one["org_id"] for one in answer["accounts"]} == {MISSING_ORG}
    assert f"{ORG} can't be checked" in cli("ledger", "check").out
