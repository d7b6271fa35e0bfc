"""Entries: what changed, within bounds, and a hash that depends on all of it."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution import BY
from pricekeeper.audit import Change, differences
from pricekeeper.audit.entry import (
    DEPLOYMENT,
    SIDE_BYTES_MAX,
    Head,
    TrailEntry,
    bounded_side,
    canonical_bytes,
    chain_of,
    hash_of,
    head_after,
    org_of,
)
from pricekeeper.values import OrgId

ORG = OrgId("550e8400-e29b-41d4-a716-446655440000")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=5)


def an_entry(**changes: Any) -> TrailEntry:
    change = Change("freeze", "org-1", ORG, {"a": 1}, {"a": 2})
    made = Head(3, "ab", 50).next_entry(
        change, replace(BY, reason="why"), entry_id="id", at_ms=1, expires_at_epoch=60
    )
    return msgspec.structs.replace(made, **changes)


class TestDifferences:
    def test_one_quota_among_many_is_seen_by_itself(self) -> None:
        before = {"quotas": {"premium": 1, "economy": 5}, "session_limit": 5, "name": "x"}
        after = {"quotas": {"premium": 2, "economy": 5}, "session_limit": 5, "tag_keys": ["t"]}
        assert differences(before, after) == (
            {"quotas": {"premium": 1}, "name": "x"},
            {"quotas": {"premium": 2}, "tag_keys": ["t"]},
        )

    def test_what_is_the_same_differs_in_nothing(self) -> None:
        same = {"a": {"b": {"c": [1, {"d": 2}]}}}
        assert differences(same, same) == ({}, {})

    @given(OBJECTS, OBJECTS)
    def test_each_side_is_a_part_of_what_was_there_and_nothing_equal_is_in_it(
        self, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        old, new = differences(before, after)
        assert (old == new == {}) == (before == after)
        for name in before.keys() | after.keys():
            same = name in before and name in after and before[name] == after[name]
            assert same == (name not in old and name not in new)

    def test_beyond_any_depth_of_settings_values_are_compared_whole(self) -> None:
        """So that no body makes us go deeper and deeper."""
        deep: Any = 1
        for _ in range(10_000):
            deep = {"a": deep}
        old, new = differences({"x": 1}, {"x": {"y": {"z": 1}}})
        assert (old, new) == ({"x": 1}, {"x": {"y": {"z": 1}}})
        wide = {"a": {"b": {"c": {"d": {"e": {"f": 1, "g": 2}}}}}}
        changed = {"a": {"b": {"c": {"d": {"e": {"f": 1, "g": 3}}}}}}
        old, _ = differences(wide, changed)
        assert old == wide


class TestBounds:
    def test_what_fits_is_kept_as_it_is(self) -> None:
        assert bounded_side({"a": [1, {"b": None}]}) == {"a": [1, {"b": None}]}
        assert bounded_side(None) is None

    def test_the_largest_value_makes_room_for_its_hash(self) -> None:
        """A known value can still be compared with its hash; the rest stays."""
        large = {"labels": ["x" * 100] * 200}
        side = bounded_side({"quotas": {"premium": 1}, "rate_limits": large})
        assert side is not None
        assert side["quotas"] == {"premium": 1}
        assert side["rate_limits"] == {
            "left_out_bytes": len(json.dumps(large, separators=(",", ":"))),
            "sha256": hashlib.sha256(json.dumps(large, separators=(",", ":")).encode()).hexdigest(),
        }

    @given(st.dictionaries(st.text(max_size=4), st.text(max_size=20_000), max_size=15))
    def test_no_side_is_larger_than_its_bound(self, side: dict[str, Any]) -> None:
        """So an entry with two of them fits into any item."""
        bounded = bounded_side(side)
        assert bounded is not None
        assert bounded.keys() == side.keys()
        assert len(msgspec.json.encode(bounded)) <= SIDE_BYTES_MAX


class TestHash:
    @pytest.mark.parametrize(
        "name", [name for name in TrailEntry.__struct_fields__ if name != "id"]
    )
    def test_it_depends_on_every_field(self, name: str) -> None:
        """Nothing of an entry can be changed under the same hash."""
        entry = an_entry()
        other = "x" if isinstance(getattr(entry, name), str) else 99
        changed = an_entry(**{name: {"z": 1} if name in ("before", "after") else other})
        assert hash_of(canonical_bytes(changed)) != hash_of(canonical_bytes(entry))

    def test_its_bytes_are_json_in_the_order_of_the_names(self) -> None:
        text = canonical_bytes(an_entry(after={"b": 1, "a": {"d": "ü", "c": 2}}))
        plain = json.loads(text)
        again = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert again.encode() == text
        assert hash_of(text) == hashlib.sha256(text).hexdigest()

    def test_each_entry_names_the_one_before(self) -> None:
        """By its number and its hash, and says until when it is there."""
        first = an_entry()
        head = head_after(first)
        second = head.next_entry(
            Change("unfreeze", "org-1", ORG), BY, entry_id="2", at_ms=2, expires_at_epoch=10
        )
        assert (second.seq, second.previous) == (first.seq + 1, hash_of(canonical_bytes(first)))
        assert second.previous_expires_at_epoch == first.expires_at_epoch

    def test_no_entry_is_gone_before_the_one_before_it(self) -> None:
        """Also if the retention was shortened: a chain only ever loses its beginning."""
        assert (
            Head(1, "x", 1_000)
            .next_entry(Change("a", "b", None), BY, entry_id="i", at_ms=1, expires_at_epoch=10)
            .expires_at_epoch
            == 1_000
        )


def test_an_organisations_chain_has_its_name() -> None:
    """Changes of no organisation are in the deployment's chain."""
    assert org_of(chain_of(ORG)) == ORG
    assert chain_of(None) == DEPLOYMENT
    assert org_of(DEPLOYMENT) is None
