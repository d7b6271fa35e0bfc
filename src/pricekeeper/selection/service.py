"""Selection: which model a client should call now.

A cold answer is one `batch_get`: the override and fallback items of the organisation and the
app, and the totals of the ordering's labels, read together and consistently. (The day's prices
are the price book's: one `get` a minute and model.) A warm answer costs nothing, see
`pricekeeper.selection.cache`. ``force_check`` sums the counters instead of reading totals. Callers
who ask for that within a second share one sum.

**A flip that is lost is harmless.** Totals never shrink within a day, so whoever finds a label
exceeded recommends another one whether or not the fallback can be recorded; the record keeps
everybody else, and a raised quota, from going back. So:

- the condition fails: another instance was first; the item that comes back is adopted;
- the reply is lost: the flip is sent again, which makes it or, if it was made, fails as above;
- the store can't take it: the decision holds, and the next one tries again.

**Reading fails closed.** Without the spends there is no recommendation: the store's error is
raised. A total that can't be read is replaced by the sum of its shards; where there is none either,
`UnreadableItemError` is raised to the clients of that scope. Nobody is told of a spend of nothing
because something could not be read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import NextFlight, SingleFlight
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
    Readings,
    day_start_ms,
    next_midnight_ms,
    org_day,
    total_keys,
    totals_from,
)
from pricekeeper.metering.counters import NOTHING
from pricekeeper.metering.days import date_of
from pricekeeper.pricing import PriceBook
from pricekeeper.selection import items
from pricekeeper.selection.cache import DECISIONS_MAX, DecisionCache
from pricekeeper.selection.decision import Decision
from pricekeeper.selection.fallback import Choice, Flip, Override, Reason, StickyState, choose
from pricekeeper.selection.meter import SelectionMeter
from pricekeeper.storage import Item, Key, Store, Update
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import ModelLabel

FLIP_ATTEMPTS_MAX: Final = 4
"""A lost attempt means that another instance has moved the chain on, or that a reply was lost."""
COMMAND_ATTEMPTS_MAX: Final = 8

_log = structlog.get_logger(__name__)


class _Moment(NamedTuple):
    """Now, and the organisation's day around it."""

    now_ms: int
    day: str
    starts_at_ms: int
    ends_at_ms: int


class _Findings(NamedTuple):
    """What was read for a decision."""

    spends_usd_micros: dict[ModelLabel, int]
    sticky: StickyState | None
    overrides: list[Override]


