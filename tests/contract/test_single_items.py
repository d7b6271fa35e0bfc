"""One item at a time: what every store promises for get, put, update and delete."""

from typing import Any

import pytest

from contract.conftest import Place
from pricekeeper.errors import ConditionFailedError, InvalidOperationError
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Add,
    Condition,
    Delete,
    Item,
    Key,
    Put,
    Remove,
    Set,
    Store,
    Update,
    attr,
)
from pricekeeper.storage.tables import CONFIG, REVOKED_TOKENS
from pricekeeper.storage.values import ITEM_BYTES_MAX, item_bytes
from stores import stored


def item(key: Key, **attributes: Any) -> Item:
    return {"PK": key.pk, "SK": key.sk, **attributes}


async def test_an_absent_item_is_none(store: Store, at: Place) -> None:
    assert await store.get(CONFIG, at.key()) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "plain",
        "snow ☃, clef 𝄞, nul \0",
        0,
        -1,
        2**63,
        -(10**37) - 1,
        10**38 - 1,
        True,
        False,
        None,
        b"",
        b"\0\xff",
        [],
        [1, "two", [True, None]],
        {},
        {"nested": {"list": [1, {"deep": b"x"}]}},
        frozenset({"a", "b"}),
        [frozenset({"x"}), 10**30],
    ],
    ids=lambda value: type(value).__name__,
)
async def test_every_value_comes_back_as_it_was(store: Store, at: Place, value: Any) -> None:
    """Values keep their type and content, at any depth."""
    key = at.key()
    await store.put(Put(CONFIG, item(key, value=value)))
    read = await store.get(CONFIG, key)
    assert read == item(key, value=value)
    assert type(read["value"]) is type(value)


async def test_put_replaces_the_whole_item(store: Store, at: Place) -> None:
    key = at.key()
    await store.put(Put(CONFIG, item(key, old=1)))
    await store.put(Put(CONFIG, item(key, new=2)))
    assert await store.get(CONFIG, key) == item(key, new=2)


async def test_items_differ_by_either_half_of_the_key(store: Store, at: Place) -> None:
    for n, key in enumerate((at.key("a", "1"), at.key("a", "2"), at.key("b", "1"))):
        await store.put(Put(CONFIG, item(key, n=n)))
    found = await stored(store, CONFIG, at.key("a", "2"))
    assert found["n"] == 1


async def test_a_table_without_sort_key(store: Store, at: Place) -> None:
    key = Key(at.pk())
    await store.put(Put(REVOKED_TOKENS, {"PK": key.pk, "n": 1}))
    assert await store.get(REVOKED_TOKENS, key) == {"PK": key.pk, "n": 1}
    assert await store.delete(Delete(REVOKED_TOKENS, key)) == {"PK": key.pk, "n": 1}


async def test_update_creates_what_is_absent(store: Store, at: Place) -> None:
    key = at.key()
    new = await store.update(Update(CONFIG, key, (Set("a", 1), Add("n", 5))))
    assert new == item(key, a=1, n=5)
    assert await store.get(CONFIG, key) == new


async def test_update_returns_the_item_as_it_is_afterwards(store: Store, at: Place) -> None:
    key = at.key()
    await store.put(Put(CONFIG, item(key, kept="k", gone=1, n=10)))
    new = await store.update(
        Update(CONFIG, key, (Set("set", [1]), Add("n", -3), Remove("gone"), Remove("never")))
    )
    assert new == item(key, kept="k", n=7, set=[1])
    assert await store.get(CONFIG, key) == new


async def test_add_unites_sets(store: Store, at: Place) -> None:
    key = at.key()
    await store.update(Update(CONFIG, key, (Add("tags", frozenset({"a"})),)))
    new = await store.update(Update(CONFIG, key, (Add("tags", frozenset({"a", "b"})),)))
    assert new["tags"] == frozenset({"a", "b"})


async def test_add_counts_beyond_64_bits(store: Store, at: Place) -> None:
    key = at.key()
    for _ in range(3):
        new = await store.update(Update(CONFIG, key, (Add("n", 2**63 - 1),)))
    assert new["n"] == 3 * (2**63 - 1)
    new = await store.update(Update(CONFIG, key, (Add("n", -(2**66)),)))
    assert new["n"] == 3 * (2**63 - 1) - 2**66


@pytest.mark.parametrize(
    "held", ["text", True, [1], frozenset({"a"})], ids=lambda held: type(held).__name__
)
async def test_add_to_another_type_is_refused(store: Store, at: Place, held: Any) -> None:
    key = at.key()
    await store.put(Put(CONFIG, item(key, v=held)))
    with pytest.raises(InvalidOperationError):
        await store.update(Update(CONFIG, key, (Set("other", 1), Add("v", 1))))
    assert await store.get(CONFIG, key) == item(key, v=held)


