"""Selects the model that a client should call now.

A decision that is not cached costs one consistent `batch_get` of overrides, fallback and totals.
``force_check`` adds records posted since; callers within a second share that reading.

A lost flip is harmless: totals never shrink within a day, so another instance finds the label
exceeded, too. If a flip's condition fails, another instance was first, and its item is used; if the
reply is lost, it is sent again; if the store can't take it, the next decision tries again.

Reading fails closed. An unreadable total is replaced by the sum of its records, never by zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from pricekeeper.activity import event as activity
from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.clock import Clock
from pricekeeper.concurrency import NextFlight, SingleFlight
from pricekeeper.days import date_of
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnknownModelLabelError,
)
from pricekeeper.metering import (
    Account,
    Metering,
    day_start_ms,
    next_midnight_ms,
    org_day,
    total_keys,
    totals_from,
)
from pricekeeper.pricing import PriceBook
from pricekeeper.selection import items
from pricekeeper.selection.cache import DECISIONS_MAX, DecisionCache
from pricekeeper.selection.decision import Decision
from pricekeeper.selection.fallback import Choice, Override, Reason, StickyState, choose
from pricekeeper.selection.history import (
    FlipHistory,
    Moment,
    cleared_flip,
    comeback_flip,
    override_flip,
    quota_flip,
)
from pricekeeper.selection.meter import SelectionMeter
from pricekeeper.storage import Item, Store, Update
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import ModelLabel

FLIP_ATTEMPTS_MAX: Final = 4
"""An attempt fails if another instance has recorded a later flip, or if a reply was lost."""
COMMAND_ATTEMPTS_MAX: Final = 8
RECHECK_MS: Final = 1_000
"""How long a label may be recommended after this process has seen its quota spent."""

_log = structlog.get_logger(__name__)


class _Findings(NamedTuple):
    spends_usd_micros: dict[ModelLabel, int]
    sticky: StickyState | None
    overrides: list[Override]


class Selector:
    """Recommends models, records fallbacks, and takes an operator's overrides."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        metering: Metering,
        prices: PriceBook,
        *,
        trail: AuditTrail | None = None,
        meter: SelectionMeter | None = None,
        entries_max: int = DECISIONS_MAX,
        on_flip: Callable[[activity.Flip], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metering = metering
        self._prices = prices
        self._trail = trail or AuditTrail(store, clock)
        self.meter = meter or SelectionMeter()
        self._on_flip = on_flip
        self._history = FlipHistory(store)
        self._cache = DecisionCache(clock, entries_max)
        self._deciding: SingleFlight[Policy, Decision] = SingleFlight("pricekeeper-selection")
        self._forced: NextFlight[Policy, Decision] = NextFlight("pricekeeper-force-check")

    async def select(self, policy: Policy, *, force_check: bool = False) -> Decision:
        """Raises `QuotaExceededError` if every quota is exhausted, `FrozenError` if frozen."""
        policy.require_unfrozen()
        decision = await self.assess(policy, force_check=force_check)
        if decision.label is None:
            raise decision.exhausted()
        return decision

    async def assess(self, policy: Policy, *, force_check: bool = False) -> Decision:
        """`select`, but also returns a decision without a model, also for frozen clients.

        ``force_check`` uses live totals, at most a second old, and no decision started before the
        call.
        """
        if force_check:
            return await self._forced.run(policy, lambda: self._decide(policy, live=True))
        decision = self._cache.get(policy)
        if decision is None:
            decision = await self._deciding.run(policy, lambda: self._decide(policy, live=False))
        else:
            self.meter.warm += 1
        if self._has_seen_it_spent(decision):
            return await self._forced.run(policy, lambda: self._decide(policy, live=True))
        return decision

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def set_override(self, policy: Policy, label: str, by: Attribution) -> Override:
        """Recommend that label until the organisation's day ends, for any quotas.

        On an organisation, it applies to all apps without one of their own. A label outside of the
        ordering raises `UnknownModelLabelError`. It may be repeated after `OutcomeUnknownError`.
        """
        if label not in policy.model_ordering:
            raise UnknownModelLabelError(label, policy.model_ordering)
        wanted = self._prices.catalogue.model(label).label
        moment = self._moment(policy)
        key = items.override_key(policy.client, moment.day)
        flip = override_flip(policy, moment, wanted)
        await self._history.mark(policy.org_id, policy.app_id, moment.day)
        for _ in range(COMMAND_ATTEMPTS_MAX):
            item = await self._store.get(STICKY_STATE, key)
            update = items.override_update(
                key, wanted, policy.incarnation, items.override_version(item), flip
            )
            if await self._apply_command(policy, item, wanted, update, by):
                self._on_flip(flip)
                _log.info("override_set", client_id=policy.client_id, label=label, day=moment.day)
                return Override(policy.client, wanted, moment.now_ms // 1000)
        raise ContendedError("other commands about this override kept winning")

    async def clear_override(self, policy: Policy, by: Attribution) -> bool:
        """Return whether there was an override."""
        moment = self._moment(policy)
        key = items.override_key(policy.client, moment.day)
        for _ in range(COMMAND_ATTEMPTS_MAX):
            item = await self._store.get(STICKY_STATE, key)
            override = items.override(policy.client, policy.incarnation, item)
            if override is None:
                if await self._apply_command(policy, item, None, None, by):
                    return False
                continue
            flip = cleared_flip(policy, moment, override.label)
            update = items.clear_update(key, item, flip)
            if await self._apply_command(policy, item, None, update, by):
                self._on_flip(flip)
                _log.info("override_cleared", client_id=policy.client_id, day=moment.day)
                return True
        raise ContendedError("other commands about this override kept winning")

    def _has_seen_it_spent(self, decision: Decision) -> bool:
        """Whether this process has counted more than its quota, outside of an override."""
        label, policy = decision.label, decision.policy
        if label is None or decision.choice.override is not None:
            return False
        if decision.live and self._clock.now_ms() - decision.checked_at_ms < RECHECK_MS:
            return False
        account = Account(policy.scope_key, label, decision.org_day)
        spent = self._metering.known_spend_usd_micros(account)
        return spent is not None and spent >= policy.quotas.get(label, 0)

    async def _apply_command(
        self,
        policy: Policy,
        item: Item | None,
        label: ModelLabel | None,
        update: Update | None,
        by: Attribution,
    ) -> bool:
        """Write and audit a command; ``False`` if another came first. It may change nothing."""
        before = items.override(policy.client, policy.incarnation, item)
        change = Change(
            "override.clear" if label is None else "override.set",
            policy.client_id,
            policy.org_id,
            before=None if before is None else {"model_label": before.label},
            after=None if label is None else {"model_label": label},
        )
        try:
            await self._trail.write(by, change, update)
        except ConditionFailedError:
            return False
        finally:  # also if it is not known whether it was applied
            self._forget(policy.client)
        return True

    def _forget(self, client: Client) -> None:
        self._cache.forget(client)
        # Callers that come from now on must not join a decision that missed the command.
        self._deciding.detach_all()

    async def _decide(self, policy: Policy, *, live: bool) -> Decision:
        reading = self._cache.reading()
        moment = self._moment(policy)
        found = await self._read(policy, moment, live=live)
        choice = await self._choose_and_record(policy, moment, found)
        model = prices = None
        if choice.label is not None:
            model = self._prices.catalogue.model(choice.label)
            prices = await self._prices.find_prices(model, date_of(moment.day))
        decision = Decision(
            policy=policy,
            choice=choice,
            model=model,
            prices=prices,
            org_day=moment.day,
            day_starts_at_ms=moment.starts_at_ms,
            checked_at_ms=moment.now_ms,
            resets_at_ms=moment.ends_at_ms,
            live=live,
        )
        self.meter.count_decision(decision)
        for use in choice.quotas:
            self._metering.quota_uses.note_sum(policy, use.label, moment.day, use.spend_usd_micros)
        before = self._cache.last(policy.client)
        if self._cache.keep(decision, reading):
            _log_change(before, decision)
        return decision

    def _moment(self, policy: Policy) -> Moment:
        now_ms = self._clock.now_ms()
        day = org_day(policy.timezone, now_ms)
        starts_at_ms = day_start_ms(policy.timezone, day)
        return Moment(now_ms, day, starts_at_ms, next_midnight_ms(policy.timezone, now_ms))

    async def _read(self, policy: Policy, moment: Moment, *, live: bool) -> _Findings:
        posted = await self._metering.live.read([policy.org_id]) if live else None
        keys = [items.override_key(client, moment.day) for client, _ in _lives(policy)]
        accounts = [Account(policy.scope_key, label, moment.day) for label in policy.model_ordering]
        found = await self._store.batch_get(
            [*((STICKY_STATE, key) for key in keys), *total_keys(accounts)]
        )
        readings = totals_from(accounts, found[len(keys) :], posted)
        totals = dict(readings.totals)
        if readings.unreadable:
            summed = await self._metering.reader.sum_unreadable(readings.unreadable)
            totals |= summed.require_all()
        spends = {ModelLabel(of.label): total.cost_usd_micros for of, total in totals.items()}
        return _findings(policy, moment.day, found[: len(keys)], spends)

    async def _choose_and_record(self, policy: Policy, moment: Moment, found: _Findings) -> Choice:
        defined, sticky = self._prices.catalogue, found.sticky
        without_text = defined.skipped_by_auto(policy.model_ordering)
        for _ in range(FLIP_ATTEMPTS_MAX):
            choice = choose(
                policy, defined, found.spends_usd_micros, sticky, found.overrides, without_text
            )
            if choice.flip is None and choice.comeback is None:
                return choice
            try:
                await self._record(policy, choice, sticky, moment)
            except ConditionFailedError as lost:
                self.meter.flips_lost += 1
                sticky = items.sticky_state(lost.item)
            except OutcomeUnknownError as unknown:
                self.meter.flips_unknown += 1
                sticky = items.sticky_state(unknown.item) or sticky
            except StoreUnavailableError as error:
                self.meter.flips_failed += 1
                _log.warning("sticky_flip_failed", scope=policy.scope_key, error=error.code)
                return choice
            else:
                return choice if choice.flip is None else choice.recorded()
        return choice

    async def _record(
        self, policy: Policy, choice: Choice, sticky: StickyState | None, moment: Moment
    ) -> None:
        """Mark the day, then record a change unless another instance was first."""
        key = items.sticky_key(policy.scope_key, moment.day)
        flip, comeback = choice.flip, choice.comeback
        if flip is not None:
            entry = quota_flip(policy, choice, flip, moment)
            update = items.flip_update(key, flip, entry)
        elif comeback is not None and sticky is not None:
            entry = comeback_flip(policy, choice, comeback, moment)
            update = items.comeback_update(key, comeback, sticky.comeback_version, entry)
        else:
            return
        await self._history.mark(policy.org_id, entry.app_id, moment.day)
        await self._store.update(update)
        self.meter.flips += flip is not None
        if flip is None or items.is_change(entry):
            self._on_flip(entry)
        _log.info(
            "sticky_comeback" if flip is None else "sticky_flip",
            scope=key.pk,
            day=moment.day,
            from_label=entry.from_label,
            to_label=entry.to_label,
            reason=entry.reason,
            given_up=sorted(flip.given_up if flip is not None else ()),
        )


def _lives(policy: Policy) -> list[tuple[Client, str]]:
    org = (policy.client.org, policy.org_incarnation)
    return [org] if policy.app_id is None else [(policy.client, policy.incarnation), org]


def _findings(
    policy: Policy, day: str, states: list[Item | None], spends: dict[ModelLabel, int]
) -> _Findings:
    owned = list(zip(_lives(policy), states, strict=True))
    found = [items.override(*life, item) for life, item in owned]
    overrides = [override for override in found if override is not None]
    scope = items.sticky_key(policy.scope_key, day)
    in_scope = next(item for (one, _), item in owned if items.override_key(one, day) == scope)
    return _Findings(spends, items.sticky_state(in_scope), overrides)


def _log_change(before: Decision | None, now: Decision) -> None:
    """Log a decision that differs from the one before; a normal first one is not logged."""
    if before is None:
        if now.label is not None and now.choice.reason is Reason.NORMAL:
            return
    elif (before.label, before.choice.override) == (now.label, now.choice.override):
        return
    _log.info(
        "selection_changed",
        client_id=now.policy.client_id,
        scope=now.policy.scope_key,
        day=now.org_day,
        from_label=None if before is None else before.label,
        to_label=now.label,
        reason=now.choice.reason.value,
        explanation=now.explanation,
    )