class Selection:
    """Recommends models, records fallbacks, and takes an operator's overrides."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        metering: Metering,
        prices: PriceBook,
        *,
        meter: SelectionMeter | None = None,
        entries_max: int = DECISIONS_MAX,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metering = metering
        self._prices = prices
        self.meter = meter or SelectionMeter()
        self._cache = DecisionCache(clock, entries_max)
        self._deciding: SingleFlight[Policy, Decision] = SingleFlight("pricekeeper-selection")
        self._forced: NextFlight[Policy, Decision] = NextFlight("pricekeeper-force-check")

    async def select(self, policy: Policy, *, force_check: bool = False) -> Decision:
        """The model to call now; raises `QuotaExceededError` if every quota is exhausted.

        Raises `FrozenError` if an administrator has frozen the client.
        """
        policy.require_unfrozen()
        decision = await self.assess(policy, force_check=force_check)
        if decision.label is None:
            raise decision.exhausted()
        return decision

    async def assess(self, policy: Policy, *, force_check: bool = False) -> Decision:
        """As `select`, but a decision that there is no model is returned like any other.

        It is made for frozen clients, too.

        ``force_check`` looks at the counters, and at no decision that is remembered or was begun
        before the caller came. The sum is at most a second old, and has in it all that this
        process has counted.
        """
        if force_check:
            return await self._forced.run(policy, lambda: self._decide(policy, live=True))
        decision = self._cache.get(policy)
        if decision is not None:
            self.meter.warm += 1
            return decision
        return await self._deciding.run(policy, lambda: self._decide(policy, live=False))

    async def set_override(self, policy: Policy, label: str) -> Override:
        """Recommend that label until the organisation's day ends, whatever the quotas say.

        Set on an organisation, it is for all of its apps that have none of their own. It may
        go back in the ordering, but not outside it: that is an `UnknownModelLabelError`. If the
        reply is lost (`OutcomeUnknownError`), setting it again is harmless.
        """
        if label not in policy.model_ordering:
            raise UnknownModelLabelError(label, policy.model_ordering)
        wanted = self._prices.catalogue.model(label).label
        moment = self._moment(policy)
        key = items.override_key(policy.client, moment.day)
        for _ in range(COMMAND_ATTEMPTS_MAX):
            version = items.override_version(await self._store.get(STICKY_STATE, key))
            update = items.override_update(
                key,
                wanted,
                policy.incarnation,
                version,
                now_ms=moment.now_ms,
                day_ends_at_ms=moment.ends_at_ms,
            )
            if await self._commanded(policy.client, update):
                self.meter.overrides["set"] += 1
                _log.info("override_set", client_id=policy.client_id, label=label, day=moment.day)
                return Override(policy.client, wanted, moment.now_ms // 1000)
        raise ContendedError("other commands about this override kept winning")

    async def clear_override(self, policy: Policy) -> bool:
        """Let the automatic decision resume where it was; whether there was an override."""
        moment = self._moment(policy)
        key = items.override_key(policy.client, moment.day)
        for _ in range(COMMAND_ATTEMPTS_MAX):
            item = await self._store.get(STICKY_STATE, key)
            if items.override(policy.client, policy.incarnation, item) is None:
                self._forget(policy.client)
                return False
            update = items.clear_update(key, item)
            if await self._commanded(policy.client, update):
                self.meter.overrides["cleared"] += 1
                _log.info("override_cleared", client_id=policy.client_id, day=moment.day)
                return True
        raise ContendedError("other commands about this override kept winning")

    async def _commanded(self, client: Client, update: Update) -> bool:
        """Apply a command, unless another one came first."""
        try:
            await self._store.update(update)
        except ConditionFailedError:
            return False
        finally:  # also if it is not known whether it was applied
            self._forget(client)
        return True

    def _forget(self, client: Client) -> None:
        self._cache.forget(client)
        # Whoever comes now shall not join a decision that missed the command.
        self._deciding.detach_all()

    async def _decide(self, policy: Policy, *, live: bool) -> Decision:
        reading = self._cache.reading()
        moment = self._moment(policy)
        found = await (self._sum(policy, moment) if live else self._read(policy, moment))
        choice = await self._settle(policy, moment, found)
        model = prices = None
        if choice.label is not None:
            model = self._prices.catalogue.model(choice.label)
            prices = await self._prices.prices_for(model, date_of(moment.day))
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
        self.meter.decided(decision)
        for use in choice.quotas:
            self._metering.quota_uses.note_sum(policy, use.label, moment.day, use.spend_usd_micros)
        before = self._cache.last(policy.client)
        if self._cache.keep(decision, reading):
            _log_change(before, decision)
        return decision

    def _moment(self, policy: Policy) -> _Moment:
        now_ms = self._clock.now_ms()
        day = org_day(policy.timezone, now_ms)
        starts_at_ms = day_start_ms(policy.timezone, day)
        return _Moment(now_ms, day, starts_at_ms, next_midnight_ms(policy.timezone, now_ms))

    async def _read(self, policy: Policy, moment: _Moment) -> _Findings:
        """Everything in one call."""
        states, readings = await self._read_items(policy, moment)
        totals = dict(readings.totals)
        if readings.unreadable:
            totals |= await self._metering.sums_instead(readings.unreadable)
        spends = {ModelLabel(of.label): total.cost_usd_micros for of, total in totals.items()}
        return _findings(policy, moment.day, states, spends)

    async def _sum(self, policy: Policy, moment: _Moment) -> _Findings:
        """As `_read`, with what the counters say now.

        A total that another program wrote may be all there is of an account, so that no spend
        counts less than its total. One that can't be read needs a sum in its place.
        """
        sums = await self._metering.shared_totals(
            policy.scope_key, policy.model_ordering, moment.day
        )
        states, readings = await self._read_items(policy, moment)
        for account, error in readings.unreadable.items():
            if sums[ModelLabel(account.label)].counters == NOTHING:
                raise error
        spends = {label: sums[label].cost_usd_micros for label in policy.model_ordering}
        for account, total in readings.totals.items():
            label = ModelLabel(account.label)
            spends[label] = max(spends[label], total.cost_usd_micros)
        return _findings(policy, moment.day, states, spends)

    async def _read_items(
        self, policy: Policy, moment: _Moment
    ) -> tuple[list[Item | None], Readings]:
        """The state items of `_lives`, and the totals of the ordering."""
        keys = [items.override_key(client, moment.day) for client, _ in _lives(policy)]
        accounts = [Account(policy.scope_key, label, moment.day) for label in policy.model_ordering]
        found = await self._store.batch_get(
            [*((STICKY_STATE, key) for key in keys), *total_keys(accounts)]
        )
        return found[: len(keys)], totals_from(accounts, found[len(keys) :])

    async def _settle(self, policy: Policy, moment: _Moment, found: _Findings) -> Choice:
        """Choose, and record what has to be recorded, until both agree."""
        key = items.sticky_key(policy.scope_key, moment.day)
        defined, sticky = self._prices.catalogue, found.sticky
        for _ in range(FLIP_ATTEMPTS_MAX):
            choice = choose(policy, defined, found.spends_usd_micros, sticky, found.overrides)
            if choice.flip is None:
                return choice
            try:
                await self._flip(key, choice.flip, moment)
            except ConditionFailedError as lost:
                self.meter.flips_lost += 1
                sticky = items.sticky_state(lost.item)
            except OutcomeUnknownError as unknown:
                self.meter.flips_unknown += 1
                sticky = items.sticky_state(unknown.item) or sticky
            except StoreUnavailableError as error:
                self.meter.flips_failed += 1
                _log.warning("sticky_flip_failed", scope=key.pk, error=error.code)
                return choice
            else:
                return choice.recorded()
        return choice

    async def _flip(self, key: Key, flip: Flip, moment: _Moment) -> None:
        await self._store.update(items.flip_update(key, flip, moment.now_ms, moment.ends_at_ms))
        self.meter.flips += 1
        _log.info(
            "sticky_flip",
            scope=key.pk,
            day=moment.day,
            from_label=flip.previous_label,
            to_label=flip.label,
            given_up=sorted(flip.given_up),
        )


def _lives(policy: Policy) -> list[tuple[Client, str]]:
    """Whose items are looked at, in which life: the client's own first, then its organisation's."""
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
    """Tell of a decision that differs from the one before; a day that begins as usual does not."""
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
