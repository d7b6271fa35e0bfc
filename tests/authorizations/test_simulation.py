"""Budgets under all faults at once, in an order that a seed decides.

Three instances with clocks up to two seconds wrong authorize, capture, void, extend and expire for
two apps of an organisation, around a midnight of its zone. The wire loses requests and replies and
delivers up to minutes late; processes die at any call. Callers repeat at another instance, under
ids of theirs or of ours, abandon calls, capture late or twice, and capture without waiting, as the
gateway does. Some histories have usage without authorization. In some an administrator adds a
budget in the middle, which instances learn within 30 s and recount later.

After every step the items are checked: a hard budget has used at most its limit, and every account
equals its records, holds and unsettled charges. The new account may have less until it is
recounted. In the end nothing is held.
"""

import asyncio
import hashlib
import os
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import quick_loop
from authorizations.books import Auditor
from authorizations.conftest import Instance, a_budget
from authorizations.variants import BROKEN, CAUGHT_BY
from faulty_store import Crashed, Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from metering.conftest import ECONOMY, LABELS, PREMIUM, STANDARD, a_policy, a_usage
from minting import minted
from pricekeeper.authorizations import Authorization, State
from pricekeeper.budgets import Span, accounts_of, window_at
from pricekeeper.clock import ManualClock
from pricekeeper.days import day_start_ms
from pricekeeper.errors import (
    AuthorizationDeniedError,
    ConflictError,
    OutcomeUnknownError,
    PriceKeeperError,
    RequestIdReusedError,
    StoreUnavailableError,
)
from pricekeeper.ledger.log import SHEETS_MAX
from pricekeeper.ledger.position import SHEET
from pricekeeper.metering import Outcome
from pricekeeper.storage import Put, Store
from pricekeeper.tenants import Policy, QuotaEnforcement, RateLimit, Window
from pricekeeper.tenants.recounts import RECOUNT_AFTER_MS
from pricekeeper.values import AppId, OrgId
from quick_loop import QuickLoop, TimelessLoop, quiet
from slow_wire import SkewedClock, SlowWire, TornQueries
from slowness import batches

__all__ = ["quiet"]

pytestmark = pytest.mark.usefixtures("quiet")
HISTORIES = 500
HISTORIES_EACH = 50
INSTANCES, CALLERS, CALLS = 3, 5, 4
SKEW_MS = 2_000
HOUR_MS = 3_600_000
LATE_MS = 1_000_000
RECORDED_MS = 12 * HOUR_MS
"""How old an id may be that usage is recorded under: a day is too old."""
CHANGED_EACH, CHANGED_AT = 8, 4
"""In one history of so many, that one, a budget is given in the middle."""
POLICY_MS_MAX = 30_000
TURNS_MS = (50, 3_000, 20_000, 60_000)
"""How long the longest turns of a history take."""
CHANGED_TURNS_MS = (500, 1_000, 3_000)
"""The same if a budget is given: many turns pass until everybody knows of it."""
TAGS: tuple[dict[str, str], ...] = ({}, {"team": "a"})
ZONES = ("Pacific/Kiritimati", "UTC", "America/Sao_Paulo")
FAULTS = (
    Faults(
        refused_pct=3, request_lost_pct=4, reply_lost_pct=5, late_pct=4, resent_pct=4, crashed_pct=2
    ),
    Faults(request_lost_pct=3, reply_lost_pct=6, late_pct=5, crashed_pct=2, spare_reads=True),
)
_NO_ANSWER = (OutcomeUnknownError, StoreUnavailableError, Crashed, asyncio.CancelledError)


class Call:
    """What a caller knows of a call of its own."""

    def __init__(
        self, policy: Policy, asked_as: str | None, request: dict[str, Any], asked_at_ms: int
    ) -> None:
        self.policy = policy
        self.asked_as = asked_as
        self.request = request
        self.asked_at_ms = asked_at_ms
        self.granted: Authorization | None = None
        self.granted_by: Instance | None = None
        self.is_given_up = False
        """Whether its caller asks no more, and does not know of a grant."""
        self.captures = 0
        """How often a capture was sent that may have been applied."""
        self.counted = 0
        """How often an answer said that its capture is the one that counts."""
        self.kept_until_ms = 0

    @property
    def id(self) -> str:
        assert self.granted is not None
        return self.granted.shown_id


