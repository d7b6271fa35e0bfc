"""The audit trail on the command line: listed anywhere, verified and exported on the store."""

import hashlib
import json
import os
from pathlib import Path

import apsw
import pytest

from cli.conftest import MISSING_ORG, ORG, Cli
from pricekeeper.cli import exits
from pricekeeper.cli.local import local_actor

CHAT = f"org-{ORG}-app-chat"
WHY = ("--reason", "found on GitHub")


def test_changes_are_listed_the_newest_first(anywhere: Cli) -> None:
    """Who, what, to whom, what differs and why; on a service it is the key that acted."""
    anywhere.register()
    anywhere.ok("app", "set", ORG, "chat", "--session-limit", "9")
    anywhere.ok("freeze", ORG, "chat", *WHY)
    listed = anywhere.ok("audit", "list", ORG)["entries"]
    assert [one["action"] for one in listed] == [
        *("freeze", "app.update", "credentials.claim"),
        *("credentials.claim", "app.create", "org.create"),
    ]
    frozen, changed = listed[:2]
    assert frozen["reason"] == "found on GitHub"
    assert (changed["target"], changed["after"]) == (CHAT, {"session_limit": 9})
    is_local = frozen["address"] == "local"
    assert frozen["actor"] == local_actor() if is_local else frozen["actor"].startswith("deploy")
    picture = " ".join(anywhere("audit", "list", ORG).out.split())
    assert "6 changes, the newest first" in picture
    assert "session_limit: 9" in picture
    assert "because: found on GitHub" in picture


def test_what_is_listed_can_be_chosen(anywhere: Cli) -> None:
    """By whom, what and when; page after page."""
    anywhere.register()
    found = anywhere.ok("audit", "list", ORG, "--action", "credentials")["entries"]
    assert [one["seq"] for one in found] == [4, 3]
    assert anywhere.ok("audit", "list", "--actor", "no-one")["entries"] == []
    assert anywhere.ok("audit", "list", "--to", "2020-01-01")["entries"] == []
    assert "no entries match" in anywhere("audit", "list", MISSING_ORG).out
    page = anywhere.ok("audit", "list", ORG, "--limit", "3")
    assert [one["seq"] for one in page["entries"]] == [4, 3, 2]
    rest = anywhere.ok("audit", "list", ORG, "--after", page["next"])
    assert [one["seq"] for one in rest["entries"]] == [1]
    assert "next" not in rest
    assert f"--after {page['next']}" in anywhere("audit", "list", ORG, "--limit", "3").out
    refused = anywhere("audit", "list", "--from", "yesterday")
    assert refused.code == exits.USAGE
    assert "from" in refused.err


def test_a_client_that_ends_sessions_for_another_on_the_store_is_known(cli: Cli) -> None:
    """On the store there is always an actor."""
    cli.register()
    cli.ok("sessions", "end", ORG, "chat", "--all")
    entry = cli.ok("audit", "list", ORG)["entries"][0]
    assert (entry["action"], entry["actor"]) == ("sessions.end_all", local_actor())


