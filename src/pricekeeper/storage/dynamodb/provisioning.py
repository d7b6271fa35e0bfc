"""Making the tables: idempotent, by any number of processes at once.

A table is looked at before it is made, so that a deployment whose tables come from a template
needs no permission to create any.
"""

from __future__ import annotations

from typing import Any, Final

from pricekeeper.clock import Clock
from pricekeeper.errors import StoreMisconfiguredError, StoreUnavailableError
from pricekeeper.storage.dynamodb.client import Client, Refusal, Repeat
from pricekeeper.storage.dynamodb.faults import INVALID_REQUEST, TABLE_EXISTS, TABLE_MISSING
from pricekeeper.storage.dynamodb.rendering import Renderer
from pricekeeper.storage.tables import ALL_TABLES, Table
from pricekeeper.storage.values import EXPIRY, PARTITION_KEY, SORT_KEY

_LOOKS_MAX: Final = 240
_LOOK_EVERY_MS: Final = 500


class Provisioner:
    """Creates what is missing and waits until it can be used."""

    def __init__(self, client: Client, renderer: Renderer, clock: Clock) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock

    async def create_tables(self) -> None:
        """All tables, active, with expiry switched on where items expire."""
        missing = [table for table in ALL_TABLES if await self._describe(table) is None]
        for table in missing:
            await self._create(table)
        for table in ALL_TABLES:
            await self._await_active(table)
        for table in ALL_TABLES:
            if table.expires:
                await self._enable_expiry(table)

    async def _describe(self, table: Table) -> dict[str, Any] | None:
        request = {"TableName": self._renderer.table_name(table)}
        try:
            reply = await self._client.call(
                "DescribeTable", request, Repeat.HARMLESS, expected=TABLE_MISSING
            )
        except Refusal:
            return None
        description: dict[str, Any] = reply["Table"]
        return description

    async def _create(self, table: Table) -> None:
        schema = _key_schema(table)
        request = {
            "TableName": self._renderer.table_name(table),
            "KeySchema": schema,
            "AttributeDefinitions": [
                {"AttributeName": part["AttributeName"], "AttributeType": "S"} for part in schema
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }
        try:
            await self._client.call("CreateTable", request, Repeat.HARMLESS, expected=TABLE_EXISTS)
        except Refusal:
            return  # another creator was quicker, or our own first attempt was

    async def _await_active(self, table: Table) -> None:
        name = self._renderer.table_name(table)
        for _ in range(_LOOKS_MAX):
            description = await self._describe(table)
            if description is not None and description["TableStatus"] in ("ACTIVE", "UPDATING"):
                if sorted(map(str, description["KeySchema"])) != sorted(
                    map(str, _key_schema(table))
                ):
                    raise StoreMisconfiguredError(f"the table {name} exists with another key")
                return
            await self._clock.sleep_ms(_LOOK_EVERY_MS)
        raise StoreUnavailableError(f"the table {name} did not become active")

    async def _enable_expiry(self, table: Table) -> None:
        if await self._expiry_enabled(table):
            return
        request = {
            "TableName": self._renderer.table_name(table),
            "TimeToLiveSpecification": {"Enabled": True, "AttributeName": EXPIRY},
        }
        try:
            await self._client.call(
                "UpdateTimeToLive", request, Repeat.HARMLESS, expected=INVALID_REQUEST
            )
        except Refusal as refusal:
            # DynamoDB's way to say that it is on already; or that it can't be switched on.
            if not await self._expiry_enabled(table):
                name = self._renderer.table_name(table)
                raise StoreMisconfiguredError(
                    f"the table {name} does not let items expire: {refusal.reply}"
                ) from None

    async def _expiry_enabled(self, table: Table) -> bool:
        name = self._renderer.table_name(table)
        reply = await self._client.call("DescribeTimeToLive", {"TableName": name}, Repeat.HARMLESS)
        description = reply.get("TimeToLiveDescription", {})
        if description.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            return False
        if description.get("AttributeName") != EXPIRY:
            raise StoreMisconfiguredError(f"the table {name} expires items by another attribute")
        return True


def _key_schema(table: Table) -> list[dict[str, str]]:
    schema = [{"AttributeName": PARTITION_KEY, "KeyType": "HASH"}]
    if table.sorted:
        schema.append({"AttributeName": SORT_KEY, "KeyType": "RANGE"})
    return schema
