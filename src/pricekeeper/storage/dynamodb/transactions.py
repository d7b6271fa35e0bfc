"""Transactions: their token, expired items, and the reasons of a cancellation.

**DynamoDB's token** (``ClientRequestToken``) makes copies of one *request* harmless for ten
minutes, if they are the same byte for byte. Every call has a new token, which all of its re-sends
carry.

**An update must not build on an expired item**, so it is sent with the condition that the item is
alive, and DynamoDB cancels. Then the expired item is deleted, unless it has changed, and the very
same request is sent again. The expired item already counts as absent, so nobody can see that it is
deleted: this needs no token, may happen twice, and may be left undone. Because the request does
not change, a copy of it that is still in flight can't be applied in addition.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from typing import Any, Final

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    CancellationReason,
    ContendedError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.storage.dynamodb.client import DynamoDbClient, Repeat, RequestRefused
from pricekeeper.storage.dynamodb.expiry import (
    condition_to_send,
    is_expired,
    starts_from_nothing,
    visible,
)
from pricekeeper.storage.dynamodb.faults import REASONS
from pricekeeper.storage.dynamodb.rendering import Renderer
from pricekeeper.storage.dynamodb.wire import decode_item
from pricekeeper.storage.expressions import Compare
from pricekeeper.storage.operations import Delete, Update, Write
from pricekeeper.storage.values import EXPIRY, Item

_ATTEMPTS_MAX: Final = 4
"""How often expired items may come back before the transaction fails as contended."""

_PASSED: Final = CancellationReason(ReasonCode.NONE)


class Transactions:
    """Applies several operations, all or nothing."""

    def __init__(self, client: DynamoDbClient, renderer: Renderer, clock: Clock) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock

    async def transact(self, operations: Sequence[Write]) -> None:
        """Apply all operations."""
        now_epoch = self._clock.now_ms() // 1000
        request = self._renderer.transaction(
            [(operation, condition_to_send(operation, now_epoch)) for operation in operations],
            client_token=uuid.uuid4().hex,
        )
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._client.call("TransactWriteItems", request, Repeat.TOKENED)
            except RequestRefused as refusal:
                reported = _reported_items(refusal, operations)
            else:
                return
            expired = _expired_under_updates(operations, reported, now_epoch)
            reasons = _reasons(operations, reported, expired, now_epoch)
            if any(reason.code is ReasonCode.CONDITION_FAILED for reason in reasons):
                raise TransactionCancelledError(reasons)
            for index, expires in expired.items():
                await self._remove(operations[index], expires)
        raise ContendedError("TransactWriteItems: expired items kept coming back")

    async def _remove(self, operation: Write, expires: int) -> None:
        """Delete the expired item, unless it is another one by now."""
        delete = Delete(operation.table, operation.key, Compare(EXPIRY, "=", expires))
        request = self._renderer.single_write(delete, delete.condition)
        with contextlib.suppress(RequestRefused):
            await self._client.call("DeleteItem", request, Repeat.HARMLESS)


def _reported_items(
    refusal: RequestRefused, sent: Sequence[Write]
) -> list[tuple[ReasonCode, Item | None]]:
    """DynamoDB's report on each operation: a code, and the item, expired or not."""
    reported: list[dict[str, Any]] = refusal.reply["CancellationReasons"]
    return [
        (
            REASONS.get(reason.get("Code", ""), ReasonCode.NONE),
            decode_item(reason["Item"]) if reason.get("Item") else None,
        )
        for _, reason in zip(sent, reported, strict=True)
    ]


def _expired_under_updates(
    operations: Sequence[Write], reported: Sequence[tuple[ReasonCode, Item | None]], now_epoch: int
) -> dict[int, int]:
    """The expiry of each expired item that alone made an update fail, by the update's index."""
    return {
        index: item[EXPIRY]
        for index, (operation, (_, item)) in enumerate(zip(operations, reported, strict=True))
        if item is not None
        and isinstance(operation, Update)
        and is_expired(operation.table, item, now_epoch)
        and starts_from_nothing(operation)
    }


def _reasons(
    operations: Sequence[Write],
    reported: Sequence[tuple[ReasonCode, Item | None]],
    expired: dict[int, int],
    now_epoch: int,
) -> list[CancellationReason]:
    """The reasons as the caller sees them, for whom expired items are absent."""
    return [
        _PASSED
        if index in expired or code is ReasonCode.NONE
        else CancellationReason(code, visible(operation.table, item, now_epoch))
        for index, (operation, (code, item)) in enumerate(zip(operations, reported, strict=True))
    ]
