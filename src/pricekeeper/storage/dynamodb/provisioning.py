"""Creates the tables; any number of processes may run it at once.

A table is described first, so tables from a template need no permission to create any.

If the store keeps failing, this waits within the client's limits and logs each failure. It does not
wait for what an operator must correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from pricekeeper.clock import Clock
from pricekeeper.errors import StoreMisconfiguredError, StoreUnavailableError
from pricekeeper.storage.dynamodb.client import DynamoDbClient, Repeat, RequestRefused
from pricekeeper.storage.dynamodb.faults import INVALID_REQUEST, TABLE_EXISTS, TABLE_MISSING
from pricekeeper.storage.dynamodb.rendering import Renderer
from pricekeeper.storage.tables import ALL_TABLES, Table
from pricekeeper.storage.values import EXPIRY, PARTITION_KEY, SORT_KEY

_LOOKS_MAX: Final = 240
_LOOK_EVERY_MS: Final = 500
_USABLE: Final = ("ACTIVE", "UPDATING")

_log = structlog.get_logger(__name__)


class Provisioner:
    """Creates missing tables and waits until they can be used."""

    def __init__(self, client: DynamoDbClient, renderer: Renderer, clock: Clock) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock
        self._waits_until_ms = 0

    async def create_tables(self) -> None:
        """Create missing tables, wait until they are active, and switch expiry on in new ones."""
        self._begin_to_wait()
        new = []
        for table in ALL_TABLES:
            description = await self._describe(table)
            if description is None:
                await self._create(table)
            if description is None or description["TableStatus"] not in _USABLE:
                new.append(table)
            else:
                self._check_key(table, description)
        for table in new:
            await self._await_active(table)
        for table in new:
            if table.expires:
                await self._enable_expiry(table)

    async def enable_expiry(self) -> None:
        self._begin_to_wait()
        for table in ALL_TABLES:
            if table.expires:
                await self._enable_expiry(table)

    async def find_without_expiry(self) -> list[Table]:
        """The tables whose items should expire but don't; only reads."""
        self._begin_to_wait()
        return [one for one in ALL_TABLES if one.expires and not await self._is_expiry_enabled(one)]

    def _begin_to_wait(self) -> None:
        self._waits_until_ms = self._clock.monotonic_ms() + self._client.limits.start_wait_ms

    async def _call(
        self, action: str, table: Table, expected: str = "", **request: Any
    ) -> dict[str, Any]:
        wait_ms, name = self._client.limits.start_wait_ms, self._renderer.table_name(table)
        body, waiting_for = {"TableName": name, **request}, f"{action} of {name}"
        while True:
            try:
                return await self._client.call(action, body, Repeat.HARMLESS, expected=expected)
            except StoreUnavailableError as error:
                if wait_ms == 0:
                    raise
                if self._clock.monotonic_ms() >= self._waits_until_ms:
                    raise StoreUnavailableError(
                        f"waited {wait_ms // 1000} s for {waiting_for}: {error}"
                    ) from error
                _log.warning("waiting_for_store", waiting_for=waiting_for, error=str(error))
            await self._clock.sleep_ms(_LOOK_EVERY_MS)

    async def _describe(self, table: Table) -> dict[str, Any] | None:
        try:
            reply = await self._call("DescribeTable", table, TABLE_MISSING)
        except RequestRefused:
            return None
        description: dict[str, Any] = reply["Table"]
        return description

    async def _create(self, table: Table) -> None:
        schema = _key_schema(table)
        definitions = [
            {"AttributeName": part["AttributeName"], "AttributeType": "S"} for part in schema
        ]
        try:
            await self._call(
                "CreateTable",
                table,
                TABLE_EXISTS,
                KeySchema=schema,
                AttributeDefinitions=definitions,
                BillingMode="PAY_PER_REQUEST",
            )
        except RequestRefused:
            return  # another creator was quicker, or our own first attempt was

    async def _await_active(self, table: Table) -> None:
        name = self._renderer.table_name(table)
        for _ in range(_LOOKS_MAX):
            description = await self._describe(table)
            if description is not None and description["TableStatus"] in _USABLE:
                self._check_key(table, description)
                return
            await self._clock.sleep_ms(_LOOK_EVERY_MS)
        raise StoreUnavailableError(f"the table {name} did not become active")

    def _check_key(self, table: Table, description: Mapping[str, Any]) -> None:
        if sorted(map(str, description["KeySchema"])) != sorted(map(str, _key_schema(table))):
            name = self._renderer.table_name(table)
            raise StoreMisconfiguredError(f"the table {name} exists with another key")

    async def _enable_expiry(self, table: Table) -> None:
        if await self._is_expiry_enabled(table):
            return
        wanted = {"Enabled": True, "AttributeName": EXPIRY}
        try:
            await self._call(
                "UpdateTimeToLive", table, INVALID_REQUEST, TimeToLiveSpecification=wanted
            )
        except RequestRefused as refusal:
            # DynamoDB's reply if it is enabled already, or can't be enabled.
            if not await self._is_expiry_enabled(table):
                name = self._renderer.table_name(table)
                raise StoreMisconfiguredError(
                    f"the table {name} does not let items expire: {refusal.reply}"
                ) from None

    async def _is_expiry_enabled(self, table: Table) -> bool:
        reply = await self._call("DescribeTimeToLive", table)
        description = reply.get("TimeToLiveDescription", {})
        if description.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            return False
        if description.get("AttributeName") != EXPIRY:
            name = self._renderer.table_name(table)
            raise StoreMisconfiguredError(f"the table {name} expires items by another attribute")
        return True


def _key_schema(table: Table) -> list[dict[str, str]]:
    schema = [{"AttributeName": PARTITION_KEY, "KeyType": "HASH"}]
    if table.sorted:
        schema.append({"AttributeName": SORT_KEY, "KeyType": "RANGE"})
    return schema
