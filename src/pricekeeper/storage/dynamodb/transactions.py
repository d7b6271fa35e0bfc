"""Transactions: their token, expired items, and the reasons of a cancellation.

**DynamoDB's token** (``ClientRequestToken``) makes equal copies of one *request* harmless for ten
minutes. Every call has a new token, which its retries share.

**An update must not build on an expired item**, so it carries the condition that the item is alive,
and DynamoDB cancels. Then the expired item is deleted, unless it has changed, and the same request
is sent again. The deletion is invisible, so it needs no token and may happen twice. The request
does not change, so a copy still in flight can't be applied in addition.
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
from pricekeeper.storage.dynamodb.conditions import (
    condition_to_send,
    is_expired,
    starts_from_nothing,
)
from pricekeeper.storage.dynamodb.faults import REASONS
from pricekeeper.storage.dynamodb.rendering import Renderer
from pricekeeper.storage.dynamodb.wire import decode_item
from pricekeeper.storage.expressions import Compare
from pricekeeper.storage.operations import Delete, Update, Write
from pricekeeper.storage.values import EXPIRY

_ATTEMPTS_MAX: Final = 4

_PASSED: Final = CancellationReason(ReasonCode.NONE)


class Transactions:
    """Applies several operations, all or nothing."""

    def __init__(self, client: DynamoDbClient, renderer: Renderer, clock: Clock) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock

    async def transact(self, operations: Sequence[Write]) -> None:
        now_epoch = self._clock.now_ms() // 1000
        request = self._renderer.transaction(
            [(operation, condition_to_send(operation, now_epoch)) for operation in operations],
            client_token=uuid.uuid4().hex,
        )
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._client.call("TransactWriteItems", request, Repeat.TOKENED)
            except RequestRefused as refusal:
                reasons, expired = _judge(refusal, operations, now_epoch)
            else:
                return
            if any(reason.code is ReasonCode.CONDITION_FAILED for reason in reasons):
                raise TransactionCancelledError(reasons)
            for delete in expired:
                await self._remove(delete)
        raise ContendedError("TransactWriteItems: expired items kept coming back")

    async def _remove(self, delete: Delete) -> None:
        request = self._renderer.single_write(delete, delete.condition)
        with contextlib.suppress(RequestRefused):
            await self._client.call("DeleteItem", request, Repeat.HARMLESS)


def _judge(
    refusal: RequestRefused, operations: Sequence[Write], now_epoch: int
) -> tuple[list[CancellationReason], list[Delete]]:
    """The reasons as callers see them, for whom expired items are absent.

    And the deletes of expired items that alone made an update fail.
    """
    reasons: list[CancellationReason] = []
    expired: list[Delete] = []
    reported: list[dict[str, Any]] = refusal.reply["CancellationReasons"]
    for operation, reason in zip(operations, reported, strict=True):
        code = REASONS.get(reason.get("Code", ""), ReasonCode.NONE)
        item = decode_item(reason["Item"]) if reason.get("Item") else None
        is_dead = is_expired(operation.table, item, now_epoch)
        if item and is_dead and isinstance(operation, Update) and starts_from_nothing(operation):
            is_same = Compare(EXPIRY, "=", item[EXPIRY])
            expired.append(Delete(operation.table, operation.key, is_same))
            code = ReasonCode.NONE
        seen = None if is_dead else item
        reasons.append(_PASSED if code is ReasonCode.NONE else CancellationReason(code, seen))
    return reasons, expired
