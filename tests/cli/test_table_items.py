"""`tables show`: real items without secrets; and docs/schema.md, which lists their attributes."""

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.conftest import ORG, Cli
from cli.filled_store import all_items, fill_store
from pricekeeper.storage import Item, Table
from pricekeeper.storage.tables import ALL_TABLES, SESSIONS, USAGE_AGG_SHARDED

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"
MEANINGS = {
    "scope": "ORG#[^#]+(?:#APP#[^#]+)?",
    "owner": "DEPLOYMENT|ORG#[^#]+",
    "entity": "org-[^#]+|api/.+",
    "account": ".+",
    "chain": ".+",
    "digits": "[0-9a-f]{11,}",
    "record": r"[\w-]{14}",
    "terms": r"[\w-]{12,}",
    "number": "[0-9]+",
    "place": "[0-9.a-f-]+",
}
"""What a placeholder of the page means; any other is text without a ``#``."""


class Row(NamedTuple):
    """A kind of item on the page."""

    table: str
    keys: tuple[tuple[str, str], ...]
    attributes: tuple[str, ...]

    def is_of(self, item: Item) -> bool:
        return any(
            pattern(pk).fullmatch(item["PK"]) and pattern(sk).fullmatch(item.get("SK", ""))
            for pk, sk in self.keys
        )


def pattern(text: str) -> "re.Pattern[str]":
    parts = re.split(r"\{(\w+)\}", text)
    return re.compile(
        "".join(
            f"(?:{MEANINGS.get(part, '[^#]+')})" if at % 2 else re.escape(part)
            for at, part in enumerate(parts)
        )
    )


def rows_of_page() -> Iterator[Row]:
    """The rows of its tables of items: keys, then attributes, in backticks."""
    sections = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
    for table, text in sections.findall(PAGE.read_text()):
        for cells in re.findall(r"^\| (`.+?) \| (.*?) \|", text, re.MULTILINE):
            first, *others = re.findall("`([^`]+)`", cells[0])
            keys = tuple((first, sk) for sk in others) or ((first, ""),)
            yield Row(table, keys, tuple(re.findall("`([^`]+)`", cells[1])))


def own_attributes(table: Table, item: Item) -> set[str]:
    return set(item) - {"PK", "SK"} - ({"expires_at_epoch"} if table.expires else set())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("filled") / "store"


@pytest.fixture
def filled(cli: Cli, kept: Path) -> Cli:
    """A store with an item of every kind; the first test makes it for all."""
    if not kept.exists():
        fill_store(cli)
        shutil.copytree(cli.folder, kept)
    shutil.copytree(kept, cli.folder, dirs_exist_ok=True)
    return cli


def show(cli: Cli, table: Table, *words: str) -> list[Item]:
    answer = cli.ok("tables", "show", table.name, *words)
    assert answer["table"] == table.name
    return list(answer["items"])


def test_the_page_has_every_key_and_attribute_and_no_other(filled: Cli) -> None:
    """In both directions, in a store with an item of every kind."""
    rows, items = list(rows_of_page()), all_items(filled)
    assert {row.table for row in rows} == {table.name for table in ALL_TABLES}
    keys = {(row.table, key) for row in rows for key in row.keys}
    names = {(row.table, key, one) for row in rows for key in row.keys for one in row.attributes}
    strange: list[object] = []
    for table in ALL_TABLES:
        for item in items[table.name]:
            found = [row for row in rows if row.table == table.name and row.is_of(item)]
            if len(found) != 1:
                strange.append((table.name, item["PK"], item.get("SK"), len(found)))
                continue
            (row,) = found
            keys -= {(row.table, key) for key in row.keys if Row("", (key,), ()).is_of(item)}
            for name in own_attributes(table, item):
                known = [one for one in row.attributes if pattern(one).fullmatch(name)]
                names -= {(row.table, key, one) for key in row.keys for one in known}
                if not known:
                    strange.append((table.name, item["PK"], item.get("SK"), name))
    assert (strange, keys, names) == ([], set(), set())


def test_the_items_on_the_page_are_of_their_tables() -> None:
    rows, tables = list(rows_of_page()), {table.name: table for table in ALL_TABLES}
    example = re.compile(r"^### (\w+)\n(?:(?!^#).*\n)*?```json\n(.+)\n```", re.MULTILINE)
    examples = example.findall(PAGE.read_text())
    assert len(examples) >= 7
    for name, text in examples:
        item = json.loads(text)
        (row,) = [row for row in rows if row.table == name and row.is_of(item)]
        for attribute in own_attributes(tables[name], item):
            assert any(pattern(one).fullmatch(attribute) for one in row.attributes), attribute


