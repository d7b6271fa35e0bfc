"""Reading a whole partition, however many pages it has."""

from pricekeeper.storage import Put, Query, Store, query_items, query_pages, read_items
from pricekeeper.storage.tables import SESSIONS


async def fill(store: Store, pk: str, count: int) -> list[str]:
    names = [f"{number:03d}" for number in range(count)]
    for name in names:
        await store.put(Put(SESSIONS, {"PK": pk, "SK": name}))
    return names


async def test_every_item_comes_once_and_in_order(store: Store) -> None:
    names = await fill(store, "pages", 7)
    pages = [page async for page in query_pages(store, Query(SESSIONS, "pages", limit=3))]
    assert [len(page.items) for page in pages if page.items] == [3, 3, 1]
    items = query_items(store, Query(SESSIONS, "pages", limit=3))
    assert [item["SK"] async for item in items] == names
    assert await read_items(store, Query(SESSIONS, "pages", limit=3)) == [
        {"PK": "pages", "SK": name} for name in names
    ]


async def test_an_empty_partition_has_one_page_without_items(store: Store) -> None:
    assert [item async for item in query_items(store, Query(SESSIONS, "nothing"))] == []
    assert await read_items(store, Query(SESSIONS, "nothing")) == []
