"""Usage records, model selection and rate limits of apps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from pricekeeper.activity import DeniedKind
from pricekeeper.authorizations import named_limits
from pricekeeper.bedrock import AUTO
from pricekeeper.bootstrap import Services
from pricekeeper.errors import RateLimitExceededError, UnknownModelLabelError, Violation
from pricekeeper.limiter import Limit, LimitsSource, LimitStatus
from pricekeeper.metering import Recorded, Usage, UsageStatus, day_start_ms
from pricekeeper.pricing import PICOS_PER_MICRO, Prices
from pricekeeper.selection import Decision, QuotaStatus, quota_pct_hundredths, quota_status
from pricekeeper.tenants import Policy
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.denying import noting
from pricekeeper.values import ModelLabel
from pricekeeper.wire import runtime as wire
from pricekeeper.wire.values import parse_timestamp, rfc3339

TOTALS_REMEMBERED_MAX: Final = 1_024
_STATUSES: Final = {status.value: status for status in UsageStatus}
_PRICE_NAMES: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


async def record_usage(
    services: Services, policy: Policy, body: wire.UsageBody
) -> wire.UsageAnswer:
    """Count the usage of one model call, exactly once."""
    return recorded_answer(
        await services.authorizations.recording.record(policy, usage_of(body)), policy
    )


async def acquire(services: Services, policy: Policy, body: wire.AcquireBody) -> wire.Acquired:
    """Take tokens from the buckets of a label, all or nothing."""
    catalogue = services.prices.catalogue
    with noting(services, policy, DeniedKind.LIMITS, body.resource):
        policy.require_unfrozen()
        if body.resource not in catalogue:
            raise UnknownModelLabelError(body.resource, catalogue.labels, "resource")
        model = catalogue.model(body.resource)
        try:
            lease = await services.limiter.acquire(
                policy.bucket_entity,
                model.label,
                body.consume,
                parents=_parents(policy),
                limits=_limits(policy),
                lease_id=body.lease_id,
            )
        except RateLimitExceededError as denied:
            services.alerts.note_asked(policy, is_denied=True)
            raise RateLimitExceededError(
                [_scoped(violation, policy) for violation in denied.violations]
            ) from denied
    services.alerts.note_asked(policy, is_denied=False)
    return wire.Acquired(
        lease.id,
        granted=True,
        limits={name: limit_state(status) for name, status in lease.limits.items()},
        burn_down_factor_permille=model.burn_down_factor_permille,
    )


async def select(services: Services, policy: Policy, *, force_check: bool) -> Decision:
    """Choose the model that an app should call now; raises if there is none."""
    with noting(services, policy, DeniedKind.SELECTION, AUTO):
        return await services.selection.select(policy, force_check=force_check)


async def adjust(ask: Ask) -> wire.Adjusted:
    """Settle a lease to the real use; each adjustment applies once."""
    lease_id, body = ask.path["lease_id"], ask.body
    held = await ask.services.limiter.adjust(
        ask.policy.bucket_entity, lease_id, body.delta, adjustment_id=body.adjustment_id
    )
    return wire.Adjusted(lease_id, dict(held))


async def release(ask: Ask) -> None:
    """Return everything that a lease holds."""
    await ask.services.limiter.release(ask.policy.bucket_entity, ask.path["lease_id"])


async def list_limits(ask: Ask) -> wire.LimitList:
    """Read the buckets that a client takes from, its organisation's included."""
    policy = ask.policy
    source, entities = _limits(policy), (policy.bucket_entity, *_parents(policy))
    buckets = [
        (entity, str(label))
        for entity in entities
        for label in policy.model_ordering
        if source(entity, label)
    ]
    found = await ask.services.limiter.peek_many(buckets, limits=source) if buckets else []
    states: dict[str, dict[str, dict[str, wire.BucketState]]] = {entity: {} for entity in entities}
    for (entity, label), statuses in zip(buckets, found, strict=True):
        states[entity][label] = {
            name: wire.BucketState(
                status.remaining,
                status.limit.capacity,
                rfc3339(status.full_at_ms),
                status.consumed,
            )
            for name, status in statuses.items()
        }
    own, *parents = states.values()
    return wire.LimitList(own, parents[0] if parents else {})


def usage_of(body: wire.UsageBody) -> Usage:
    """The record of a body."""
    return make_usage(body, body.request_id, body.model_label)


def make_usage(body: wire.UsedBody, request_id: str, model_label: str) -> Usage:
    """The usage in a body, with an id and a label."""
    return Usage(
        request_id=request_id,
        model_label=model_label,
        input_tokens=body.input_tokens,
        output_tokens=body.output_tokens,
        cache_read_tokens=body.cache_read_tokens,
        cache_write_5m_tokens=body.cache_write_5m_tokens,
        cache_write_1h_tokens=body.cache_write_1h_tokens,
        service_tier=body.service_tier,
        batch=body.batch,
        bedrock_model_id=body.bedrock_model_id,
        calling_region=body.calling_region,
        status=_STATUSES[body.status],
        timestamp_ms=None if body.timestamp is None else parse_timestamp(body.timestamp),
        tags=body.tags,
    )


