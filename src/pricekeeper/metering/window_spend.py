"""What was spent in the windows of budgets, straight from the records of the journal.

It is read when an account is opened: nothing, if its budget was there when the window began, and
the window so far, if it is new. One pass over the journal sums any number of accounts.
"""

from __future__ import annotations

from collections.abc import Sequence

from pricekeeper.budgets import BudgetAccount
from pricekeeper.clock import Clock
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.usage import AHEAD_MS_MAX
from pricekeeper.storage import Store
from pricekeeper.ticks import tick_of


class WindowSpend:
    """Sums records by account."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._clock = clock
        self._reader = JournalReader(store)

    async def read_spend(self, accounts: Sequence[BudgetAccount]) -> dict[BudgetAccount, int]:
        """What the records of the journal add up to in each account, in pico-dollars."""
        sums = dict.fromkeys(accounts, 0)
        for org_id in dict.fromkeys(account.org_id for account in accounts):
            mine = [account for account in accounts if account.org_id == org_id]
            started_ms = min(account.span.starts_at_ms for account in mine)
            postings = await self.find_postings(org_id, started_ms)
            async for record in self._reader.read_records(postings):
                terms, entry = record.terms, record.entry
                tags, at_ms = dict(terms.tags), entry.happened_at_ms
                for account in mine:
                    if account.counts(terms.app_id, terms.label, tags, at_ms):
                        sums[account] += entry.cost_usd_picos
        return sums

    async def find_postings(self, org_id: str, since_ms: int) -> list[PostedRegion]:
        """Where records are that happened since then; one may be posted minutes before it."""
        first = tick_of(since_ms - AHEAD_MS_MAX)
        last = tick_of(self._clock.now_ms() + AHEAD_MS_MAX)
        ticks = await self._reader.read_ticks(first, last)
        return await self._reader.read_postings(ticks, org_id)
