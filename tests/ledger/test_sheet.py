"""What a sheet says is what is read from its item."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.conftest import ORG
from pricekeeper.budgets import Balance
from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.position import begin_chapter
from pricekeeper.ledger.sheet import (
    FILED_BYTES_MAX,
    ItemChange,
    Sheet,
    filed_in_part,
    is_long,
    is_written_by,
    parse_filed,
    readable_sheet,
    sheet_attributes,
    sheet_from,
)
from pricekeeper.storage import Key

names = st.text(min_size=1, max_size=20)
picos = st.integers(-(2**62), 2**62)
balances = st.builds(Balance, picos, picos, picos)
keys = st.builds(Key, st.just(f"org-{ORG}").flatmap(lambda pk: names.map(pk.__add__)), names)
changes = st.builds(
    ItemChange,
    st.dictionaries(names, balances, max_size=4),
    st.lists(names, max_size=3).map(tuple),
    st.integers(0, 5),
)
ids = st.uuids().map(str)
sheets = st.builds(
    Sheet,
    st.binary(min_size=6, max_size=6),
    st.integers(0, 2**45),
    st.dictionaries(keys, changes, max_size=4),
    st.dictionaries(ids, names, max_size=4),
    st.dictionaries(ids, st.integers(0, 4095), max_size=4),
    st.none() | st.builds(begin_chapter, st.integers(0, 2**42), st.integers(0, 2**52 - 1)),
)


@given(sheets)
def test_a_sheet_is_read_as_it_was_written(sheet: Sheet) -> None:
    item = {"PK": "pk", "SK": "sk", **sheet_attributes(ORG, sheet)}
    assert sheet_from(ORG, item) == sheet
    assert is_written_by(item, sheet.nonce)
    assert not is_written_by(item, b"another")
    assert not is_written_by(None, sheet.nonce)


def test_an_account_of_another_organisation_is_refused() -> None:
    """Its key begins with another name, which the sheet leaves out."""
    change = ItemChange({"daily": Balance(1)})
    with pytest.raises(LookupError):
        sheet_attributes(ORG, Sheet(b"nonce", 0, {Key("org-another#BUDGETS", "ALL"): change}))


@pytest.mark.parametrize(
    "broken",
    [
        {"a": b"\xff"},
        {"a": msgspec.msgpack.encode([["pk"]])},
        {"o": msgspec.msgpack.encode({b"short": "c"})},
        {"i": msgspec.msgpack.encode({UUID(int=1).bytes: "one"})},
        {"next": "nowhere"},
        {"w": "yesterday"},
    ],
)
def test_what_is_no_sheet_is_reported(broken: dict[str, object]) -> None:
    """A reader takes it for an empty one."""
    item = {"PK": "pk", "SK": "sk", "z": b"nonce", "w": 1, **broken}
    with pytest.raises(UnreadableItemError):
        sheet_from(ORG, item)
    assert readable_sheet(ORG, item) == Sheet(b"", 0)


def test_a_long_outcome_is_filed_in_part_and_says_where_all_of_it_is() -> None:
    short, long = "v18f." + "x" * (FILED_BYTES_MAX - 5), "v18f." + "\N{SNOWMAN}" * 20
    assert [is_long(short), is_long(long)] == [False, True]
    assert parse_filed(short) == (short, "")
    part, place = parse_filed(filed_in_part(long, "s0166d93600008ff"))
    assert place == "s0166d93600008ff"
    assert long.startswith(part)
    assert part.startswith("v18f.")
