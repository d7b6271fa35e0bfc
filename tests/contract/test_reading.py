"""Reading many: batch_get and query."""

import pytest

from contract.conftest import Place
from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage import Key, Put, Query, Store, Write
from pricekeeper.storage.tables import CONFIG, REVOKED_TOKENS, SESSIONS


async def fill(store: Store, pk: str, sort_keys: list[str]) -> None:
    operations: list[Write] = [
        Put(SESSIONS, {"PK": pk, "SK": sk, "n": n}) for n, sk in enumerate(sort_keys)
    ]
    for start in range(0, len(operations), 100):
        await store.transact(operations[start : start + 100])


async def sort_keys(store: Store, query: Query) -> list[object]:
    return [item["SK"] for item in (await store.query(query)).items]


async def test_batch_get_keeps_the_order_and_marks_gaps(store: Store, at: Place) -> None:
    """One answer per place asked for, repeats and absences included."""
    await store.put(Put(CONFIG, {"PK": at.pk("a"), "SK": "1", "n": 1}))
    await store.put(Put(REVOKED_TOKENS, {"PK": at.pk("b"), "n": 2}))
    found = await store.batch_get(
        [
            (CONFIG, at.key("a")),
            (CONFIG, at.key("none")),
            (REVOKED_TOKENS, Key(at.pk("b"))),
            (CONFIG, at.key("a")),
        ]
    )
    assert [item and item["n"] for item in found] == [1, None, 2, 1]


async def test_batch_get_of_more_than_one_request_holds(store: Store, at: Place) -> None:
    await fill(store, at.pk(), [f"{n:03}" for n in range(250)])
    places = [(SESSIONS, at.key("a", f"{n:03}")) for n in reversed(range(250))]
    found = await store.batch_get(places)
    assert [item and item["n"] for item in found] == list(reversed(range(250)))


async def test_batch_get_of_large_items(store: Store, at: Place) -> None:
    places = [(CONFIG, at.key("a", f"{n:02}")) for n in range(45)]
    for n, (table, key) in enumerate(places):
        await store.put(Put(table, {"PK": key.pk, "SK": key.sk, "n": n, "v": "x" * 390_000}))
    found = await store.batch_get(places)
    assert [item and item["n"] for item in found] == list(range(45))


async def test_batch_get_of_nothing(store: Store) -> None:
    assert await store.batch_get([]) == []


async def test_query_sorts_by_the_bytes_of_the_sort_key(store: Store, at: Place) -> None:
    """Which is the order of code points, not of any language."""
    keys = ["a", "B", "b", "é", "Z", "~", "𝄞", "\uffee", "10", "9"]
    await fill(store, at.pk(), keys)
    await fill(store, at.pk("other"), ["x"])
    expected = sorted(keys, key=lambda key: key.encode())
    assert await sort_keys(store, Query(SESSIONS, at.pk())) == expected
    descending = Query(SESSIONS, at.pk(), descending=True)
    assert await sort_keys(store, descending) == expected[::-1]


async def test_query_narrows(store: Store, at: Place) -> None:
    await fill(store, at.pk(), ["APP#a", "APP#b", "APP", "APQ", "ORG", "APP#\U0010ffff\U0010ffff"])
    expected = {
        ("APP#", "", ""): ["APP#a", "APP#b", "APP#\U0010ffff\U0010ffff"],
        ("", "APP#b", "APQ"): ["APP#b", "APP#\U0010ffff\U0010ffff", "APQ"],
        ("", "APQ", ""): ["APQ", "ORG"],
        ("", "", "APP#a"): ["APP", "APP#a"],
        ("X", "", ""): [],
        ("", "b", "a"): [],
    }
    for (prefix, first, last), keys in expected.items():
        query = Query(SESSIONS, at.pk(), prefix=prefix, first=first, last=last)
        assert await sort_keys(store, query) == keys
        down = Query(SESSIONS, at.pk(), prefix=prefix, first=first, last=last, descending=True)
        assert await sort_keys(store, down) == keys[::-1]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("prefix", ["", "k"])
async def test_query_pages(store: Store, at: Place, descending: bool, prefix: str) -> None:
    keys = [f"k{n:02}" for n in range(10)]
    await fill(store, at.pk(), keys)
    seen: list[object] = []
    after, pages = "", 0
    while True:
        query = Query(SESSIONS, at.pk(), prefix=prefix, limit=5, after=after, descending=descending)
        page = await store.query(query)
        seen += [item["SK"] for item in page.items]
        after, pages = page.after, pages + 1
        if not after:
            break
    assert seen == (keys[::-1] if descending else keys)
    assert pages == 2


async def test_query_continues_inside_a_range(store: Store, at: Place) -> None:
    await fill(store, at.pk(), list("abcdef"))
    up = Query(SESSIONS, at.pk(), first="b", last="e", after="c")
    assert await sort_keys(store, up) == ["d", "e"]
    down = Query(SESSIONS, at.pk(), first="b", last="e", after="d", descending=True)
    assert await sort_keys(store, down) == ["c", "b"]


async def test_query_follows_the_engine_s_own_pages(store: Store, at: Place) -> None:
    for n in range(6):
        item = {"PK": at.pk(), "SK": f"{n}", "n": n, "v": "x" * 390_000}
        await store.put(Put(CONFIG, item))
    page = await store.query(Query(CONFIG, at.pk()))
    assert [item["n"] for item in page.items] == list(range(6))
    assert page.after == ""


@pytest.mark.parametrize(
    "query",
    [
        Query(REVOKED_TOKENS, "x"),
        Query(SESSIONS, ""),
        Query(SESSIONS, "x", limit=0),
        Query(SESSIONS, "x", limit=1001),
        Query(SESSIONS, "x", prefix="a", first="b"),
        Query(SESSIONS, "x", prefix="a" * 1025),
    ],
    ids=["no-sort-key", "empty-pk", "limit-0", "limit-1001", "prefix-and-range", "long-prefix"],
)
async def test_impossible_queries_are_refused(store: Store, query: Query) -> None:
    with pytest.raises(InvalidOperationError):
        await store.query(query)