def recorded_answer(recorded: Recorded, policy: Policy) -> wire.UsageAnswer:
    """Describe counted usage."""
    receipt = recorded.receipt
    return wire.UsageAnswer(
        request_id=recorded.request_id,
        status=recorded.outcome,
        cost_usd_micros=recorded.cost_usd_micros,
        pricing_version=receipt.pricing_version,
        shard_id=receipt.shard_id,
        org_day=receipt.org_day,
        daily_total=daily_total_answer(recorded, policy),
        price_estimated=receipt.price_estimated,
    )


def daily_total_answer(recorded: Recorded, policy: Policy) -> wire.DailyTotalAnswer | None:
    """The day of a record, if its total is known."""
    receipt, total = recorded.receipt, recorded.daily_total
    if total is None:
        return None
    return _daily_total_answer(
        total.cost_usd_picos,
        total.requests,
        total.as_of_ms,
        policy.quotas.get(ModelLabel(receipt.model_label), 0),
        policy.tight_mode_threshold_pct,
        policy.timezone,
        receipt.org_day,
    )


@lru_cache(maxsize=TOTALS_REMEMBERED_MAX)
def _daily_total_answer(
    cost_usd_picos: int,
    requests: int,
    as_of_ms: int,
    quota_usd_micros: int,
    tight_pct: int,
    timezone: str,
    org_day: str,
) -> wire.DailyTotalAnswer:
    """All records of one commit share it."""
    spend_usd_micros = cost_usd_picos // PICOS_PER_MICRO
    percent, mode = quota_use(spend_usd_micros, quota_usd_micros, tight_pct)
    # Before the first aggregation: nothing was counted when the day began.
    told_ms = max(as_of_ms, day_start_ms(timezone, org_day))
    return wire.DailyTotalAnswer(spend_usd_micros, requests, percent, mode, rfc3339(told_ms))


def quota_use(
    spend_usd_micros: int, quota_usd_micros: int, tight_pct: int
) -> tuple[float, QuotaStatus]:
    """The spent share of a quota, in percent with two decimals, and its status."""
    hundredths = quota_pct_hundredths(spend_usd_micros, quota_usd_micros)
    return hundredths / 100, quota_status(spend_usd_micros, quota_usd_micros, tight_pct)


def selection_answer(decision: Decision) -> wire.SelectionAnswer:
    """Describe a decision: the model to call now, and why."""
    policy, choice, model, prices = (
        decision.policy,
        decision.choice,
        decision.model,
        decision.prices,
    )
    if model is None or prices is None:  # pragma: no cover - select() has raised then
        raise decision.exhausted()
    used = {use.label: use for use in choice.quotas}
    mine = used[model.label]
    guidance = decision.guidance(decision.checked_at_ms)
    return wire.SelectionAnswer(
        recommended_model=wire.RecommendedModel(
            model.label,
            model.bedrock_model_id,
            choice.reason,
            model.description,
            model.burn_down_factor_permille,
        ),
        quota_status=wire.QuotaStatus(
            scope=policy.quota_scope,
            mode=decision.mode,
            current_model=model.label,
            spend_usd_micros=mine.spend_usd_micros,
            quota_usd_micros=mine.quota_usd_micros,
            quota_pct=mine.quota_pct_hundredths / 100,
            sticky_fallback_active=choice.sticky_fallback_active,
            models_status={
                label: wire.ModelStatus(
                    use.spend_usd_micros,
                    use.quota_usd_micros,
                    use.quota_pct_hundredths / 100,
                    use.status,
                )
                for label, use in used.items()
            },
        ),
        pricing=_pricing(prices),
        client_guidance=wire.Guidance(
            guidance.check_frequency, guidance.cache_duration_secs, decision.explanation
        ),
        checked_at=rfc3339(decision.checked_at_ms),
        org_day=decision.org_day,
        org_local_time=decision.org_local_time.isoformat(timespec="seconds"),
        resets_at=rfc3339(decision.resets_at_ms),
    )


def _pricing(prices: Prices) -> dict[str, Any]:
    rates = prices.table.default
    named = {
        f"{name}_price_usd_micros_per_1m": price
        for name in _PRICE_NAMES
        if (price := getattr(rates, name)) is not None
    }
    return {**named, "version": prices.version, "source": prices.source}


def _limits(policy: Policy) -> LimitsSource:
    def source(entity: str, resource: str) -> Sequence[Limit]:
        own = entity == policy.bucket_entity
        return named_limits(policy.rate_limits if own else policy.org_rate_limits, resource)

    return source


def _parents(policy: Policy) -> Sequence[str]:
    return (policy.org_bucket_entity,) if policy.org_rate_limits else ()


def _scoped(violation: Violation, policy: Policy) -> Violation:
    if violation.entity == policy.bucket_entity:
        return replace(violation, entity=policy.client_id, scope="APP")
    return replace(violation, entity=policy.client.org.client_id, scope="ORG")


def limit_state(status: LimitStatus) -> wire.LimitState:
    """Describe the state of a limit."""
    return wire.LimitState(status.remaining, status.limit.capacity, rfc3339(status.full_at_ms))