ONLY_BY_KEY = {"jti", "LEASE", "BLOCK", "REQ"}
"""Kinds of items that no other item names; of request ids, those without a record are."""


def test_one_item_of_each_kind_is_shown_and_the_rest_by_its_key(filled: Cli) -> None:
    items = all_items(filled)
    for table in ALL_TABLES:
        shown = show(filled, table)
        for row in (row for row in rows_of_page() if row.table == table.name):
            if any(row.is_of(item) for item in shown) or table.name == "SecretRetrievalTokens":
                continue
            (item, *_) = [item for item in items[table.name] if row.is_of(item)]
            assert any(word in str(row.keys) for word in ONLY_BY_KEY), row
            sort = ("--sk", item["SK"]) if table.sorted else ()
            (found,) = show(filled, table, "--pk", item["PK"], *sort)
            assert found.keys() == item.keys()
    assert len(show(filled, SESSIONS, "--limit", "2")) == 2
    assert len(show(filled, SESSIONS)) == 1


def hidden_in(value: Any, name: str = "") -> Iterator[str]:
    """Every hash of a secret and every sealed address in an item."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from hidden_in(one, key)
    elif isinstance(value, str) and value:
        if name.endswith("_hash") or name in {"sealed", "secret_retrieval_key"}:
            yield value
        yield from re.findall("(?:BLOCK#refresh#|api/key/)(.+)", value)


def test_no_secret_and_no_hash_of_one_is_shown(filled: Cli) -> None:
    """By any way: the known places, each key, and the picture."""
    items = all_items(filled)
    hidden = {text for some in items.values() for item in some for text in hidden_in(item)}
    hidden |= {item["PK"] for item in items["SecretRetrievalTokens"]} | set(filled.secrets.values())
    assert len(hidden) > 12
    for table in ALL_TABLES:
        told = json.dumps(show(filled, table, "--limit", "100"))
        told += filled("tables", "show", table.name).out
        for pk in {item["PK"] for item in items[table.name]}:
            told += json.dumps(show(filled, table, "--pk", pk, "--limit", "100"))
        assert [text for text in hidden if text in told] == []
    assert "(hidden)" in filled("tables", "show", "config").out


def test_records_of_the_journal_are_shown_by_their_fields(filled: Cli) -> None:
    shown = show(filled, USAGE_AGG_SHARDED, "--limit", "50")
    fields = [one for item in shown for one in item.values() if isinstance(one, dict)]
    assert {900, 90} <= {one.get("input_tokens", one.get("output_tokens")) for one in fields} | {90}
    assert any(one.get("label") == "premium" for one in fields)
    assert any("grant" in one for one in fields)


@pytest.mark.parametrize("words", [("Nothing",), ("Config", "--sk", "ORG")])
def test_what_can_not_be_shown_is_refused(filled: Cli, words: tuple[str, ...]) -> None:
    done = filled("tables", "show", *words)
    assert (done.code, done.out) == (2, "")


def test_the_same_on_dynamodb(cli: Cli, dynoxide: str) -> None:
    """With the reads of the port, which has no scan."""
    prefix = f"show-{uuid.uuid4().hex[:8]}-"
    url = f"dynamodb://us-east-1?prefix={prefix}&endpoint={dynoxide}"
    cli.monkeypatch.setenv("PRICEKEEPER_STORE", url)
    cli.monkeypatch.setenv("PRICEKEEPER_PEPPER", cli.ok("keys", "new-pepper")["pepper"])
    cli.ok("tables", "create")
    cli.register()
    cli.authorize("chat", input_tokens=9, max_output_tokens=9)
    cli.ok("aggregate")
    shown = {table.name: show(cli, table) for table in ALL_TABLES}
    assert {item["SK"] for item in shown["Config"]} >= {"ORG", "APP#chat", ORG, "FORMAT"}
    assert any("#J#" in item["PK"] for item in shown["UsageAggSharded"])
    assert shown["RateBuckets"]
    assert shown["RevokedTokens"] == []
    assert "hmac" not in json.dumps(shown)
