"""Transactions: a token that works across processes, expired items, and the reasons.

**DynamoDB's own token** (``ClientRequestToken``) makes copies of one *request* harmless, byte for
byte the same one, for ten minutes. We make a new one for every call and keep it over all re-sends
of that call: that is all we ask of it.

**The caller's token** means more: the same *operations*, from any process, minutes later. It
can't be handed to DynamoDB as its token, for three reasons. The conditions that we send contain
the current second (see `expiry`), so a repetition is another request to DynamoDB and would be
refused as a mismatch. From that refusal nobody could tell "the same operations at another
second" from "other operations". And whether the token of a *cancelled* transaction is free for
another request is not documented, though the port promises it. A coarser clock would make the
requests equal, but expiry wrong by as much; trying out all seconds of the last ten minutes
would cost hundreds of requests for one mistaken caller.

So a token becomes a receipt: one more item, written in the same transaction if there is no
living one yet, holding a fingerprint of the operations. Whoever repeats a token meets the
receipt: with the same fingerprint the transaction was applied, with another the token was
reused. No receipt means that nothing was applied, and the token is free. This is exact in every
process, depends on documented behaviour only, and expires by the same clock as on SQLite. It
costs a write of under 1 KB (two units, as part of a transaction) and the hundredth operation.
A feature whose operations already contain a put-if-absent of its own needs no token.

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
    InvalidOperationError,
    OutcomeUnknownError,
    ReasonCode,
    StoreUnavailableError,
    TokenReusedError,
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
from pricekeeper.storage.expressions import ITEM_ABSENT, Compare
from pricekeeper.storage.operations import (
    TRANSACTION_TOKEN_TTL_SECS,
    Delete,
    Put,
    Update,
    Write,
    fingerprint,
)
from pricekeeper.storage.tables import REQUEST_DEDUP
from pricekeeper.storage.values import EXPIRY, PARTITION_KEY, Item

_ROUNDS_MAX: Final = 4
"""How often expired items may come back under one transaction before we call it contended."""

_FINGERPRINT: Final = "operations"
_PASSED: Final = CancellationReason(ReasonCode.NONE)


class Transactions:
    """Applies several operations, all or nothing."""

    def __init__(self, client: Client, renderer: Renderer, clock: Clock) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock

    async def transact(self, operations: Sequence[Write], token: str | None) -> None:
        """Apply all operations, once per token."""
        now_epoch = self._clock.now_ms() // 1000
        receipt = None if token is None else _receipt(token, operations, now_epoch)
        sent: list[Write] = [*operations] if receipt is None else [receipt, *operations]
        request = self._renderer.transaction(
            [(operation, condition_to_send(operation, now_epoch)) for operation in sent],
            client_token=uuid.uuid4().hex,
        )
        for _ in range(_ROUNDS_MAX):
            try:
                await self._client.call("TransactWriteItems", request, Repeat.TOKENED)
            except Refusal as refusal:
                told = _items_told(refusal, sent)
            except InvalidOperationError:
                if receipt is not None and await self._known(receipt):
                    return  # impossible by now, but it was done when it was possible
                raise
            else:
                return
            if receipt is not None and await self._known(receipt, *told.pop(0)):
                return
            expired = _expired_under_updates(operations, told, now_epoch)
            reasons = _reasons(operations, told, expired, now_epoch)
            if any(reason.code is ReasonCode.CONDITION_FAILED for reason in reasons):
                raise TransactionCancelledError(reasons)
            for place, expires in expired.items():
                await self._remove(operations[place], expires)
        raise ContendedError("TransactWriteItems: expired items kept coming back")

    async def _known(
        self, receipt: Put, code: ReasonCode = ReasonCode.NONE, seen: Item | None = None
    ) -> bool:
        """Whether the receipt's token was applied before; raises if with other operations."""
        if code is not ReasonCode.CONDITION_FAILED:
            # Something else was in the way. Was that the first copy's own doing? It is not
            # promised that every failed condition is told, so look.
            seen = await self._look_up(receipt)
        if seen is None:
            return False
        if seen.get(_FINGERPRINT) != receipt.item[_FINGERPRINT]:
            raise TokenReusedError("the token was used for another transaction")
        return True

    async def _look_up(self, receipt: Put) -> Item | None:
        request = self._renderer.get(receipt.table, receipt.key, consistent=True)
        try:
            reply = await self._client.call("GetItem", request, Repeat.HARMLESS)
        except StoreUnavailableError as error:
            raise OutcomeUnknownError(
                "whether the token was applied before can't be read"
            ) from error
        seen = decode_item(reply["Item"]) if "Item" in reply else None
        return visible(receipt.table, seen, self._clock.now_ms() // 1000)

    async def _remove(self, operation: Write, expires: int) -> None:
        """Delete the expired item, unless it is another one by now."""
        delete = Delete(operation.table, operation.key, Compare(EXPIRY, "=", expires))
        request = self._renderer.single_write(delete, delete.condition)
        with contextlib.suppress(Refusal):
            await self._client.call("DeleteItem", request, Repeat.HARMLESS)


def _receipt(token: str, operations: Sequence[Write], now_epoch: int) -> Put:
    item: Item = {
        PARTITION_KEY: f"TRANSACTION#{token}",
        _FINGERPRINT: fingerprint(operations),
        EXPIRY: now_epoch + TRANSACTION_TOKEN_TTL_SECS,
    }
    return Put(REQUEST_DEDUP, item, ITEM_ABSENT)


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
