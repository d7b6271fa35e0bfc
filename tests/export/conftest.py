"""What the tests of exports share: every store, usage of several organisations, and files."""

import gzip
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from attribution import BY
from metering.conftest import CATALOGUE, DAY_MS, LABELS, a_policy
from minting import minted
from pricekeeper.audit import AuditTrail
from pricekeeper.clock import Clock
from pricekeeper.days import day_start_ms
from pricekeeper.export import Exporter
from pricekeeper.export.destination import Destination
from pricekeeper.export.folder import FolderDestination
from pricekeeper.ledger import Ledger
from pricekeeper.metering import (
    Aggregator,
    Metering,
    Usage,
    UsageStatus,
    WindowSpend,
    org_day,
)
from pricekeeper.metering.voiding import Voider
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Store
from pricekeeper.tenants import Policy, Tenants
from pricekeeper.values import AppId, OrgId
from stores import ShiftedClock, location, meter, store

__all__ = ["location", "meter", "store"]

ORGS = tuple(OrgId(str(uuid.UUID(int=number << 64))) for number in (1, 2, 3))
ZONES = ("UTC", "Pacific/Auckland", "America/Los_Angeles")


@pytest.fixture
def table_prefix() -> str:
    """Tables of each test's own: an export looks at everything that is there."""
    return f"export-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def clock() -> ShiftedClock:
    """Real time, moved to the next noon."""
    clock = ShiftedClock()
    clock.shift_ms = DAY_MS - (clock.now_ms() - DAY_MS // 2) % DAY_MS
    return clock


@dataclass
class Company:
    """Reports usage, and remembers what it has reported."""

    store: Store
    clock: Clock
    retention_days: int = 90
    random: Random = field(default_factory=lambda: Random(1))
    reported: list[tuple[Policy, str, Usage]] = field(default_factory=list)

    def policies(self) -> list[Policy]:
        return [
            a_policy(AppId(app), org_id=org_id, timezone=zone)
            for org_id, zone in zip(ORGS, ZONES, strict=True)
            for app in ("chat", "search")
        ]

    async def report(self, count: int, *, policies: list[Policy] | None = None) -> None:
        """Report so many calls, of the last 24 hours, by ids with a time in them and without."""
        metering = Metering(
            self.store,
            self.clock,
            PriceBook(self.store, self.clock, CATALOGUE),
            retention_days=self.retention_days,
        )
        for number in range(count):
            policy = self.random.choice(policies or self.policies())
            at_ms = self.clock.now_ms() - self.random.randrange(DAY_MS - 60_000)
            id_ms = self.clock.now_ms() - self.random.randrange(DAY_MS - 60_000)
            usage = Usage(
                request_id=minted(id_ms, self.random)
                if number % 5
                else str(uuid.UUID(int=self.random.getrandbits(128), version=4)),
                model_label=self.random.choice(LABELS),
                input_tokens=self.random.randrange(5_000),
                output_tokens=self.random.randrange(2_000),
                timestamp_ms=at_ms,
                status=self.random.choice(list(UsageStatus)),
                tags={"team": f"ümlaut {number % 3}", "a": "b"},
            )
            await metering.record(policy, usage)
            self.reported.append((policy, org_day(policy.timezone, at_ms), usage))
        await metering.close()

    async def void(self, policy: Policy, request_id: str) -> str:
        """Take a record out by a correction; its id."""
        ledger = Ledger(self.store, self.clock, WindowSpend(self.store, self.clock).read_spend)
        prices = PriceBook(self.store, self.clock, CATALOGUE)
        metering = Metering(self.store, self.clock, prices, ledger=ledger)
        voider = Voider(
            self.store,
            self.clock,
            trail=AuditTrail(self.store, self.clock),
            tenants=Tenants(self.store, self.clock, frozenset(LABELS)),
            ledger=ledger,
            poster=metering.poster,
        )
        voided, _ = await voider.void(policy, request_id, BY)
        await metering.close()
        await ledger.close()
        return voided.correction_id

    def of(self, day: str, org_id: str | None = None) -> dict[str, tuple[Policy, Usage]]:
        """The reported usage of that day, by request id."""
        return {
            usage.request_id: (policy, usage)
            for policy, of_day, usage in self.reported
            if of_day == day and org_id in (None, policy.org_id)
        }

    async def aggregate(self) -> None:
        assert not (await Aggregator(self.store, self.clock).run_once()).failed

    def exporter(self, destination: Destination, **options: Any) -> Exporter:
        return Exporter(self.store, self.clock, destination, **options)

    async def export(self, folder: Path, day: str, **options: Any) -> Any:
        """Export a day into the folder; the manifest, as JSON."""
        destination = FolderDestination(str(folder))
        try:
            await self.exporter(destination, **options).export_day(day)
        finally:
            await destination.close()
        return json.loads((folder / f"day={day}" / "manifest.json").read_bytes())


@pytest.fixture
async def company(store: Store, clock: ShiftedClock) -> Company:
    """Forty calls, of two or three days, that can no longer change."""
    company = Company(store, clock)
    await company.report(40)
    await company.aggregate()
    clock.shift_ms += 4 * DAY_MS
    await company.aggregate()
    return company


@pytest.fixture
async def voided(store: Store, clock: ShiftedClock) -> tuple[Company, str, dict[str, str]]:
    """Usage of a day, some of it voided, one of that at the last moment: correction by record."""
    company = Company(store, clock)
    await company.report(20, policies=company.policies()[:2])
    today = [one for one in company.reported if one[1] == org_day("UTC", clock.now_ms())]
    failed = next(one for one in today if one[2].status is UsageStatus.ERROR)
    corrections: dict[str, str] = {}
    for policy, day, usage in {one[2].request_id: one for one in (*today[:3], failed)}.values():
        if len(corrections) == 2:
            clock.shift_ms += day_start_ms("UTC", day) + 3 * DAY_MS - clock.now_ms() - 60_000
        await company.aggregate()
        corrections[usage.request_id] = await company.void(policy, usage.request_id)
    await company.aggregate()
    clock.shift_ms += DAY_MS
    await company.aggregate()
    return company, today[0][1], corrections


@pytest.fixture
def day(company: Company) -> str:
    """The day on which most was reported."""
    days = [day for _, day, _ in company.reported]
    return max(sorted(set(days)), key=days.count)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file and its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows(content: bytes) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(content).splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where exports go; a store may be beside it."""
    made = tmp_path / "exports"
    made.mkdir()
    return made


def names(folder: Path) -> set[str]:
    """What is directly in it."""
    return {path.name for path in folder.iterdir()}
