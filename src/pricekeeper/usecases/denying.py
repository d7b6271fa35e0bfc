"""Explains denials to callers, and notes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pricekeeper import errors
from pricekeeper.activity import Denial, DeniedKind, bounded_why
from pricekeeper.bootstrap import Services
from pricekeeper.tenants import Policy
from pricekeeper.wire.values import rfc3339

API_SCOPE: Final = "API"
"""The scope of a limit of the API itself."""
MODEL_LENGTH_MAX: Final = 256
DENIALS: Final = (
    errors.AuthorizationDeniedError,
    errors.FrozenError,
    errors.QuotaExceededError,
    errors.RateLimitExceededError,
)


@contextmanager
def noting(services: Services, policy: Policy, kind: DeniedKind, model: str) -> Iterator[None]:
    """Note a denial that is raised in this block."""
    try:
        yield
    except DENIALS as error:
        note_denial(services, policy, kind, model, None, error)
        raise


def note_denial(
    services: Services,
    policy: Policy,
    kind: DeniedKind,
    model: str,
    tags: Mapping[str, str] | None,
    error: errors.PriceKeeperError,
) -> None:
    """Note a denial with its explanation."""
    why = {"client_id": policy.client_id, "detail": str(error), **explain(error)}
    if tags:
        why["tags"] = dict(tags)
    denial = Denial(
        policy.org_id,
        policy.app_id,
        kind,
        model[:MODEL_LENGTH_MAX],
        code_of(error),
        services.clock.now_ms(),
        tuple(_obstacles(error)),
        bounded_why(why),
    )
    services.activity.note_denial(denial, policy.org_name, policy.app_name)


def explain(error: errors.PriceKeeperError) -> dict[str, Any]:
    """Explain a denial; empty for any other error."""
    explaining = _EXPLAINING.get(type(error))
    return {} if explaining is None else explaining(error)


def code_of(error: errors.PriceKeeperError) -> str:
    """The code of a denial: money, speed, or an administrator."""
    if not isinstance(error, errors.AuthorizationDeniedError):
        return error.code
    kind = errors.RateLimitExceededError if error.by_speed else errors.QuotaExceededError
    return kind.code


def _obstacles(error: errors.PriceKeeperError) -> Iterator[str]:
    """They identify equal denials."""
    if isinstance(error, errors.AuthorizationDeniedError):
        for one in error.denied_by:
            yield f"{one.kind}/{one.scope}/{one.name}/{one.label or ''}"
    elif isinstance(error, errors.RateLimitExceededError):
        for violation in error.violations:
            yield f"LIMIT/{violation.scope}/{violation.limit}/{violation.resource}"
    elif isinstance(error, errors.FrozenError):
        yield f"FROZEN/{error.scope}"


def _explain_quota(error: errors.QuotaExceededError) -> dict[str, Any]:
    models = {label: {"quota_pct": hundredths / 100} for label, hundredths in error.models.items()}
    return {"models": models, "retry_after": rfc3339(error.resets_at_ms)}


def _explain_freeze(error: errors.FrozenError) -> dict[str, Any]:
    frozen_at = rfc3339(error.frozen_at_epoch * 1000)
    return {"reason": error.reason, "frozen_at": frozen_at, "scope": error.scope}


def _explain_limits(error: errors.RateLimitExceededError) -> dict[str, Any]:
    return {
        "violations": [
            {
                "scope": violation.scope or API_SCOPE,
                "limit": violation.limit,
                "requested": violation.requested,
                "available": violation.available,
                **(
                    {"never": True}
                    if violation.retry_after_ms is None
                    else {"retry_after_ms": violation.retry_after_ms}
                ),
            }
            for violation in error.violations
        ]
    }


def _explain_authorization(error: errors.AuthorizationDeniedError) -> dict[str, Any]:
    return {
        "denied_by": [_denied_by(one) for one in error.denied_by],
        "considered": [
            {"label": label, "outcome": "SKIPPED", "because": because}
            for label, because in error.considered
        ],
    }


def _denied_by(one: errors.DeniedBy) -> dict[str, Any]:
    """Micro-dollars: needed rounded up, remaining rounded down."""
    when: dict[str, Any] = {"never": True}
    if one.retry_after_ms is not None:
        when = {"retry_after_ms": one.retry_after_ms}
    elif one.resets_at_ms is not None:
        when = {"resets_at": rfc3339(one.resets_at_ms)}
    return {
        "kind": one.kind.value,
        "name": one.name,
        "scope": one.scope,
        **({} if one.label is None else {"label": one.label}),
        "needed": one.shown_needed,
        "remaining": one.shown_remaining,
        **when,
    }


_EXPLAINING: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {
    errors.AuthorizationDeniedError: _explain_authorization,
    errors.FrozenError: _explain_freeze,
    errors.QuotaExceededError: _explain_quota,
    errors.RateLimitExceededError: _explain_limits,
}