class TestVerifying:
    @pytest.fixture
    def exported(self, cli: Cli, tmp_path: Path) -> Path:
        """A store with four entries, and where they were exported to."""
        cli.register()
        file = tmp_path / "audit.jsonl"
        answer = cli.ok("audit", "export", "--to", str(file))
        assert answer == {"file": str(file), "entries": 4}
        return file

    def execute(self, cli: Cli, statement: str) -> None:
        """Write to the database directly."""
        (path,) = cli.folder.rglob("*.db")
        connection = apsw.Connection(str(path))
        connection.execute(statement)
        connection.close()

    def test_what_nobody_touched_is_as_it_was(self, cli: Cli, exported: Path) -> None:
        """Of one organisation or all, and against an export."""
        for words in ((), (ORG,), ("--against", str(exported))):
            answer = cli.ok("audit", "verify", *words)
            assert answer["findings"] == []
            (chain,) = answer["chains"]
            assert (chain["chain"], chain["entries"], chain["last_seq"]) == (f"ORG#{ORG}", 4, 4)
        last = exported.read_bytes().splitlines()[-1]
        assert chain["last_hash"] == hashlib.sha256(last).hexdigest()
        assert "4 entries in 1 chains are unchanged" in cli("audit", "verify").out

    def test_what_was_verified_is_named(self, cli: Cli, exported: Path) -> None:
        """The store, and how many lines of an export were held against it."""
        store = str(cli.folder / "demo.db")
        answer = cli.ok("audit", "verify")
        assert answer["store"] == store
        assert "against" not in answer
        assert store in " ".join(cli("audit", "verify").out.split())
        words = ("audit", "verify", "--against", str(exported))
        assert cli.ok(*words)["against"] == {"file": str(exported), "lines": 4}
        told = " ".join(cli(*words).out.split())
        assert f"and equal to the 4 lines of {exported}" in told

    @pytest.mark.parametrize("command", ["verify", "export"])
    def test_a_service_is_not_taken_for_the_store_that_nobody_named(
        self, cli: Cli, exported: Path, command: str
    ) -> None:
        """Where the environment names a service alone, another store would be read."""
        words = ("audit", command, *(("--to", str(exported)) if command == "export" else ()))
        store = os.environ["PRICEKEEPER_STORE"]
        cli.monkeypatch.setenv("PRICEKEEPER_URL", "https://keeper.example.com")
        assert cli(*words).code == exits.OK, "the environment names the store as well"
        cli.monkeypatch.delenv("PRICEKEEPER_STORE")
        refused = cli(*words)
        assert refused.code == exits.USAGE
        told = " ".join(refused.err.split())
        assert "$PRICEKEEPER_URL" in told
        assert "--store" in told
        assert cli(*words, "--store", store).code == exits.OK

    def test_what_was_removed_is_told_and_fails(self, cli: Cli, exported: Path) -> None:
        """With the number of the entry."""
        where = f"PK = 'CHAIN#ORG#{ORG}' AND SK = '{2:012}'"
        self.execute(cli, f'DELETE FROM "AuditTrail" WHERE {where}')  # noqa: S608
        for words in ((), ("--against", str(exported))):
            done = cli("audit", "verify", *words, "--json")
            assert done.code == exits.FAILED
            removed = "was removed, with all up to 2"
            finding = {"chain": f"ORG#{ORG}", "seq": 2, "problem": removed}
            assert finding in done.json["findings"]
        assert "was removed" in cli("audit", "verify").out

    @pytest.mark.usefixtures("exported")
    def test_chains_that_were_erased_are_told(self, cli: Cli) -> None:
        """The deployment's own too, and after a later change."""
        cli.ok("admin-keys", "create", "ops", "--role", "VIEWER")
        assert cli.ok("audit", "verify")["findings"] == []
        self.execute(cli, 'DELETE FROM "AuditTrail"')
        for words, chains in (((), ["DEPLOYMENT", f"ORG#{ORG}"]), ((ORG,), [f"ORG#{ORG}"])):
            done = cli("audit", "verify", *words, "--json")
            assert done.code == exits.FAILED
            assert done.json["findings"] == [
                {"chain": chain, "seq": 0, "problem": "all of the chain was removed, with its head"}
                for chain in chains
            ]
        cli.ok("freeze", ORG, *WHY)
        done = cli("audit", "verify", ORG, "--json")
        assert done.code == exits.FAILED
        assert "was begun 2 times" in done.json["findings"][0]["problem"]

    @pytest.mark.usefixtures("exported")
    def test_an_organisation_that_is_older_than_the_trail_is_a_note(self, cli: Cli) -> None:
        """It has no entry until its next change."""
        assert "orgs_without_entries" not in cli.ok("audit", "verify")
        self.execute(cli, 'DELETE FROM "AuditTrail"')
        self.execute(cli, "DELETE FROM \"Config\" WHERE PK = 'AUDIT_CHAINS'")
        for words in ((), (ORG,)):
            answer = cli.ok("audit", "verify", *words)
            assert (answer["findings"], answer["orgs_without_entries"]) == ([], [ORG])
        told = " ".join(cli("audit", "verify").out.split())
        assert "1 organisations have no entry" in told
        assert ORG in told
        cli.ok("freeze", ORG, *WHY)
        assert "orgs_without_entries" not in cli.ok("audit", "verify")
        self.execute(cli, 'DELETE FROM "AuditTrail"')
        assert cli("audit", "verify").code == exits.FAILED

    def test_an_export_is_for_its_owner_and_whole(self, cli: Cli, exported: Path) -> None:
        """Each line by itself is an entry; a second export takes its place at once."""
        assert exported.stat().st_mode & 0o077 == 0
        lines = exported.read_text("utf-8").splitlines()
        assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4]
        cli.ok("freeze", ORG, *WHY)
        assert cli.ok("audit", "export", ORG, "--to", str(exported))["entries"] == 5
        refused = cli("audit", "export", "--to", str(exported / "below"))
        assert refused.code == exits.USAGE
        assert "can't be written" in refused.err

    def test_a_file_that_is_no_export_is_refused(self, cli: Cli, exported: Path) -> None:
        """And named."""
        whole = exported.read_text("utf-8").splitlines(keepends=True)
        for text, told in (
            ("hello\n", "line 1"),
            ("", "is empty"),
            ("".join(whole[:1] + whole[2:]), "line 2"),
        ):
            exported.write_text(text)
            refused = cli("audit", "verify", "--against", str(exported))
            assert refused.code == exits.USAGE
            assert "audit export" in refused.err
            assert told in refused.err
