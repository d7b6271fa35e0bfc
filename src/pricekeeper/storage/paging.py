"""Reading a whole partition: page after page, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from pricekeeper.storage.operations import Page, Query
from pricekeeper.storage.port import Store
from pricekeeper.storage.values import Item


async def query_pages(store: Store, query: Query) -> AsyncIterator[Page]:
    """The pages of a query. It ends: every page begins behind the one before."""
    while True:
        page = await store.query(query)
        yield page
        if not page.after:
            return
        query = msgspec.structs.replace(query, after=page.after)
        await asyncio.sleep(0)  # SQLite answers at once; let other requests have their turn


async def query_items(store: Store, query: Query) -> AsyncIterator[Item]:
    """The items of a query, however many pages they are.

    Mostly they are one page, and so this does not go through `query_pages`.
    """
    page = await store.query(query)
    for item in page.items:
        yield item
    while page.after:
        query = msgspec.structs.replace(query, after=page.after)
        await asyncio.sleep(0)
        page = await store.query(query)
        for item in page.items:
            yield item


async def read_items(store: Store, query: Query) -> list[Item]:
    """All items of a query at once, where there are few."""
    page = await store.query(query)
    if not page.after:
        return list(page.items)
    rest = query_items(store, msgspec.structs.replace(query, after=page.after))
    return [*page.items, *[item async for item in rest]]
