"""Many processes of one app at once, under a session limit that is lower than their number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from client.apps import Program
from client.money import Money, money_of
from client.services import running_service
from pricekeeper.client import Api

WORKER = """
import collections, json, sys, time, pricekeeper
outcomes = collections.Counter()
with pricekeeper.PriceKeeper() as keeper:
    keeper.select()
    print("ready", flush=True)
    ends_at = time.monotonic() + float(sys.stdin.readline())
    while time.monotonic() < ends_at:
        try:
            with keeper.call(1_000, 500) as call:
                call.used_tokens(1_000, 100)
        except pricekeeper.client.ServiceError as error:
            outcomes[f"{error.status} {error.code}"] += 1
        else:
            outcomes["made"] += 1
    left = keeper.flush()
    print(json.dumps([outcomes, left, keeper.engine.api.tokens.logins]), flush=True)
"""


@dataclass
class Report:
    """What the processes did."""

    made: list[int] = field(default_factory=list)
    """Calls, for each process."""
    logins: list[int] = field(default_factory=list)
    spent_usd_micros: int = 0
    wrong: list[str] = field(default_factory=list)
    """Refusals, unreported entries, and sessions that were pushed out."""


async def run_processes(folder: Path, processes: int, secs: float) -> Report:
    """Run that many processes that call as fast as they can; the session limit is five."""
    report = Report()
    with running_service(folder) as service:
        app = await service.register(folder / "spool")
        workers: list[Program] = []
        try:
            workers += [Program(WORKER, app) for _ in range(processes)]
            assert {worker.hear() for worker in workers} == {"ready"}
            async with Api(app.url, app.client_id, app.client_secret) as api:
                await api.sessions()
                for worker in workers:
                    worker.say(str(secs))
                for number, worker in enumerate(workers):
                    _note(report, number, *json.loads(worker.hear()))
                    worker.end()
                report.spent_usd_micros, *rest = await money_of(api)
                if rest != [0, 0]:
                    report.wrong.append(f"left at the end: {Money(0, *rest)}")
                sessions = len((await api.sessions())["sessions"])
                if sessions != 1:  # the one that asks
                    report.wrong.append(f"{sessions} sessions")
        finally:
            for worker in workers:
                worker.kill()
    return report


def _note(report: Report, number: int, outcomes: dict[str, int], left: int, logins: int) -> None:
    report.made.append(outcomes.pop("made", 0))
    report.logins.append(logins)
    report.wrong += [f"process {number}: {many} x {what}" for what, many in outcomes.items()]
    if left:
        report.wrong.append(f"process {number}: {left} entries were not told")