class World:
    """One deployment, its callers, and what they know."""

    def __init__(self, store: MemoryStore, clock: ManualClock, seed: int) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.store = store
        is_changed = seed % CHANGED_EACH == CHANGED_AT
        longest_ms = self.random.choice(CHANGED_TURNS_MS if is_changed else TURNS_MS)
        self.auditor = Auditor(store)
        self.with_usage = self.random.random() < 0.4
        self.longest_ms = longest_ms
        self.turns = Interleaving(seed, self.pass_time)
        wire = self.random.choice((SlowWire, TornQueries))
        self.wire = wire(store, self.turns, self.random.choice(FAULTS), clock)
        self.calm = FaultyStore(store, self.turns, Faults())
        self.policies = self.make_policies()
        self.change = Change(self, seed) if is_changed else None
        self.instances = [self.instance() for _ in range(INSTANCES)]
        self.answered_by = self.instances[0]
        """Which of them has answered last."""
        self.calls: list[Call] = []
        self.begun: list[tuple[Call, Instance, list[BaseException]]] = []
        """Captures without a waiting caller: which instance began them, and how they failed."""
        self.granted: defaultdict[str, list[Call]] = defaultdict(list)
        """The calls by what their authorizations are called."""
        self.known_spans: set[Span] = set()
        self.unknown_from_ms = 0
        self.crashes = 0
        self.outcomes: Counter[str] = Counter()
        self.broken: list[AssertionError] = []

    def make_policies(self) -> list[Policy]:
        random = self.random
        org_id = OrgId(str(uuid.UUID(int=random.getrandbits(128), version=4)))
        window = random.choice((Window.HOUR, Window.DAY, Window.DAY, Window.MONTH))
        common = {
            "org_id": org_id,
            "timezone": random.choice(ZONES),
            "org_budgets": (
                a_budget(random.choice((40_000, 90_000)), name="org", window=Window.DAY),
                a_budget(60_000, name="team", window=Window.DAY, per_tag="team"),
            ),
            "tag_keys": ("team",),
            "quotas": {PREMIUM: 45_000, STANDARD: 30_000, ECONOMY: 10_000},
            "quota_enforcement": random.choice(list(QuotaEnforcement)),
            "rate_limits": {"*": {"rpm": RateLimit(1_000, 1_000, 60_000)}},
        }
        return [
            a_policy(AppId(name), budgets=(a_budget(limit, name="app", window=window),), **common)
            for name, limit in (("one", 50_000), ("two", 20_000))
        ]

    def pass_time(self, _: Random) -> None:
        """Between any two steps: look at the items, then let time pass."""
        self.look()
        self.clock.advance_ms(self.turns.below(self.longest_ms))

    def look(self) -> None:
        """Check everything that was written since, and what only time can make right."""
        if self.clock.now_ms() >= self.unknown_from_ms:
            self.know_accounts()
        try:
            if self.auditor.has_news():
                self.auditor.check()
                if not self.with_usage:
                    self.auditor.check_limits()
                self.auditor.check_records()
            if self.auditor.unsettled:
                self.check_kept()
        except AssertionError as error:
            self.broken.append(error)

    def check_kept(self) -> None:
        """Nothing is charged at its hold before its time, as far as clocks can tell."""
        now_ms = self.clock.now_ms() + 2 * SKEW_MS
        for authorization_id in self.auditor.unsettled:
            for call in self.granted.get(authorization_id, ()):
                assert now_ms >= call.kept_until_ms, "it was charged at its hold too early"

    def know_accounts(self) -> None:
        """Let the auditor know every account that a call of about now may be held against."""
        hour = self.clock.now_ms() // HOUR_MS
        self.unknown_from_ms = (hour + 1) * HOUR_MS
        policies = self.policies if self.change is None else self.change.policies
        zone = policies[0].timezone
        budgets = [one for policy in policies for one in (*policy.budgets, *policy.org_budgets)]
        windows = {Window.DAY, *(budget.window for budget in budgets)}
        for near_ms in ((hour - 1) * HOUR_MS, hour * HOUR_MS, (hour + 1) * HOUR_MS):
            spans = {window_at(window, zone, near_ms) for window in windows}
            if spans <= self.known_spans:
                continue  # every window is one that was met before, and so is every account
            self.known_spans |= spans
            for policy in policies:
                for tags in TAGS:
                    self.auditor.know(accounts_of(policy, near_ms, tags))

    def instance(self, store: Store | None = None) -> Instance:
        skew_ms = 0 if store else self.random.randint(-SKEW_MS, SKEW_MS)
        clock = SkewedClock(self.clock, self.turns, skew_ms)
        sheets_max = self.random.choice((2, 3, 5, 8, SHEETS_MAX))
        return Instance(
            store or self.wire, clock, self.random.getrandbits(64), sheets_max=sheets_max
        )

    async def ask(self, work: str, *args: Any, **kwargs: Any) -> Any:
        """Ask any instance; one that dies is replaced."""
        instance = self.random.choice(self.instances)
        policy = self.known_to(instance, args[0])
        answer = await self.ask_at(instance, getattr(instance, work), policy, *args[1:], **kwargs)
        self.answered_by = instance
        return answer

    async def ask_at(
        self, instance: Instance, work: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        try:
            return await work(*args, **kwargs)
        except Crashed:
            self.replace(instance)
            raise

    def known_to(self, instance: Instance, policy: Policy) -> Policy:
        return policy if self.change is None else self.change.known_to(instance, policy)

    def replace(self, dead: Instance) -> None:
        self.crashes += 1
        if dead in self.instances:
            self.instances[self.instances.index(dead)] = self.instance()

    async def caller(self) -> None:
        for _ in range(CALLS):
            if self.with_usage and self.random.random() < 0.3:
                await self.record()
                continue
            call = self.new_call()
            await self.authorize(call)
            if call.granted is not None:
                await self.settle(call)

    def new_call(self) -> Call:
        random = self.random
        policy = random.choice(self.policies)
        asked_as = None
        if random.random() < 0.4:
            asked_as = (
                minted(self.clock.now_ms(), random)
                if random.random() < 0.5
                else str(uuid.UUID(int=random.getrandbits(128), version=4))
            )
        tags = random.choice(TAGS)
        request = {
            "input_tokens": random.randrange(2_000),
            "max_output_tokens": random.randrange(1, 2_000),
            "model": random.choice(("auto", PREMIUM, STANDARD)),
            "allow_lower_max_output": random.random() < 0.3,
            "hold_secs": random.choice((10, 60, 900)),
            "tags": tags,
            "authorization_id": asked_as,
        }
        call = Call(policy, asked_as, request, self.clock.now_ms())
        self.calls.append(call)
        return call

    async def authorize(self, call: Call) -> None:
        for _ in range(3 if call.asked_as else 1):
            try:
                authorized = await self.ask("authorize", call.policy, **call.request)
            except AuthorizationDeniedError:
                self.outcomes["denied"] += 1
                break
            except _NO_ANSWER:
                continue
            self.outcomes["granted"] += 1
            call.granted, call.granted_by = authorized.authorization, self.answered_by
            self.granted[call.granted.id].append(call)
            call.kept_until_ms = authorized.authorization.expires_at_ms
            return
        call.is_given_up = True

    async def settle(self, call: Call) -> None:
        random = self.random
        dice = random.random()
        if dice < 0.15:
            return  # it is abandoned
        if dice < 0.3:
            self.clock.advance_ms(random.choice((5_000, 70_000)))
        if dice > 0.9:
            with suppress(*_NO_ANSWER, ConflictError):
                held = await self.ask("extend", call.policy, call.id, 120)
                call.kept_until_ms = max(call.kept_until_ms, held.expires_at_ms)
        if dice > 0.8:
            with suppress(*_NO_ANSWER, ConflictError):
                await self.ask("void", call.policy, call.id)
            return
        for _ in range(random.randrange(1, 4)):
            await self.capture(call)

    async def capture(self, call: Call) -> None:
        assert call.granted is not None
        grant = call.granted.grant
        usage = {
            "input_tokens": grant.input_tokens // 2,
            "output_tokens": grant.max_output_tokens // 3,
        }
        is_old = self.clock.now_ms() - call.asked_at_ms > RECORDED_MS
        dice = self.random.random()
        try:
            if dice > 0.7 and await self.begin_capture(call, usage):
                return
            first = call.captures == 0
            if dice < 0.2 and not is_old:  # a usage record under its id captures it
                record = a_usage(call.id, model_label=grant.terms.label, **usage)
                recorded = await self.ask("record", call.policy, record)
                is_duplicate = recorded.outcome is Outcome.DUPLICATE
            else:
                captured = await self.ask("capture", call.policy, call.id, **usage)
                is_duplicate = captured.is_duplicate
        except ConflictError:
            return
        except _NO_ANSWER:
            call.captures += 1
            return
        call.captures += 1
        call.counted += not is_duplicate
        self.outcomes["captured"] += 1
        if first and is_duplicate:
            self.broken.append(AssertionError("the first capture was answered as a duplicate"))

    async def begin_capture(self, call: Call, usage: dict[str, int]) -> bool:
        """Capture without waiting for it, as the gateway does; whether it has not failed since."""
        assert call.granted is not None
        grant, instance = call.granted.grant, call.granted_by
        if instance is None or instance not in self.instances:
            return False
        policy = self.known_to(instance, call.policy)
        record = a_usage(call.id, model_label=grant.terms.label, **usage)
        failures: list[BaseException] = []

        def fail(error: BaseException) -> None:
            failures.append(error)
            if isinstance(error, Crashed):
                self.replace(instance)

        # The prices are in memory, as after earlier calls.
        await self.ask_at(
            instance,
            instance.metering.preparer.prepare_captured,
            policy,
            record,
            grant.authorized_at_ms,
        )
        if instance.begin_capture(policy, call.granted, fail, **usage) is None:
            return False
        call.captures += 1
        self.begun.append((call, instance, failures))
        self.outcomes["begun"] += 1
        await self.turns.turns(self.random.randrange(12))
        return not failures

    async def record(self) -> None:
        policy = self.random.choice(self.policies)
        request_id = minted(self.clock.now_ms(), self.random)
        if self.random.random() < 0.3:
            request_id = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        since_ms = self.clock.now_ms() - RECORDED_MS
        lately = [call for call in self.calls if call.is_given_up and call.asked_at_ms > since_ms]
        named = [call.asked_as for call in lately if call.asked_as]
        if named and self.random.random() < 0.5:  # that of a call which was not answered, or denied
            request_id = self.random.choice(named)
        usage = a_usage(
            request_id,
            model_label=self.random.choice(LABELS),
            input_tokens=self.random.randrange(300),
            output_tokens=self.random.randrange(300),
        )
        for _ in range(2):
            with suppress(*_NO_ANSWER, ConflictError, RequestIdReusedError):
                await self.ask("record", policy, usage)
                self.outcomes["recorded"] += 1

    async def expire(self) -> None:
        """Instances expire what they granted, and visit and sweep what others left."""
        for number in range(5 * INSTANCES):
            instance = self.instances[number % INSTANCES]
            await self.turns.turn()
            with suppress(*_NO_ANSWER):
                await instance.authorizations.expiry.expire_due()
                await instance.authorizations.expiry.visit_left()
                await instance.authorizations.expiry.sweep()

    async def check_begun(self) -> None:
        """A begun capture is captured, or its failure was reported, unless its process died."""
        for instance in self.instances:
            with suppress(*_NO_ANSWER):
                await instance.ledger.close()
        by_id = {one.id: one for one in self.auditor.authorizations()}
        for call, instance, failures in self.begun:
            if instance in self.instances and not failures:
                assert call.granted is not None
                is_captured = by_id[call.granted.id].state is State.CAPTURED
                assert is_captured, "a begun capture was forgotten"

    async def finish(self) -> None:
        """Let everything arrive; then let everything expire. Nothing is held any more."""
        await self.check_begun()
        survivor = self.instance(self.calm)
        last_words = LastWords(self.store, self.turns)
        if self.random.random() < 0.2:  # a sheet that arrives after everything else was swept
            self.clock.advance_ms(LATE_MS)
            await survivor.authorizations.expiry.sweep()
            with suppress(Crashed, AuthorizationDeniedError):
                await self.instance(last_words).authorize(self.policies[0], hold_secs=10)
            self.clock.advance_ms(LATE_MS)
            await survivor.authorizations.expiry.sweep()
        await self.wire.deliver()
        await last_words.deliver()
        self.look()
        if self.change is not None:
            self.clock.advance_ms(RECOUNT_AFTER_MS)
            both = (survivor, self.instance(self.calm))
            recounts = [one.recounts.recount(self.change.recounted) for one in both]
            assert all(await asyncio.gather(*recounts))
            self.auditor.end_recounts()
            self.auditor.check()
        for call in self.calls:
            if call.granted is not None and call.captures and not call.counted:
                with suppress(ConflictError):
                    captured = await survivor.capture(
                        self.change.after[call.policy] if self.change else call.policy,
                        call.id,
                        input_tokens=call.granted.grant.input_tokens // 2,
                        output_tokens=call.granted.grant.max_output_tokens // 3,
                    )
                    call.counted += not captured.is_duplicate
            assert call.counted <= 1, "a capture counted twice"
        for waited_ms in (2 * HOUR_MS, 25 * HOUR_MS):
            self.clock.advance_ms(waited_ms)
            await survivor.authorizations.expiry.sweep()
            self.look()
        await survivor.close()
        for key, balance in self.auditor.balances().items():
            assert balance.held == 0, f"{key[1]}: {balance.held} is held for ever"
        by_id = {one.shown_id: one for one in self.auditor.authorizations()}
        for call in self.calls:
            if call.granted is not None:
                assert call.id in by_id, "a grant is gone"
            if call.counted:
                assert by_id[call.id].state is State.CAPTURED


class LastWords(FaultyStore):
    """The wire of a process that dies as it writes a sheet, which arrives much later."""

    def __init__(self, store: Store, turns: Interleaving) -> None:
        super().__init__(store, turns, Faults())

    async def put(self, operation: Put) -> None:
        if not str(operation.key.sk).startswith(SHEET):
            await super().put(operation)
            return
        self._late.append(lambda: self._store.put(operation))
        raise Crashed


class Change:
    """A budget that an administrator gives in the middle of a history, and who knows of it.

    It draws its own dice, so that histories without it stay the same.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random = Random(f"change {seed}")
        new = a_budget(random.choice((50_000, 1_000_000)), name="new", window=Window.MONTH)
        of_org = random.random() < 0.5
        self.after = {
            policy: replace(
                policy,
                budgets=policy.budgets if of_org else (*policy.budgets, new),
                org_budgets=(*policy.org_budgets, new) if of_org else policy.org_budgets,
            )
            for policy in world.policies
        }
        self.policies = list(self.after.values())
        own = self.policies[0]
        org = a_policy(
            None, org_id=own.org_id, timezone=own.timezone, org_budgets=own.org_budgets,
            tag_keys=own.tag_keys,
        )  # fmt: skip
        self.recounted = [org] if of_org else self.policies
        self._made_at_ms: int | None = None
        self._told_after_ms: dict[Instance, int] = {}

    def known_to(self, instance: Instance, policy: Policy) -> Policy:
        """The policy as that instance knows it now."""
        if self._made_at_ms is None:
            self._told_after_ms.setdefault(instance, self._random.randrange(POLICY_MS_MAX))
            return policy
        after_ms = self._told_after_ms.get(instance, 0)  # one that starts later knows it at once
        told = self._world.clock.now_ms() - self._made_at_ms >= after_ms
        return self.after[policy] if told else policy

    async def make(self) -> None:
        """Give the budget after a while, and have it recounted when everybody knows of it."""
        world, random = self._world, self._random
        await world.turns.turns(random.randrange(60))
        self._made_at_ms = made_at_ms = world.clock.now_ms()
        for policy in self.policies:
            for account in accounts_of(policy, made_at_ms, {}):
                if account.name == "new":
                    world.auditor.give_late((account.key, account.id))
        for _ in range(random.randrange(40, 200)):
            await world.turns.turn()
            if world.clock.now_ms() - made_at_ms >= RECOUNT_AFTER_MS and random.random() < 0.1:
                both = random.sample(world.instances, 2)
                recounts = [one.recounts.recount(self.recounted) for one in both]
                raise_broken(await asyncio.gather(*recounts, return_exceptions=True))


def raise_broken(outcomes: Iterable[object]) -> None:
    """Raise what is not because of the wire."""
    for one in outcomes:
        if isinstance(one, BaseException) and not isinstance(one, _NO_ANSWER):
            raise one


async def simulate(seed: int) -> World:
    """One history, from ten minutes before a midnight on; raises what it finds wrong."""
    clock = ManualClock(day_start_ms(ZONES[seed % len(ZONES)], "20181104") - 90_000)
    store = MemoryStore(clock)
    await store.create_tables()
    world = World(store, clock, seed)
    changing = [] if world.change is None else [world.change.make()]
    callers = [world.caller() for _ in range(CALLERS)]
    outcomes = await world.turns.run(*callers, world.expire(), *changing)
    raise_broken(outcomes)
    await world.finish()
    if world.broken:
        raise world.broken[0]
    return world


def trace_of(seed: int, loop: type[TimelessLoop] = QuickLoop) -> str:
    """The writes of a history in order, and the items in the end."""
    store = quick_loop.run(simulate(seed), loop).store
    return hashlib.sha256(repr((store.written, store.partitions)).encode()).hexdigest()


@pytest.mark.parametrize("first", batches(HISTORIES, HISTORIES_EACH))
def test_no_budget_is_overspent_and_nothing_stays_held(first: int) -> None:
    befell: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    crashes = 0
    for seed in range(first, first + HISTORIES_EACH):
        world = quick_loop.run(simulate(seed))
        befell += world.wire.befell
        outcomes += world.outcomes
        crashes += world.crashes
    assert befell.keys() >= {"refused", "request_lost", "reply_lost", "late", "crashed"}
    assert crashes > HISTORIES_EACH // 4
    assert (
        min(outcomes[one] for one in ("granted", "denied", "captured", "begun", "recorded"))
        > HISTORIES_EACH // 5
    )


def test_a_seed_decides_everything() -> None:
    """Another process, with other hashes of texts, plays the same histories."""
    seeds = (4, 5, 12)
    play = f"from {__name__} import trace_of; print(*map(trace_of, {seeds}))"
    other = subprocess.run(  # noqa: S603
        [sys.executable, "-c", play],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.split()[-len(seeds) :] == [trace_of(seed) for seed in seeds]


def test_asyncios_own_loop_plays_the_same_histories() -> None:
    """What makes a history cheap decides nothing in it."""
    for seed in (3, 4, 6, 37):
        assert trace_of(seed, TimelessLoop) == trace_of(seed)


def test_what_the_auditor_remembers_is_what_is_there() -> None:
    """One that reads everything at once comes to the same, and finds nothing wrong either."""
    for seed in range(10):
        world = quick_loop.run(simulate(seed))
        fresh = Auditor(world.store)
        fresh.know(tuple(world.auditor.accounts.values()))
        fresh.check()
        fresh.check_records()
        assert fresh.balances() == world.auditor.balances()
        for name in ("_spent", "_due", "_counted", "_authorizations", "unsettled"):
            assert nonzero(getattr(fresh, name)) == nonzero(getattr(world.auditor, name)), name


def nonzero(sums: Any) -> Any:
    """The sums that are not zero."""
    if not isinstance(sums, dict):
        return sums
    return {key: nonzero(value) for key, value in sums.items() if nonzero(value)}


@pytest.mark.parametrize("name", BROKEN)
def test_the_same_checks_catch_a_broken_variant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seed that `docs/proof.md` names."""
    BROKEN[name](monkeypatch)
    with pytest.raises((AssertionError, PriceKeeperError, LookupError)):
        quick_loop.run(simulate(CAUGHT_BY[name]))


def test_every_broken_variant_is_in_the_document() -> None:
    listed = (Path(__file__).parents[2] / "docs" / "proof.md").read_text()
    for name, seed in CAUGHT_BY.items():
        assert f"| {name} | {seed} |" in listed
    assert CAUGHT_BY.keys() == BROKEN.keys()
