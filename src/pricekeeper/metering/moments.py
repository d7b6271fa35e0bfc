"""Gives a request id without a time a moment, so that its record has a place like any other.

The first use of such an id writes its moment to RequestDedup, if there is none, by a plain write.
Every other use reads that moment. The record is then on the page of the moment, named by a hash of
the id. A moment alone counts nothing.

Bounds: `MOMENTS_AT_ONCE` writes at once, in turns by organisation; `SENDINGS_MAX` sendings of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import FairSlots
from pricekeeper.errors import ConditionFailedError, ContendedError, StoreError, UnreadableItemError
from pricekeeper.metering.journal import Address, address_at
from pricekeeper.metering.marking import Marks
from pricekeeper.metering.usage import MOMENT_LIFE_SECS
from pricekeeper.storage import (
    ITEM_ABSENT,
    Item,
    Key,
    Put,
    Set,
    Store,
    Table,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.tables import REQUEST_DEDUP
from pricekeeper.storage.values import EXPIRY

SLACK_SECS: Final = 3_600
MOMENTS_AT_ONCE: Final = 24
"""A batch has a hundred, and an instance 64 connections to DynamoDB."""
_AT: Final = "minted_ms"


def moment_key(org_id: str, request_id: str) -> tuple[Table, Key]:
    """The key of a request id's moment."""
    return REQUEST_DEDUP, Key(f"ORG#{org_id}#REQ#{request_id}")


def moment_put(org_id: str, request_id: str, at_ms: int, expires_at_epoch: int) -> Put:
    """Write a moment, if there is none."""
    table, key = moment_key(org_id, request_id)
    item = {**key.attributes, _AT: at_ms, EXPIRY: expires_at_epoch}
    return Put(table, item, ITEM_ABSENT)


class Moments:
    """Finds the addresses of ids without a time."""

    def __init__(self, store: Store, clock: Clock, marks: Marks) -> None:
        self._store = store
        self._clock = clock
        self._marks = marks
        self._slots = FairSlots(MOMENTS_AT_ONCE)

    async def complete(
        self, org_id: str, addresses: Mapping[str, Address | None]
    ) -> dict[str, Address | StoreError]:
        """Fill in the addresses that are ``None``, or the error of an unreadable moment.

        Ids without a time that were never used are left out.
        """
        found: dict[str, Address | StoreError] = {
            request_id: one for request_id, one in addresses.items() if one is not None
        }
        wanted = [request_id for request_id in addresses if request_id not in found]
        keys = [moment_key(org_id, request_id) for request_id in wanted]
        for request_id, item in zip(wanted, await self._read(keys), strict=True):
            if item is not None:
                found[request_id] = _address_or_error(request_id, item)
        return found

    async def _read(self, keys: Sequence[tuple[Table, Key]]) -> Sequence[Item | None]:
        return await self._store.batch_get(keys) if keys else ()

    async def mint(
        self, org_id: str, request_ids: Sequence[str], expires_at_epoch: int = 0
    ) -> list[Address | StoreError]:
        """The address of each id, which has a moment from now on, or the error of its write.

        A moment lives until ``expires_at_epoch``, but at least for `MOMENT_LIFE_SECS`. One that
        would end more than `SLACK_SECS` earlier is kept longer, since a record or claim may follow
        long after the first use of its id.
        """
        now_ms = self._clock.now_ms()
        expires = max(expires_at_epoch, now_ms // 1000 + MOMENT_LIFE_SECS)
        minting = (self._mint(org_id, one, now_ms, expires) for one in request_ids)
        return list(await asyncio.gather(*minting))

    async def _mint(
        self, org_id: str, request_id: str, now_ms: int, expires: int
    ) -> Address | StoreError:
        put = moment_put(org_id, request_id, now_ms, expires)
        sendings = self._marks.sendings(doubt=False)
        while True:  # at most `SENDINGS_MAX` times
            try:
                await self._put(org_id, put)
            except ConditionFailedError as refused:
                failure = await self._keep(dict(refused.item or {}), expires)
                if failure is None:
                    return _address_or_error(request_id, dict(refused.item or {}))
            except StoreError as error:
                failure = error
            else:
                return address_at(request_id, now_ms)
            try:
                await sendings.fail(failure)
            except StoreError as error:
                return error

    async def _put(self, org_id: str, put: Put) -> None:
        await self._slots.acquire(org_id)
        try:
            await self._store.put(put)
        finally:
            self._slots.release()

    async def _keep(self, item: Item, expires: int) -> StoreError | None:
        """Have a moment live until then, if it would end much earlier."""
        ends = item.get(EXPIRY)
        if type(ends) is not int or ends >= expires - SLACK_SECS or _AT not in item:
            return None
        same = attr(_AT).eq(item[_AT])
        try:
            await self._store.update(
                Update(REQUEST_DEDUP, Key(str(item["PK"])), (Set(EXPIRY, expires),), same)
            )
        except ConditionFailedError as refused:
            return ContendedError(f"the moment has just ended: {refused}")
        except StoreError as error:
            return error
        return None


def _address_or_error(request_id: str, item: Item) -> Address | StoreError:
    try:
        return address_at(request_id, TypedItem(REQUEST_DEDUP, item).moment_ms(_AT))
    except UnreadableItemError as error:
        return error
