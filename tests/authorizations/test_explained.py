"""A denial is complete and minimal: raising exactly what it names admits the call.

Chains are random: budgets of an app and its organisation with several windows and labels, hard and
soft, strict quotas and rate limits, with some earlier calls. Everything that a denial names is
raised by the shortfall, and the call must pass. With any one of them unchanged it must not.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from authorizations.conftest import Instance, a_budget
from memory_store import MemoryStore
from metering.conftest import LABELS, a_policy
from pricekeeper.clock import ManualClock
from pricekeeper.errors import AuthorizationDeniedError, DeniedBy, Obstacle
from pricekeeper.metering import Aggregator
from pricekeeper.tenants import (
    Budget,
    Enforcement,
    Policy,
    QuotaEnforcement,
    QuotaScope,
    RateLimit,
    Window,
)
from pricekeeper.values import ModelLabel
from selection.conftest import NOON_MS

EXAMPLES = 300
PICOS_PER_MICRO = 1_000_000
Request: TypeAlias = dict[str, Any]


class Example(msgspec.Struct, frozen=True):
    """A chain, the calls before, and the call that may be denied."""

    policy: Policy
    before: list[tuple[Request, bool]]
    """Each with whether it was captured; else it is held."""
    request: Request


@st.composite
def budgets(draw: st.DrawFn, prefix: str) -> tuple[Budget, ...]:
    return tuple(
        a_budget(
            draw(st.integers(0, 30_000)),
            name=f"{prefix}{number}",
            window=draw(st.sampled_from(Window)),
            labels=tuple(draw(st.lists(st.sampled_from(LABELS), unique=True, max_size=2))),
            enforcement=draw(st.sampled_from((Enforcement.HARD,) * 3 + (Enforcement.SOFT,))),
        )
        for number in range(draw(st.integers(0, 3)))
    )


@st.composite
def limits(draw: st.DrawFn) -> dict[str, dict[str, RateLimit]]:
    found = {}
    if draw(st.booleans()):
        found["rpm"] = RateLimit(draw(st.integers(1, 3)), 1, 3_600_000)
    if draw(st.booleans()):
        found["tpm"] = RateLimit(draw(st.integers(1, 5_000)), 1, 60_000)
    return {draw(st.sampled_from(("*", *LABELS))): found} if found else {}


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return {
        "model": draw(st.sampled_from(("auto", *LABELS))),
        "fallback": draw(st.sampled_from((None, True, False))),
        "input_tokens": draw(st.integers(0, 2_000)),
        "max_output_tokens": draw(st.integers(0, 2_000)),
        "allow_lower_max_output": draw(st.booleans()),
        "min_output_tokens": draw(st.sampled_from((1, 300))),
    }


@st.composite
def examples(draw: st.DrawFn) -> Example:
    policy = a_policy(
        budgets=draw(budgets("app")),
        org_budgets=draw(budgets("org")),
        quotas={label: draw(st.integers(0, 9)) ** 5 for label in LABELS},
        quota_scope=draw(st.sampled_from(QuotaScope)),
        quota_enforcement=draw(st.sampled_from(QuotaEnforcement)),
        sticky_fallback_enabled=draw(st.booleans()),
        rate_limits=draw(limits()),
        org_rate_limits=draw(limits()),
    )
    before = draw(st.lists(st.tuples(requests(), st.booleans()), max_size=4))
    return Example(policy, before, draw(requests()))


@pytest.mark.slow
@given(examples())
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_raising_exactly_what_a_denial_names_admits_the_call(example: Example) -> None:
    asyncio.run(check(example))


def test_a_limit_that_a_shorter_answer_keeps_is_not_named() -> None:
    """A call that may be fitted is denied by what denies its shortest answer, and nothing else."""
    requests, tokens = RateLimit(1, 1, 3_600_000), RateLimit(1, 1, 60_000)
    policy = a_policy(rate_limits={"*": {"rpm": requests}}, org_rate_limits={"*": {"tpm": tokens}})
    first = {"model": "economy", "input_tokens": 0, "max_output_tokens": 0}
    fitted = {**first, "max_output_tokens": 2, "allow_lower_max_output": True}
    asyncio.run(check(Example(policy, [(first, False)], fitted)))


async def check(example: Example) -> None:
    clock = ManualClock(NOON_MS)
    instance = Instance(MemoryStore(clock), clock, seed=1)
    for request, is_captured in example.before:
        with suppress(AuthorizationDeniedError):
            made = await instance.authorize(example.policy, **request)
            if is_captured:
                grant = made.authorization.grant
                await instance.capture(
                    example.policy,
                    made.authorization.id,
                    input_tokens=grant.input_tokens,
                    output_tokens=grant.max_output_tokens // 2,
                )
    await check_denial(instance, example.policy, example.request)


async def check_denial(
    instance: Instance, policy: Policy, request: Request, names: Sequence[str] | None = None
) -> None:
    """Raising all that denies the call admits it, and nothing less does; ``names`` it."""
    denied_by = await find_denial(instance, policy, request)
    assert names is None or [one.name for one in denied_by] == names
    for left_out in denied_by:
        raised = with_raised(policy, (one for one in denied_by if one is not left_out))
        still = await find_denial(instance, raised, request)
        assert still, f"it is admitted without {left_out.text}"
    if denied_by:
        await instance.authorize(with_raised(policy, denied_by), **request)
    await instance.close()


async def find_denial(instance: Instance, policy: Policy, request: Request) -> tuple[DeniedBy, ...]:
    """What denies the call; nothing is taken if nothing does."""
    try:
        await instance.authorize(policy, **request, dry_run=True)
    except AuthorizationDeniedError as denied:
        assert denied.denied_by
        return denied.denied_by
    return ()


def with_raised(policy: Policy, denied_by: Iterable[DeniedBy]) -> Policy:
    """The policy with each of these raised by what is missing, and nothing else."""
    for one in denied_by:
        missing_usd_micros = -((one.remaining - one.needed) // PICOS_PER_MICRO)
        field = "rate_limits" if one.kind is Obstacle.LIMIT else "budgets"
        if one.kind is Obstacle.QUOTA:
            label = ModelLabel(one.label or "")
            quotas = {**policy.quotas, label: policy.quotas[label] + missing_usd_micros}
            policy = replace(policy, quotas=quotas)
            continue
        if one.scope == "ORG":
            field = f"org_{field}"
        if one.kind is Obstacle.LIMIT:
            raised: Any = raise_limit(getattr(policy, field), one)
        else:
            raised = tuple(
                msgspec.structs.replace(
                    budget, limit_usd_micros=budget.limit_usd_micros + missing_usd_micros
                )
                if budget.name == one.name
                else budget
                for budget in getattr(policy, field)
            )
        policy = replace(policy, **{field: raised})
    return policy


def raise_limit(
    limits: dict[str, dict[str, RateLimit]], denied: DeniedBy
) -> dict[str, dict[str, RateLimit]]:
    """Raise the capacity for one label.

    A bucket keeps its relative level. An empty one would stay empty, so there the limit is removed.
    """
    assert denied.label is not None
    own = {**limits.get("*", {}), **limits.get(denied.label, {})}
    limit = own[denied.name]
    if denied.remaining > 0:
        capacity = -(-limit.capacity * denied.needed // denied.remaining)
        own[denied.name] = RateLimit(capacity, limit.refill_amount, limit.refill_period_ms)
        return {**limits, denied.label: own}
    every: dict[str, dict[str, RateLimit]] = {
        label: {**limits.get("*", {}), **limits.get(label, {})} for label in LABELS
    }
    del every[denied.label][denied.name]
    return every


async def test_a_budget_is_named_also_if_every_advisory_quota_is_spent() -> None:
    """Selection finds no label at all then; the quota alone would not be the whole truth."""
    clock = ManualClock(NOON_MS)
    store = MemoryStore(clock)
    instance = Instance(store, clock, seed=1)
    policy = a_policy(
        quotas=dict.fromkeys(LABELS, 1),
        sticky_fallback_enabled=False,
        budgets=(a_budget(30_000),),
    )
    for label in LABELS:
        made = await instance.authorize(policy, model=label)
        await instance.capture(policy, made.authorization.id)
    await Aggregator(store, clock).run_once()
    request: Request = {"model": "auto", "max_output_tokens": 200_000, "input_tokens": 0}
    await check_denial(instance, policy, request, ["daily", "quota-premium"])


async def test_a_label_that_was_given_up_is_named_with_all_else_if_nothing_else_may_be_used() -> (
    None
):
    """A call that only fits one model: its quota was spent and given up, and a budget is spent."""
    clock = ManualClock(NOON_MS)
    store = MemoryStore(clock)
    instance = Instance(store, clock, seed=1)
    policy = a_policy(quotas=dict.fromkeys(LABELS, 1), budgets=(a_budget(20_000),))
    made = await instance.authorize(policy, model=LABELS[0])
    await instance.capture(policy, made.authorization.id)
    await Aggregator(store, clock).run_once()
    assert (await instance.selection.select(policy)).label == LABELS[1]
    clock.advance_ms(10_000)  # and no decision is remembered
    request: Request = {"model": "auto", "among": LABELS[:1]}
    await check_denial(instance, policy, request, ["daily", f"quota-{LABELS[0]}"])
