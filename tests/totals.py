"""Totals as an aggregator leaves them, for tests that need one and no records."""

from pricekeeper.metering.counters import Account, Total
from pricekeeper.metering.fold import Fold
from pricekeeper.metering.items import fold_put, spent_put, total_key
from pricekeeper.storage import Put


def total_put(account: Account, total: Total, expires_at_epoch: int) -> Put:
    """Write a total in place of any other."""
    key = total_key(account)[1]
    fold = Fold(total.counters, adopted=total.counters)
    put = fold_put(key, fold, None, total.as_of_ms, expires_at_epoch)
    return Put(put.table, put.item)


def listed_total_puts(account: Account, total: Total, expires_at_epoch: int) -> tuple[Put, Put]:
    """The same, and the item that lists it."""
    return spent_put(account, expires_at_epoch), total_put(account, total, expires_at_epoch)
