"""The company's apps: they select models, wait, call and report through the client and HTTP."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from datetime import UTC, datetime
from typing import Final, Self

from pricekeeper.cli.demo.clock import FastClock
from pricekeeper.cli.demo.traffic import (
    AFTER_MIDNIGHT_MS,
    PERSONAS,
    REDEPLOYED_AT_MS,
    SUPPORT,
    ZONE,
    DemoLedger,
    Mismatch,
    Planned,
    app_settings,
    org_settings,
)
from pricekeeper.cli.demo.view import Board
from pricekeeper.cli.drawing import usd
from pricekeeper.client import (
    Admin,
    Api,
    ForbiddenError,
    Lease,
    RateLimitedError,
    Request,
    Selection,
)
from pricekeeper.client.transport import Wire, path_of
from pricekeeper.days import dashed
from pricekeeper.errors import OverloadedError
from pricekeeper.metering import org_day
from pricekeeper.values import new_request_id
from pricekeeper.wire.provisioning import AppAnswer, OrgAnswer

CALLS_AT_ONCE: Final = 12
DENIALS_MAX: Final = 20
AUDIT_LOOKS_MAX: Final = 200
AUDIT_PAUSE_SECS: Final = 0.05
MODEL_MS: Final = 2_000
PODS: Final = 2


class Pods:
    """The processes of an app, in turn, each with a session."""

    def __init__(self, start: Callable[[], Api]) -> None:
        self._start = start
        self.all = [start() for _ in range(PODS)]
        self._turns = itertools.count()

    @property
    def running(self) -> list[Api]:
        return self.all[-PODS:]

    def next(self) -> Api:
        return self.running[next(self._turns) % PODS]

    def replace_oldest(self) -> tuple[Api, Api]:
        oldest = self.running[0]
        self.all.append(self._start())
        return oldest, self.all[-1]

    @property
    def renewals(self) -> int:
        return sum(pod.tokens.renewals for pod in self.all if pod.tokens is not None)

    async def close(self) -> None:
        for pod in self.all:
            await pod.close()


class Company:
    """One organisation with its apps, on one service."""

    def __init__(
        self, url: str, org_id: str, clock: FastClock, board: Board, ledger: DemoLedger
    ) -> None:
        self.url = url
        self.org_id = org_id
        self.clock = clock
        self.board = board
        self.ledger = ledger
        self._pods: dict[str, Pods] = {}
        self._org: Api | None = None
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    @property
    def renewals(self) -> int:
        return sum(pods.renewals for pods in self._pods.values())

    async def set_up(self, key: str, planned: list[Planned]) -> None:
        """Register organisation and apps, and claim their secrets."""
        async with Admin(self.url, key, clock=self.clock) as admin:
            org = await admin.put_org(self.org_id, org_settings())
            self._org = (await self._claimed(admin, org))()
            self._closing.push_async_callback(self._org.close)
            for persona in PERSONAS:
                settings = app_settings(persona, planned, self.ledger.catalogue)
                app = await admin.put_app(self.org_id, persona.app_id, settings)
                pods = Pods(await self._claimed(admin, app))
                self._pods[persona.app_id] = pods
                self._closing.push_async_callback(pods.close)
                for pod in pods.running:  # one after the other, so that the oldest is known
                    await pod.select()

    async def _claimed(self, admin: Admin, created: OrgAnswer | AppAnswer) -> Callable[[], Api]:
        """Claim a new client's secret; returns what starts a process."""
        claimed = await admin.claim(created["secret_retrieval"]["token"])
        credentials = claimed["client_id"], claimed["client_secret"]
        return lambda: Api(self.url, *credentials, clock=self.clock)

    async def live_through(self, planned: list[Planned]) -> None:
        """Make each call at its time, more slowly if the machine can't keep up."""
        start_ms = self.board.day_starts_at_ms
        async with asyncio.TaskGroup() as calls:
            calls.create_task(self._redeploy(start_ms + REDEPLOYED_AT_MS))
            for call in planned:
                await self._until(start_ms + call.at_ms)
                with self.clock.slowly() if self._slots.locked() else nullcontext():
                    await self._slots.acquire()
                calls.create_task(self._make(call))
        await self._until(self.board.day_ends_at_ms + AFTER_MIDNIGHT_MS)

    async def audit(self) -> list[Mismatch]:
        """Compare sent and counted usage, until totals catch up."""
        for _ in range(AUDIT_LOOKS_MAX):
            found = await self._differences()
            if not found:
                break
            await asyncio.sleep(AUDIT_PAUSE_SECS)
        return found

    async def _make(self, call: Planned) -> None:
        try:
            keeper, app = self._pods[call.app_id].next(), self.board.apps[call.app_id]
            model = await keeper.select()
            self._note_model(call.app_id, model)
            tokens = call.input_tokens + call.output_tokens
            lease = await self._lease(keeper, call, model.label, tokens * 2)
            await self.clock.sleep_ms(MODEL_MS)
            await self._report(keeper, call, model.label)
            await keeper.adjust(lease.id, {"tpm": -tokens})
            app.calls += 1
        finally:
            self._slots.release()

    async def _lease(self, keeper: Api, call: Planned, label: str, reserve: int) -> Lease:
        """Take tokens; on a denial, wait as the answer says."""
        consume = {"tpm": reserve, **({"long_jobs": 1} if call.long_job else {})}
        lease_id = str(uuid.uuid4())
        for attempt in range(DENIALS_MAX):
            try:
                # Long jobs come within a minute of each other.
                with self.clock.slowly() if call.long_job else nullcontext():
                    lease = await keeper.acquire(label, consume, lease_id=lease_id)
            except RateLimitedError as error:
                violation = error.violations[0]
                wait_ms = error.retry_after_ms or 0
                text = (
                    f"denied: {violation.limit} has {violation.available} of "
                    f"{violation.requested} tokens; enough in {wait_ms // 1000:,} s"
                )
                self._note("denied", call.app_id, text, tell=attempt == 0)
                await self.clock.sleep_ms(wait_ms)
            else:
                if attempt:
                    self._note("granted", call.app_id, "granted after the wait")
                return lease
        raise OverloadedError(f"{call.app_id}: still denied after waiting {DENIALS_MAX} times")

    async def _report(self, keeper: Api, call: Planned, label: str) -> None:
        """Report usage, twice if the first reply got lost: counted once."""
        now_ms = self.clock.now_ms()
        request_id = new_request_id(now_ms)
        stamp = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for _ in range(2 if call.resend else 1):
            recorded = await keeper.record(
                label,
                call.input_tokens,
                call.output_tokens,
                request_id=request_id,
                cache_read_tokens=call.cache_read_tokens,
                timestamp=stamp,
            )
            if recorded.duplicate:
                text = "sent again after a lost reply: a duplicate, not counted"
                self._note("duplicate", call.app_id, text, tell=not self.board.counts["duplicate"])
        day = dashed(org_day(ZONE, now_ms // 1000 * 1000))
        self.board.spend(call.app_id, day, label, self.ledger.add(call, day, label))

    async def _redeploy(self, at_ms: int) -> None:
        """Start one pod more than the session limit: the oldest session ends."""
        await self._until(at_ms)
        with self.clock.slowly():  # so that no token expires meanwhile
            pods = self._pods[SUPPORT.app_id]
            oldest, fresh = pods.replace_oldest()
            if oldest.tokens is None:
                return
            token = await oldest.tokens.headers()
            before = {one["session_id"] for one in (await oldest.sessions())["sessions"]}
            self._note_model(SUPPORT.app_id, await fresh.select())
            after = {one["session_id"] for one in (await fresh.sessions())["sessions"]}
            refused = await self._is_refused(token)
        if before - after and refused:
            text = f"a new pod logged in: session {min(before - after)} ended, its token refused"
            self._note("evicted", SUPPORT.app_id, text)

    async def _is_refused(self, token: Mapping[str, str]) -> bool:
        wire = Wire(self.url)
        path = path_of("api", "v1", "orgs", self.org_id, "apps", SUPPORT.app_id, "model-selection")
        try:
            await wire.exchange(Request("GET", path), token)
        except ForbiddenError:
            return True
        finally:
            await wire.close()
        return False

    def _note_model(self, app_id: str, model: Selection) -> None:
        app = self.board.apps[app_id]
        before, app.label = app.label, model.label
        if before in ("", model.label):
            return
        if model.reason == "NORMAL":
            self._note("midnight", app_id, f"{before} → {model.label}: quotas reset")
        else:
            self._note("flip", app_id, f"{before} → {model.label}: {_why(before, model)}")

    def _note(self, kind: str, app_id: str, text: str, *, tell: bool = True) -> None:
        self.board.note(self.clock.now_ms(), app_id, kind, text, tell=tell)

    async def _until(self, at_ms: int) -> None:
        await self.clock.sleep_ms(at_ms - self.clock.now_ms())

    async def _differences(self) -> list[Mismatch]:
        found: list[Mismatch] = []
        for day in sorted({day for _, day, _ in self.ledger.sums}):
            on = datetime.fromisoformat(day).date()
            sent = 0
            for app_id, pods in self._pods.items():
                answer = await pods.running[-1].usage(on)
                found += self.ledger.differences(app_id, day, answer["models"])
                sent += sum(model["cost_usd_micros"] for model in answer["models"].values())
            if self._org is not None:
                org = await self._org.usage(on)
                apps = sum(org["apps"].values())
                if apps != sent:
                    found.append(Mismatch(self.org_id, day, "*", "cost_usd_micros", sent, apps))
        return found


def _why(before: str, model: Selection) -> str:
    left = model.answer["quota_status"]["models_status"][before]
    spent, quota = usd(left["spend_usd_micros"]), usd(left["quota_usd_micros"])
    return f"{spent} of {quota} spent on {before}, until midnight"