async def test_delete_returns_what_was_there(store: Store, at: Place) -> None:
    key = at.key()
    await store.put(Put(CONFIG, item(key, n=1)))
    assert await store.delete(Delete(CONFIG, key)) == item(key, n=1)
    assert await store.delete(Delete(CONFIG, key)) is None
    assert await store.get(CONFIG, key) is None


HELD: dict[str, Any] = {
    "n": 5,
    "s": "héλ𝄞",
    "b": b"abc",
    "t": True,
    "z": None,
    "l": [1, "x", [2]],
    "m": {"q": 1},
    "ss": frozenset({"a", "b"}),
}

CONDITIONS: list[tuple[Condition, bool]] = [
    (attr("n").eq(5), True),
    (attr("n").eq(6), False),
    (attr("n").eq("5"), False),
    (attr("t").eq(1), False),
    (attr("t").eq(True), True),
    (attr("z").eq(None), True),
    (attr("l").eq([1, "x", [2]]), True),
    (attr("l").eq([True, "x", [2]]), False),
    (attr("m").eq({"q": 1}), True),
    (attr("ss").eq(frozenset({"b", "a"})), True),
    (attr("none").eq(5), False),
    (attr("n").ne(5), False),
    (attr("n").ne("5"), True),
    (attr("none").ne(5), True),
    (attr("m").ne({"q": 2}), True),
    (attr("n").lt(6), True),
    (attr("n").lt(5), False),
    (attr("n").le(5), True),
    (attr("n").gt(4), True),
    (attr("n").gt(5), False),
    (attr("n").ge(5), True),
    (attr("n").ge(6), False),
    (attr("n").lt("zzz"), False),
    (attr("none").lt(6), False),
    (attr("none").ge(-(10**20)), False),
    (attr("s").gt("he"), True),
    (attr("s").lt("hé"), False),
    (attr("b").lt(b"abd"), True),
    (attr("n").exists(), True),
    (attr("z").exists(), True),
    (attr("none").exists(), False),
    (attr("none").absent(), True),
    (attr("n").absent(), False),
    (attr("n").eq(5) & attr("t").eq(True), True),
    (attr("n").eq(5) & attr("t").eq(False), False),
    (attr("n").eq(6) | attr("t").eq(True), True),
    (attr("n").eq(6) | attr("t").eq(False), False),
    (~attr("n").eq(6), True),
    (~attr("none").lt(6), True),
    (~(attr("n").eq(5) & ~attr("none").exists()), False),
    (attr("n").eq(6) & attr("n").eq(6) | attr("n").eq(5), True),
    ((attr("n").eq(5) | attr("n").eq(6)) & attr("n").eq(6), False),
    (ITEM_EXISTS, True),
    (ITEM_ABSENT, False),
]


@pytest.mark.parametrize(
    ("condition", "holds"),
    CONDITIONS,
    ids=[f"{n:02}-{type(c).__name__}" for n, (c, _) in enumerate(CONDITIONS)],
)
async def test_conditions_mean_what_dynamodb_says(
    store: Store, at: Place, condition: Condition, holds: bool
) -> None:
    key = at.key()
    await store.put(Put(CONFIG, item(key, **HELD)))
    if holds:
        await store.put(Put(CONFIG, item(key, written=1), condition))
        assert await store.get(CONFIG, key) == item(key, written=1)
    else:
        with pytest.raises(ConditionFailedError) as failure:
            await store.put(Put(CONFIG, item(key, written=1), condition))
        assert failure.value.item == item(key, **HELD)
        assert await store.get(CONFIG, key) == item(key, **HELD)


async def test_a_failed_condition_carries_the_current_item(store: Store, at: Place) -> None:
    """From update and delete as well, so that no second read is needed."""
    key = at.key()
    await store.put(Put(CONFIG, item(key, n=1)))
    for failing in (
        store.update(Update(CONFIG, key, (Add("n", 1),), attr("n").eq(2))),
        store.delete(Delete(CONFIG, key, attr("n").eq(2))),
    ):
        with pytest.raises(ConditionFailedError) as failure:
            await failing
        assert failure.value.item == item(key, n=1)
    assert await store.get(CONFIG, key) == item(key, n=1)


async def test_a_condition_on_nothing_fails_with_no_item(store: Store, at: Place) -> None:
    key = at.key()
    with pytest.raises(ConditionFailedError) as failure:
        await store.update(Update(CONFIG, key, (Add("n", 1),), ITEM_EXISTS))
    assert failure.value.item is None
    assert await store.get(CONFIG, key) is None


