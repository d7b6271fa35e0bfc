"""The journal's arithmetic: where a record is, how it is stored, and how much fits."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minting import minted
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.journal import (
    FULL_WEIGHT,
    ID_DIGITS,
    PAGE_DIGITS,
    WRITE_WEIGHT_MAX,
    JournalEntry,
    Terms,
    address_of,
    encode_entry,
    encode_terms,
    flags_of,
    is_full,
    lanes_of,
    name_on_sheet,
    record_on,
    records_on,
    request_id_of,
    weight_of,
)
from pricekeeper.metering.journal_items import Written, page_update
from pricekeeper.storage import Key
from pricekeeper.storage.values import ITEM_BYTES_MAX, item_bytes
from pricekeeper.tags import TAG_BYTES_MAX, TAGS_MAX
from pricekeeper.ticks import TICK_MS, region_at, tick_of

MOMENTS = st.integers(min_value=0, max_value=(1 << 48) - 1)
NOW_MS = 1_768_000_000_000
PLAIN = Terms("ORG#1#APP#web", "web", "premium", "20260110", "default", "v1", "config")


def an_entry(**changes: Any) -> JournalEntry:
    fields = {
        "fingerprint": b"f" * 16,
        "nonce": b"n" * 6,
        "sent_at_ms": NOW_MS,
        "lag_ms": 12,
        "terms": encode_terms(PLAIN).ref,
        "flags": 0,
        "cost_usd_picos": 10**19,
        "input_tokens": 10**9,
        "output_tokens": 1,
        **changes,
    }
    return JournalEntry(**fields)


@given(MOMENTS, st.randoms(use_true_random=False))
def test_the_page_and_the_name_are_the_id(epoch_ms: int, random: Any) -> None:
    """Nothing of an id is lost, and nothing else is needed to find its record."""
    request_id = minted(epoch_ms, random)
    address = address_of(request_id)
    assert address is not None
    assert len(address.digits) == ID_DIGITS
    assert address.minted_ms == epoch_ms
    for depth in range(PAGE_DIGITS, ID_DIGITS + 1):
        assert request_id_of(address.digits[:depth], address.name) == request_id
    assert address.region == region_at(epoch_ms)
    assert int(address.region, 16) == tick_of(epoch_ms)


@given(MOMENTS, st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_two_ids_are_never_one_record(epoch_ms: int, one: Any, two: Any) -> None:
    """On a page they have two names."""
    first, second = minted(epoch_ms, one), minted(epoch_ms, two)
    names = {address.name for address in map(address_of, (first, second)) if address}
    assert len(names) == len({first, second})


@given(st.uuids())
def test_an_id_of_another_version_has_no_address(anything: uuid.UUID) -> None:
    """Also one that has a 7 in the right place, and is of another variant."""
    is_timed = anything.version == 7 and anything.variant == uuid.RFC_4122
    assert (address_of(str(anything)) is not None) == is_timed
    other = str(anything)[:14] + "7" + str(anything)[15:19] + "c" + str(anything)[20:]
    assert address_of(other) is None


@pytest.mark.parametrize(("shards", "lanes"), [(1, 1), (8, 1), (15, 1), (16, 2), (64, 8)])
def test_pages_take_turns_in_the_lanes(shards: int, lanes: int) -> None:
    """All lanes of a region have as many pages."""
    assert lanes_of(shards) == lanes
    used = [0] * lanes
    for page in range(16):
        address = address_of(minted((NOW_MS & ~(TICK_MS - 1)) + page * 16))
        assert address is not None
        used[address.lane(lanes)] += 1
    assert used == [16 // lanes] * lanes


def test_no_name_of_a_record_is_another_attributes() -> None:
    """Only names of records have their length."""
    address = address_of(minted(NOW_MS))
    assert address is not None
    terms = encode_terms(PLAIN).name
    lengths = {len(name) for name in ("PK", "SK", "n", "expires_at_epoch", terms)}
    assert {len(address.name), len(name_on_sheet(98))}.isdisjoint(lengths)


@given(
    st.builds(
        JournalEntry,
        st.binary(min_size=16, max_size=16),
        st.binary(min_size=6, max_size=13),
        MOMENTS,
        st.integers(min_value=-300_000, max_value=90_000_000),
        st.just(encode_terms(PLAIN).ref),
        st.integers(min_value=0, max_value=3),
        *[st.integers(min_value=0, max_value=10**19)] * 6,
    )
)
def test_what_is_written_is_read(entry: JournalEntry) -> None:
    """Every field of a record, and the terms that it names."""
    terms, name = encode_terms(PLAIN), name_on_sheet(0)
    page = {
        "PK": "ORG#1#J#019b0000#3",
        "SK": "019b0000000",
        name: encode_entry(entry),
        terms.name: terms.data,
    }
    found = record_on(page, name)
    assert found is not None
    assert (found.entry, found.terms) == (entry, PLAIN)
    assert list(records_on(page)) == [found]
    receipt = found.receipt
    assert receipt.shard_id == 3
    assert receipt.accepted_at_ms == entry.sent_at_ms
    assert receipt.cost_usd_picos == entry.cost_usd_picos
    assert receipt.cache_write_1h_tokens == entry.cache_write_1h_tokens
    assert entry.counters.errors == entry.flags & flags_of(is_error=True, is_estimated=False)


def test_terms_have_the_same_name_everywhere_and_others_another() -> None:
    """The name is made of what they say."""
    again = Terms("ORG#1#APP#web", "web", "premium", "20260110", "default", "v1", "config")
    other = Terms("ORG#1#APP#web", "web", "premium", "20260111", "default", "v1", "config")
    assert encode_terms(PLAIN) == encode_terms(again)
    assert encode_terms(PLAIN).name != encode_terms(other).name


@pytest.mark.parametrize(
    "damage",
    [
        {name_on_sheet(1): b"no record"},
        {name_on_sheet(1): "text"},
        {name_on_sheet(1): encode_entry(an_entry(terms=b"elsewhere"))},
        {"n": "many"},
    ],
)
def test_what_is_no_record_is_never_nothing(damage: dict[str, Any]) -> None:
    """The page is unreadable, even if its other records are fine."""
    terms = encode_terms(PLAIN)
    good = {name_on_sheet(0): encode_entry(an_entry()), terms.name: terms.data}
    page = {"PK": "ORG#1#J#019b0000#3", "SK": "019b0000000", **good, **damage}
    with pytest.raises(UnreadableItemError):
        list(records_on(page))


def test_no_page_comes_near_the_largest_item() -> None:
    """Each record with 8 KiB of tags of its own, and a page that is as good as full before."""
    key = Key("ORG#1#J#019b0000#0", "019b0000000")
    page: dict[str, Any] = {"PK": key.pk, "SK": key.sk}
    random_tag = "v" * TAG_BYTES_MAX
    number = 0
    writes = 0
    while not is_full(page):
        records: list[Written] = []
        # As much as one write may have, with the heaviest terms that there are.
        while sum(weight_of(record.terms) for record in records) <= WRITE_WEIGHT_MAX:
            number += 1
            tags = tuple(
                (f"{number:06}{n:02}".ljust(TAG_BYTES_MAX, "k"), random_tag)
                for n in range(TAGS_MAX)
            )
            terms = encode_terms(Terms(*PLAIN_FIELDS, None, tags))
            data = encode_entry(an_entry(terms=terms.ref))
            records.append(Written(f"{number:014}", data, terms))
        page = page_update(key, records[:-1], 1).apply(page)
        writes += 1
    assert page["n"] < FULL_WEIGHT + WRITE_WEIGHT_MAX
    assert item_bytes(page) < ITEM_BYTES_MAX / 3


PLAIN_FIELDS = ("ORG#1#APP#web", "web", "premium", "20260110", "default", "v1", "config")


def test_a_page_of_plain_records_is_one_write_unit_at_first() -> None:
    """A record alone is well under 1 KB; a page that is full of them is under 20."""
    terms = encode_terms(PLAIN)
    written = [Written(f"{n:014}", encode_entry(an_entry()), terms) for n in range(163)]
    key = Key("ORG#550e8400-e29b-41d4-a716-446655440000#J#019b0000#0", "019b0000000")
    assert item_bytes(page_update(key, written[:1], 1).apply(None)) < 512
    assert item_bytes(page_update(key, written, 1).apply(None)) < 20 * 1024
