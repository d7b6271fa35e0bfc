"""Transactions: sent under a token of their own, expired items, and the reasons.

**DynamoDB's token** (``ClientRequestToken``) makes copies of one *request* harmless, byte for
byte the same one, for ten minutes. We make a new one for every call and keep it over all re-sends
of that call.

**An expired item under an update** must not be built upon, so the update is sent with the
condition that the item is alive, and DynamoDB cancels. Then the expired item is deleted, if it
still is that one, and the very same request is sent again. Deleting what already counts as
absent changes nothing that anybody could see, so it needs no token, may happen twice, and may
be left undone; and because the request does not change, a copy of it that is still under way
somewhere can't be applied beside it.
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
from pricekeeper.storage.dynamodb.client import Client, Refusal, Repeat
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

_ROUNDS_MAX: Final = 4
"""How often expired items may come back under one transaction before we call it contended."""

_PASSED: Final = CancellationReason(ReasonCode.NONE)


class Transactions:
    """Applies several operations, all or nothing."""

    def __init__(self, client: Client, renderer: Renderer, clock: Clock) -> None:
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
        for _ in range(_ROUNDS_MAX):
            try:
                await self._client.call("TransactWriteItems", request, Repeat.TOKENED)
            except Refusal as refusal:
                told = _items_told(refusal, operations)
            else:
                return
            expired = _expired_under_updates(operations, told, now_epoch)
            reasons = _reasons(operations, told, expired, now_epoch)
            if any(reason.code is ReasonCode.CONDITION_FAILED for reason in reasons):
                raise TransactionCancelledError(reasons)
            for place, expires in expired.items():
                await self._remove(operations[place], expires)
        raise ContendedError("TransactWriteItems: expired items kept coming back")

    async def _remove(self, operation: Write, expires: int) -> None:
        """Delete the expired item, unless it is another one by now."""
        delete = Delete(operation.table, operation.key, Compare(EXPIRY, "=", expires))
        request = self._renderer.single_write(delete, delete.condition)
        with contextlib.suppress(Refusal):
            await self._client.call("DeleteItem", request, Repeat.HARMLESS)


def _items_told(refusal: Refusal, sent: Sequence[Write]) -> list[tuple[ReasonCode, Item | None]]:
    """What DynamoDB says of each operation sent: a code, and the item as it physically is."""
    told: list[dict[str, Any]] = refusal.reply["CancellationReasons"]
    return [
        (
            REASONS.get(reason.get("Code", ""), ReasonCode.NONE),
            decode_item(reason["Item"]) if reason.get("Item") else None,
        )
        for _, reason in zip(sent, told, strict=True)
    ]


def _expired_under_updates(
    operations: Sequence[Write],
    told: Sequence[tuple[ReasonCode, Item | None]],
    now_epoch: int,
) -> dict[int, int]:
    """Which updates failed only because of an expired item, by place, and its expiry."""
    return {
        place: item[EXPIRY]
        for place, (operation, (_, item)) in enumerate(zip(operations, told, strict=True))
        if item is not None
        and isinstance(operation, Update)
        and is_expired(operation.table, item, now_epoch)
        and starts_from_nothing(operation)
    }


def _reasons(
    operations: Sequence[Write],
    told: Sequence[tuple[ReasonCode, Item | None]],
    expired: dict[int, int],
    now_epoch: int,
) -> list[CancellationReason]:
    """The reasons in terms of what the caller asked for, and may see."""
    return [
        _PASSED
        if place in expired or code is ReasonCode.NONE
        else CancellationReason(code, visible(operation.table, item, now_epoch))
        for place, (operation, (code, item)) in enumerate(zip(operations, told, strict=True))
    ]
