"""Another program that counts usage by the schema document: receipts and shards.

These lines use as little of our code as they can, so that no change of ours changes what it writes.
"""

import secrets
from random import Random

from pricekeeper.clock import Clock
from pricekeeper.errors import OutcomeUnknownError, ReasonCode, TransactionCancelledError
from pricekeeper.metering import Receipt, Usage, org_day
from pricekeeper.metering.counters import COUNTER_NAMES, Account, Counters
from pricekeeper.metering.items import day_expires_at_epoch
from pricekeeper.metering.receipt import receipt_from, receipt_put
from pricekeeper.metering.shards import counter_key
from pricekeeper.metering.usage import fingerprint
from pricekeeper.storage import Add, Put, Set, Store, Update, Write
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy


def counter_update(
    account: Account, shard: int, counters: Counters, now_epoch: int, expires_at_epoch: int
) -> Update:
    """Add to one shard."""
    amounts = ((name, getattr(counters, name)) for name in COUNTER_NAMES)
    return Update(
        USAGE_AGG_SHARDED,
        counter_key(account, shard),
        (
            *(Add(name, amount) for name, amount in amounts if amount),
            Set("updated_at_epoch", now_epoch),
            Set("expires_at_epoch", expires_at_epoch),
        ),
    )


def marker_put(account: Account, shard_count: int, expires_at_epoch: int) -> Put:
    """Say that the account exists, and over how many shards it is spread."""
    scope_key, label, day = account
    return Put(
        USAGE_AGG_SHARDED,
        {
            "PK": f"ACTIVE#{day}",
            "SK": f"{scope_key}#LABEL#{label}#SH#{shard_count}",
            "scope_key": scope_key,
            "label": label,
            "shard_count": shard_count,
            "expires_at_epoch": expires_at_epoch,
        },
    )


class OtherProgram:
    """Counts one record at a time; its sender repeats it."""

    def __init__(self, store: Store, clock: Clock, randomness: Random) -> None:
        self._store = store
        self._clock = clock
        self._random = randomness

    async def record(
        self, policy: Policy, usage: Usage, at_ms: int, cost_usd_picos: int
    ) -> Receipt:
        """Count the record, or find that it was counted; its receipt either way."""
        day = org_day(policy.timezone, at_ms)
        account = Account(policy.scope_key, usage.model_label, day)
        shard, now_ms = self._random.randrange(policy.agg_shard_count), self._clock.now_ms()
        receipt = Receipt(
            fingerprint=fingerprint(policy.client_id, usage),
            scope_key=account.scope_key,
            model_label=account.label,
            org_day=day,
            cost_usd_picos=cost_usd_picos,
            pricing_version="default",
            pricing_source="a test",
            service_tier="default",
            accepted_at_ms=now_ms,
            commit_id=secrets.token_hex(8),
            shard_id=shard,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
        )
        counters = Counters(
            cost_usd_picos,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            requests=1,
        )
        expires = day_expires_at_epoch(day)
        operations: list[Write] = [
            receipt_put(policy.org_id, usage.request_id, receipt),
            counter_update(account, shard, counters, now_ms // 1000, expires),
            marker_put(account, policy.agg_shard_count, expires),
        ]
        for _ in range(5):
            try:
                await self._store.transact(operations)
            except TransactionCancelledError as cancelled:
                reason = cancelled.reasons[0]
                assert reason.code is ReasonCode.CONDITION_FAILED
                assert reason.item is not None
                return receipt_from(reason.item)
            except OutcomeUnknownError:
                continue
            return receipt
        raise OutcomeUnknownError("no reply")
