"""Reads several items: joins batches, follows pages, drops expired items.

DynamoDB answers in portions: a hundred keys or 16 MB of a batch, 1 MB of a partition, or less when
busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from pricekeeper.clock import Clock
from pricekeeper.errors import ThrottledError
from pricekeeper.storage.dynamodb.client import DynamoDbClient, Repeat
from pricekeeper.storage.dynamodb.conditions import is_expired, visible
from pricekeeper.storage.dynamodb.rendering import Renderer
from pricekeeper.storage.dynamodb.wire import Attributes, decode_item, encode_key
from pricekeeper.storage.operations import QUERY_ITEMS_MAX, Page, Query
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import SORT_KEY, Item

_BATCH_KEYS_MAX: Final = 100

TableKey: TypeAlias = tuple[Table, Key]


class Reader:
    """Reads of more than one item."""

    def __init__(self, client: DynamoDbClient, renderer: Renderer, clock: Clock) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock

    async def batch_get(self, keys: Sequence[TableKey], *, consistent: bool) -> list[Item | None]:
        """The items at these keys, in that order.

        Unprocessed keys go to the back of the queue. The loop ends: every request finishes a key or
        counts as one of a limited number of stalls.
        """
        pending = list(dict.fromkeys(keys))
        found: dict[TableKey, Item] = {}
        stalled = 0
        while pending:
            asked, pending = pending[:_BATCH_KEYS_MAX], pending[_BATCH_KEYS_MAX:]
            left = await self._ask(asked, found, consistent=consistent)
            if not left:
                stalled = 0
                continue
            stalled = stalled + 1 if len(left) == len(asked) else 1
            if stalled == self._client.limits.attempts_max:
                raise ThrottledError(f"BatchGetItem: {len(left)} keys were left unprocessed")
            pending += left
            await self._client.pause(stalled)
        now_epoch = self._clock.now_ms() // 1000
        return [visible(key[0], found.get(key), now_epoch) for key in keys]

    async def query(self, query: Query, *, consistent: bool) -> Page:
        """Live items of one partition, up to the limit.

        One more item is requested, to know whether this page is the last. After a page with expired
        items a larger one is requested, so the number of requests grows with the logarithm of the
        expired items.
        """
        start, nothing = _start(query)
        if nothing:
            return Page(())
        wanted = query.limit + 1
        size = wanted
        alive: list[Item] = []
        while True:
            request = self._renderer.query(query, size, start, consistent=consistent)
            reply = await self._client.call("Query", request, Repeat.HARMLESS)
            now_epoch = self._clock.now_ms() // 1000
            items = map(decode_item, reply.get("Items", ()))
            alive += [item for item in items if not is_expired(query.table, item, now_epoch)]
            start = reply.get("LastEvaluatedKey")
            if start is None or len(alive) >= wanted:
                break
            size = min(2 * size, QUERY_ITEMS_MAX + 1)
        if len(alive) < wanted:
            return Page(tuple(alive))
        page = tuple(alive[: query.limit])
        return Page(page, after=str(page[-1][SORT_KEY]))

    async def _ask(
        self, keys: Sequence[TableKey], found: dict[TableKey, Item], *, consistent: bool
    ) -> list[TableKey]:
        request = self._renderer.batch_get(keys, consistent=consistent)
        reply = await self._client.call("BatchGetItem", request, Repeat.HARMLESS)
        tables = {self._renderer.table_name(table): table for table, _ in keys}
        for name, items in reply.get("Responses", {}).items():
            table = tables[name]
            for item in map(decode_item, items):
                found[table, table.key_of(item)] = item
        return [
            (tables[name], tables[name].key_of(decode_item(key)))
            for name, unprocessed in reply.get("UnprocessedKeys", {}).items()
            for key in unprocessed["Keys"]
        ]


def _start(query: Query) -> tuple[Attributes | None, bool]:
    """The key to start behind, if any, and whether the result is certainly empty.

    DynamoDB refuses reversed ends (here an empty range) and a start outside of the range (here
    without effect, or the end). Code points sort like their UTF-8, as in DynamoDB.
    """
    if query.first and query.last and query.first > query.last:
        return None, True
    after = query.after
    if not after:
        return None, False
    below = after < (query.prefix or query.first)
    above = not below and (
        not after.startswith(query.prefix) or bool(query.last and after > query.last)
    )
    if below or above:
        return None, below if query.descending else above
    return encode_key(Key(query.pk, after)), False
