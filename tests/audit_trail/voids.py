"""What the tests share that void usage records and authorizations: who voids, and who checks."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from attribution import BY
from audit_trail.conftest import entries_of, findings
from authorizations.books import Auditor, copy_books, region_queries
from authorizations.conftest import Instance
from metering.audit import found_totals
from metering.conftest import a_usage
from minting import either
from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution
from pricekeeper.authorizations import State
from pricekeeper.clock import Clock
from pricekeeper.metering.aggregator import Aggregator
from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.journal_items import PostedRegion, VoidNote
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.voiding import Voider
from pricekeeper.storage import Store
from pricekeeper.tenants import BudgetRule, Client, Policy, Tenants
from pricekeeper.ticks import TICK_MS, region_at, tick_of
from pricekeeper.values import AppId, OrgId
from stores import ShiftedClock
from tenants.conftest import LABELS, org_body

SHOP = AppId("shop")
_BUDGETS: list[dict[str, Any]] = [
    {"name": "monthly", "window": "MONTH", "limit_usd_micros": 900_000_000},
    {"name": "weekly", "window": "WEEK", "limit_usd_micros": 900_000_000},
]


async def put_shop(store: Store, clock: Clock, org_id: OrgId) -> Policy:
    """An organisation with budgets, and an app of it with one of its own."""
    tenants = Tenants(store, clock, LABELS)
    await tenants.put_org(org_id, org_body(budgets=_BUDGETS, timezone="UTC"), BY)
    own = {"app_name": "Shop", "budgets": _BUDGETS[:1]}
    await tenants.put_app(org_id, SHOP, own, BY)
    return await tenants.read_policy(Client(org_id, SHOP))


class Voiding:
    """One instance of the service that voids for an administrator, and sells what there is to."""

    def __init__(self, store: Store, clock: Clock, policy: Policy) -> None:
        self.trail = AuditTrail(store, clock)
        self.tenants = Tenants(store, clock, LABELS, trail=self.trail)
        self._clock = clock
        self.policy = policy
        self._instance = Instance(store, clock, trail=self.trail)
        self._voider = Voider(
            store,
            clock,
            trail=self.trail,
            tenants=self.tenants,
            ledger=self._instance.ledger,
            poster=self._instance.metering.poster,
        )

    async def record(self, random: Random) -> str:
        """The id of a new usage record; whether it has a time in it decides where it is."""
        request_id = either(self._clock.now_ms(), random)
        await self._instance.record(self.policy, a_usage(request_id))
        return request_id

    async def authorize(self) -> str:
        """The id of a new authorization that is open."""
        return (await self._instance.authorize(self.policy)).authorization.shown_id

    async def void(self, target: str, by: Attribution) -> None:
        """Void what the target of an audit entry names."""
        kind, _, name = target.partition("/")
        if kind == "usage":
            await self._voider.void(self.policy, name, by)
        else:
            await self._instance.authorizations.void_for_admin(self.policy, name, by, BudgetRule())

    async def close(self) -> None:
        await self._instance.close()


async def check_voids(
    store: Store, clock: ShiftedClock, policy: Policy, span_ms: tuple[int, int]
) -> tuple[set[str], Mapping[Account, Counters]]:
    """Compare the journal, the accounts and the trail, without writers.

    Returns the voided records, and the expected totals.
    """
    queries = region_queries(policy, *span_ms)
    auditor = await copy_books(store, clock, [policy], span_ms, queries)
    auditor.check()
    auditor.check_records()
    entries = await entries_of(store, OrgId(policy.org_id))
    voids = [entry for entry in entries if entry.action == "usage.void"]
    told = {entry.target: entry.after for entry in voids if entry.before is not None}
    assert {entry.target for entry in voids} == told.keys(), "a void was repeated that was none"
    changing = [entry for entry in voids if entry.before is not None or entry.after is not None]
    assert len(changing) == len(told), "an entry says that a void was made a second time"
    corrections = [record for record in auditor.records() if record.entry.voids]
    made = {
        f"usage/{record.entry.voids}": {"correction_id": record.request_id}
        for record in corrections
    }
    assert len(made) == len(corrections), "a record was voided twice"
    assert told == made, "corrections and their entries differ"
    notes = await _notes(store, policy, span_ms)
    assert notes == made, "corrections and void notes differ"
    revoked = {entry.target for entry in entries if entry.action == "authorization.void"}
    assert revoked == _voided(auditor), "voided authorizations and their entries differ"
    assert await findings(store, clock, OrgId(policy.org_id)) == []
    return {*made, *revoked}, _sums(auditor)


async def check_totals(
    store: Store, clock: ShiftedClock, sums: Sequence[Mapping[Account, Counters]]
) -> None:
    """Once everything is folded, the totals have what the records and corrections add up to."""
    expected = {account: one for some in sums for account, one in some.items() if one.requests}
    clock.shift_ms += 5 * TICK_MS
    report = await Aggregator(store, clock).run_once()
    assert not report.failed, report
    found = await found_totals(store, {account.day for some in sums for account in some})
    known = {account for some in sums for account in some}
    assert {account: one for account, one in found.items() if account in known} == expected


async def _notes(
    store: Store, policy: Policy, span_ms: tuple[int, int]
) -> dict[str, dict[str, str]]:
    ticks = range(tick_of(span_ms[0]), tick_of(span_ms[1]) + 1)
    regions = [PostedRegion(policy.org_id, region_at(tick * TICK_MS), 1) for tick in ticks]
    found: dict[str, VoidNote] = {}
    async for _ in JournalReader(store).read_records(regions, voided=found):
        pass
    return {f"usage/{one}": {"correction_id": found[one].correction_id} for one in found}


def _voided(auditor: Auditor) -> set[str]:
    return {
        f"authorization/{one.shown_id}"
        for one in auditor.authorizations()
        if one.state is State.VOIDED
    }


def _sums(auditor: Auditor) -> dict[Account, Counters]:
    sums: dict[Account, Counters] = {}
    for record in auditor.records():
        account = Account(record.terms.scope_key, record.terms.label, record.terms.day)
        sums[account] = sums.get(account, Counters()) + record.entry.counters
    return {account: counters.alone for account, counters in sums.items()}
