"""The port's seven calls on DynamoDB.

Reads and transactions are retried after a lost reply. A single write is retried only if it guards
itself (`conditions`), a bare ``ADD`` never.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreError,
)
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage.dynamodb.client import DynamoDbClient, Limits, Repeat, RequestRefused
from pricekeeper.storage.dynamodb.conditions import (
    condition_to_send,
    guards_itself,
    is_expired,
    starts_from_nothing,
    visible,
)
from pricekeeper.storage.dynamodb.credentials import find_access
from pricekeeper.storage.dynamodb.provisioning import Provisioner
from pricekeeper.storage.dynamodb.reading import Reader
from pricekeeper.storage.dynamodb.rendering import Renderer
from pricekeeper.storage.dynamodb.transactions import Transactions
from pricekeeper.storage.dynamodb.wire import decode_item
from pricekeeper.storage.expressions import Compare
from pricekeeper.storage.operations import (
    Delete,
    Page,
    Put,
    Query,
    Update,
    Write,
    check_item_size,
    check_transaction,
)
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import EXPIRY, Item
from pricekeeper.telemetry import StoreMeter

_LIMITS: Final = Limits()
_ATTEMPTS_MAX: Final = 4


class _CallTracker:
    """Counts calls and those in flight; closing waits for them."""

    __slots__ = ("_drained", "_inside", "_meter", "_open")

    def __init__(self, meter: StoreMeter) -> None:
        self._meter = meter
        self._open = True
        self._inside = 0
        self._drained = asyncio.Event()

    def track(self, call: str) -> _CallTracker:
        if not self._open:
            raise StoreClosedError("the store is closed")
        self._meter.calls[call] += 1
        self._inside += 1
        return self

    def __enter__(self) -> None:
        """Do nothing: `track` has counted the call."""

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside and not self._open:
            self._drained.set()

    async def close_and_drain(self) -> None:
        self._open = False
        if self._inside:
            await self._drained.wait()


class DynamoDbStore:
    """Items in DynamoDB. Bound to the event loop it was opened on."""

    def __init__(
        self, client: DynamoDbClient, renderer: Renderer, *, clock: Clock, meter: StoreMeter
    ) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock
        self._reader = Reader(client, renderer, clock)
        self._transactions = Transactions(client, renderer, clock)
        self._provisioner = Provisioner(client, renderer, clock)
        self._calls = _CallTracker(meter)

    @classmethod
    async def open(
        cls,
        location: DynamoDbLocation,
        *,
        clock: Clock,
        meter: StoreMeter,
        limits: Limits = _LIMITS,
        randomness: random.Random | None = None,
    ) -> DynamoDbStore:
        """Find credentials and endpoint. Nothing is sent to DynamoDB yet."""
        client = DynamoDbClient(
            await find_access(location, clock),
            clock=clock,
            meter=meter,
            prefix=location.prefix,
            limits=limits,
            randomness=randomness or random.Random(),  # noqa: S311  # spreads retries, no secret
        )
        return cls(client, Renderer(location.prefix), clock=clock, meter=meter)

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        with self._calls.track("get"):
            request = self._renderer.get(table, table.checked(key), consistent=consistent)
            reply = await self._client.call("GetItem", request, Repeat.HARMLESS)
            item = decode_item(reply["Item"]) if "Item" in reply else None
            return visible(table, item, self._now_epoch())

    async def put(self, operation: Put) -> None:
        with self._calls.track("put"):
            operation.check()
            await self._write("PutItem", operation, self._now_epoch())

    async def update(self, operation: Update) -> Item:
        with self._calls.track("update"):
            operation.check()
            repeat = partial(_repeat, operation)
            for _ in range(_ATTEMPTS_MAX):
                now_epoch = self._now_epoch()
                condition = condition_to_send(operation, now_epoch)
                request = self._renderer.single_write(operation, condition, "ALL_NEW")
                try:
                    reply = await self._client.call("UpdateItem", request, repeat)
                except RequestRefused as refusal:
                    held = _held(refusal)
                    replaceable = (
                        is_expired(operation.table, held, now_epoch)
                        and starts_from_nothing(operation)
                        and not refusal.after_lost_reply
                    )
                    if held is None or not replaceable:
                        raise _refused(refusal, operation.table, now_epoch) from None
                else:
                    return decode_item(reply["Attributes"])
                fresh = await self._replace(operation, held)
                if fresh is not None:
                    return fresh
            raise ContendedError("UpdateItem: the expired item kept changing")

    async def delete(self, operation: Delete) -> Item | None:
        with self._calls.track("delete"):
            operation.check()
            now_epoch = self._now_epoch()
            reply = await self._write("DeleteItem", operation, now_epoch, "ALL_OLD")
            old = decode_item(reply["Attributes"]) if reply.get("Attributes") else None
            return visible(operation.table, old, now_epoch)

    async def transact(self, operations: Sequence[Write]) -> None:
        with self._calls.track("transact"):
            check_transaction(operations)
            await self._transactions.transact(operations)

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        with self._calls.track("batch_get"):
            for table, key in keys:
                table.checked(key)
            return await self._reader.batch_get(keys, consistent=consistent)

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        with self._calls.track("query"):
            query.check()
            return await self._reader.query(query, consistent=consistent)

    async def create_tables(self) -> None:
        with self._calls.track("create_tables"):
            await self._provisioner.create_tables()

    async def enable_expiry(self) -> None:
        with self._calls.track("enable_expiry"):
            await self._provisioner.enable_expiry()

    async def find_tables_without_expiry(self) -> list[Table]:
        with self._calls.track("tables_without_expiry"):
            return await self._provisioner.find_without_expiry()

    async def close(self) -> None:
        """Finish the accepted calls, which the client's limits bound, then close connections."""
        await self._calls.close_and_drain()
        await self._client.close()

    async def _write(
        self, action: str, operation: Put | Delete, now_epoch: int, returned: str = "NONE"
    ) -> dict[str, Any]:
        condition = condition_to_send(operation, now_epoch)
        request = self._renderer.single_write(operation, condition, returned)
        try:
            return await self._client.call(action, request, partial(_repeat, operation))
        except RequestRefused as refusal:
            raise _refused(refusal, operation.table, now_epoch) from None

    async def _replace(self, operation: Update, held: Item) -> Item | None:
        """Replace the expired item by the update's result for an absent one.

        ``None`` if it is gone, so that the update must start again.
        """
        fresh = operation.apply(None)
        check_item_size(fresh)
        put = Put(operation.table, fresh, Compare(EXPIRY, "=", held[EXPIRY]))
        request = self._renderer.single_write(put, put.condition)
        try:
            await self._client.call("PutItem", request, partial(_repeat, put))
        except RequestRefused as refusal:
            if refusal.after_lost_reply:
                raise _refused(refusal, operation.table, self._now_epoch()) from None
            return None
        return fresh

    def _now_epoch(self) -> int:
        return self._clock.now_ms() // 1000


def _repeat(operation: Put | Update | Delete) -> Repeat:
    return Repeat.GUARDED if guards_itself(operation) else Repeat.NEVER


def _held(refusal: RequestRefused) -> Item | None:
    attributes = refusal.reply.get("Item")
    return decode_item(attributes) if attributes else None


def _refused(refusal: RequestRefused, table: Table, now_epoch: int) -> StoreError:
    item = visible(table, _held(refusal), now_epoch)
    if refusal.after_lost_reply:
        return OutcomeUnknownError(
            "a reply was lost, and sending again met a condition that the first may have changed",
            item,
        )
    return ConditionFailedError(item)