async def test_put_if_absent_has_one_winner(store: Store, at: Place) -> None:
    key = at.key()
    await store.put(Put(CONFIG, item(key, n=1), ITEM_ABSENT))
    with pytest.raises(ConditionFailedError) as failure:
        await store.put(Put(CONFIG, item(key, n=2), ITEM_ABSENT))
    assert failure.value.item == item(key, n=1)


@pytest.mark.parametrize(
    "key",
    [
        Key("", "x"),
        Key("x", ""),
        Key("x"),
        Key("x" * 2049, "x"),
        Key("x", "x" * 1025),
        Key("\ud800", "x"),
    ],
    ids=["empty-pk", "empty-sk", "no-sk", "long-pk", "long-sk", "surrogate"],
)
async def test_impossible_keys_are_refused(store: Store, key: Key) -> None:
    with pytest.raises(InvalidOperationError):
        await store.get(CONFIG, key)
    with pytest.raises(InvalidOperationError):
        await store.update(Update(CONFIG, key, (Set("a", 1),)))
    with pytest.raises(InvalidOperationError):
        await store.delete(Delete(CONFIG, key))
    with pytest.raises(InvalidOperationError):
        await store.batch_get([(CONFIG, key)])
    with pytest.raises(InvalidOperationError):
        await store.put(Put(CONFIG, item(key)))


async def test_the_longest_keys_work(store: Store, at: Place) -> None:
    key = Key(at.pk().ljust(2048, "x"), "é" * 512)
    await store.put(Put(CONFIG, item(key, n=1)))
    assert await store.get(CONFIG, key) == item(key, n=1)


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        frozenset(),
        frozenset({1}),
        "\ud800",
        10**38,
        object(),
        {"a": {"b": 1.0}},
        {1: 2},
        {"": 1},
    ],
    ids=[
        "float",
        "empty-set",
        "number-set",
        "surrogate",
        "wide",
        "object",
        "deep",
        "name",
        "nameless",
    ],
)
async def test_impossible_values_are_refused(store: Store, at: Place, value: Any) -> None:
    """Floats above all: no store may round what another keeps."""
    key = at.key()
    with pytest.raises(InvalidOperationError):
        await store.put(Put(CONFIG, item(key, v=value)))
    with pytest.raises(InvalidOperationError):
        await store.update(Update(CONFIG, key, (Set("v", value),)))
    assert await store.get(CONFIG, key) is None


async def test_nesting_has_a_floor(store: Store, at: Place) -> None:
    deep: Any = "x"
    for _ in range(31):
        deep = [deep]
    key = at.key()
    await store.put(Put(CONFIG, item(key, v=deep)))
    read = await stored(store, CONFIG, key)
    assert read["v"] == deep
    with pytest.raises(InvalidOperationError):
        await store.put(Put(CONFIG, item(key, v=[deep])))


async def test_an_item_may_be_400_kilobytes_and_no_more(store: Store, at: Place) -> None:
    key = at.key()
    room = ITEM_BYTES_MAX - item_bytes(item(key, v=""))
    await store.put(Put(CONFIG, item(key, v="x" * room)))
    with pytest.raises(InvalidOperationError):
        await store.put(Put(CONFIG, item(key, v="x" * (room + 1))))
    with pytest.raises(InvalidOperationError):
        await store.update(Update(CONFIG, key, (Set("w", 1),)))
    read = await stored(store, CONFIG, key)
    assert len(str(read["v"])) == room


@pytest.mark.parametrize(
    "actions",
    [
        (),
        (Set("a", 1), Remove("a")),
        (Set("PK", "x"),),
        (Remove("SK"),),
        (Set("", 1),),
        (Add("a", "x"),),  # type: ignore[arg-type]
        (Add("a", True),),
    ],
    ids=["none", "same-twice", "pk", "sk", "nameless", "add-text", "add-bool"],
)
async def test_impossible_updates_are_refused(store: Store, at: Place, actions: Any) -> None:
    key = at.key()
    with pytest.raises(InvalidOperationError):
        await store.update(Update(CONFIG, key, actions))
    assert await store.get(CONFIG, key) is None


def test_ordering_what_has_no_order_is_refused() -> None:
    with pytest.raises(InvalidOperationError):
        attr("a").lt(True)
    with pytest.raises(InvalidOperationError):
        attr("a").ge([1])  # type: ignore[arg-type]


def test_comparing_with_what_no_item_holds_is_refused() -> None:
    """A float can't be stored, so it can't be compared with either."""
    for impossible in (attr("a").eq, attr("a").ne):
        with pytest.raises(InvalidOperationError):
            impossible(1.5)  # type: ignore[arg-type]
