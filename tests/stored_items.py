"""Items as the schema document writes them, attribute by attribute, and what makes no sense."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from pricekeeper.clock import SystemClock
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import Item, Put, Store, Table, open_store
from pricekeeper.storage.tables import (
    CONFIG,
    DAILY_TOTAL,
    PRICING_CACHE,
    REVOKED_TOKENS,
    SECRET_RETRIEVAL_TOKENS,
    STICKY_STATE,
    USAGE_AGG_SHARDED,
)

EPOCH = 1_737_590_400
LATER = 4_102_444_800
"""In the year 2100: these items do not expire while a test runs."""

_Result = TypeVar("_Result")


def on_store(location: str, work: Callable[[Store], Awaitable[_Result]]) -> _Result:
    """Do something to the store of a running server, from outside of it."""

    async def run() -> _Result:
        store = await open_store(parse_store_location(location), clock=SystemClock())
        try:
            return await work(store)
        finally:
            await store.close()
            await asyncio.sleep(0)  # a turn of the loop, in which its connections are closed

    return asyncio.run(run())


def write_items(location: str, *items: tuple[Table, Item]) -> None:
    """Write these items over any present ones."""

    async def write(store: Store) -> None:
        for table, item in items:
            await store.put(Put(table, item))

    on_store(location, write)


def today() -> str:
    """The day in UTC, as keys have it."""
    return datetime.now(UTC).strftime("%Y%m%d")


def org_config(org_id: str, **changes: Any) -> tuple[Table, Item]:
    """An organisation. The document has an empty sort key, which DynamoDB does not allow."""
    return CONFIG, {
        "PK": f"ORG#{org_id}",
        "SK": "ORG",
        "org_name": "sample_corp",
        "timezone": "UTC",
        "quota_scope": "APP",
        "model_ordering": ["premium", "standard", "economy"],
        "quotas": {"premium": 10_000_000, "standard": 5_000_000, "economy": 2_000_000},
        "sticky_fallback_enabled": True,
        "agg_shard_count": 8,
        "tight_mode_threshold_pct": 95,
        "refresh_interval_normal_secs": 300,
        "refresh_interval_tight_secs": 60,
        "client_id": f"org-{org_id}",
        "client_secret_hash": "$2b$12$KIXhI8K7EXAMPLE_BCRYPT_HASH",
        "client_secret_created_at_epoch": EPOCH,
        "provisioning_api_key_hash": "$2b$12$EXAMPLE_API_KEY_HASH",
        "created_at_epoch": EPOCH,
        "updated_at_epoch": EPOCH,
        **changes,
    }


def app_config(org_id: str, app_id: str, **changes: Any) -> tuple[Table, Item]:
    """An app that overrides some of its organisation's settings."""
    return CONFIG, {
        "PK": f"ORG#{org_id}",
        "SK": f"APP#{app_id}",
        "app_name": "Production API",
        "model_ordering": ["premium", "standard"],
        "quotas": {"premium": 50_000_000, "standard": 20_000_000},
        "tight_mode_threshold_pct": 90,
        "client_id": f"org-{org_id}-app-{app_id}",
        "client_secret_hash": "$2b$12$EXAMPLE_APP_SECRET_HASH",
        "client_secret_created_at_epoch": EPOCH,
        "created_at_epoch": EPOCH,
        "updated_at_epoch": EPOCH,
        **changes,
    }


def sticky_state(scope: str, day: str, **changes: Any) -> tuple[Table, Item]:
    """A fallback from premium to standard."""
    return STICKY_STATE, {
        "PK": scope,
        "SK": f"DAY#{day}",
        "active_model_label": "standard",
        "active_model_index": 1,
        "reason": "QUOTA_EXCEEDED",
        "previous_model_label": "premium",
        "activated_at_epoch": EPOCH,
        "expires_at_epoch": LATER,
        **changes,
    }


def shard(scope: str, label: str, number: int, day: str, **changes: Any) -> tuple[Table, Item]:
    """One shard of an account."""
    return USAGE_AGG_SHARDED, {
        "PK": f"{scope}#LABEL#{label}#SH#{number}",
        "SK": f"DAY#{day}",
        "cost_usd_micros": 1_250_000,
        "input_tokens": 150_000,
        "output_tokens": 80_000,
        "requests": 42,
        "request_ids": {"7c9e6679-7425-40de-944b-e07fc1f90ae7"},
        "updated_at_epoch": EPOCH,
        **changes,
    }


def daily_total(scope: str, label: str, day: str, **changes: Any) -> tuple[Table, Item]:
    """The total of an account."""
    return DAILY_TOTAL, {
        "PK": f"{scope}#LABEL#{label}",
        "SK": f"DAY#{day}",
        "cost_usd_micros": 9_500_000,
        "input_tokens": 1_200_000,
        "output_tokens": 650_000,
        "requests": 342,
        "updated_at_epoch": EPOCH,
        **changes,
    }


def price(model_id: str, date: str, **changes: Any) -> tuple[Table, Item]:
    """The price of a model on a day."""
    return PRICING_CACHE, {
        "PK": model_id,
        "SK": date,
        "model_label": "premium",
        "tier": "premium",
        "family": "claude-3.5",
        "description": "Claude 3.5 Sonnet v2 - Premium tier, highest performance",
        "input_price_usd_micros_per_1m": 3_000_000,
        "output_price_usd_micros_per_1m": 15_000_000,
        "fetched_at_epoch": EPOCH,
        "expires_at_epoch": LATER,
        **changes,
    }


def revoked_token(jti: str, client_id: str) -> tuple[Table, Item]:
    """A token that counts no more."""
    return REVOKED_TOKENS, {
        "PK": jti,
        "token_type": "access",
        "client_id": client_id,
        "revoked_at_epoch": EPOCH,
        "original_expiry_epoch": LATER,
        "expires_at_epoch": LATER,
    }


def retrieval_token(key: str, org_id: str, app_id: str) -> tuple[Table, Item]:
    """A one-time token for an app's secret."""
    return SECRET_RETRIEVAL_TOKENS, {
        "PK": key,
        "org_id": org_id,
        "app_id": app_id,
        "secret_type": "app",
        "client_id": f"org-{org_id}-app-{app_id}",
        "created_at_epoch": EPOCH,
        "expires_at_epoch": LATER,
        "used": False,
    }


def without(made: tuple[Table, Item], *names: str) -> tuple[Table, Item]:
    """The item without some of its attributes."""
    table, item = made
    return table, {name: value for name, value in item.items() if name not in names}


def changed(item: Mapping[str, Any], **changes: Any) -> Item:
    """A copy of an item, with other values."""
    return {**item, **changes}
