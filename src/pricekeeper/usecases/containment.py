"""Containment: what an administrator does to a client whose secret has leaked.

Each step is for one client, an organisation or an app, and raises `NotFoundError` if it is absent.
A step can be repeated after a lost reply (`OutcomeUnknownError`). The caller is audited in the
same write. A reason that looks like a secret is refused, because it is stored and shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pricekeeper.audit import Change
from pricekeeper.authority import Attribution
from pricekeeper.pricing import split_micros
from pricekeeper.sessions import Session
from pricekeeper.storage import Write
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.provisioning import frozen_answer
from pricekeeper.usecases.queries import without_secret
from pricekeeper.values import parse_reason
from pricekeeper.wire import provisioning as wire
from pricekeeper.wire.provisioning import SessionAnswer, SessionList
from pricekeeper.wire.values import rfc3339


async def revoke_credentials(ask: Ask) -> wire.CredentialsRevoked:
    """Revoke a client's secrets, sessions and tokens at once; rotate for a new secret."""
    secrets, credentials = ask.body.secrets, ask.services.credentials
    previous_only = secrets == "PREVIOUS"
    await credentials.revoke_now(ask.client, _by(ask), previous_only=previous_only)
    return wire.CredentialsRevoked(ask.client.client_id, "revoked", secrets)


async def list_sessions(ask: Ask) -> SessionList:
    """Read the live sessions of a client, the oldest first."""
    services, client = ask.services, ask.client
    policy = await services.tenants.read_registered_policy(client)
    sessions = await services.identity.list_sessions(client.client_id)
    return _session_list(sessions, policy.session_limit)


async def list_own_sessions(ask: Ask) -> SessionList:
    """The live sessions of the caller, the oldest first."""
    services, client = ask.services, ask.caller
    policy = await services.tenants.find_registered_policy(client.org_id, client.app_id)
    sessions = await services.identity.list_sessions(client.client_id)
    current_id = "" if ask.principal is None else ask.principal.session_id
    return _session_list(sessions, policy.session_limit, current_id)


def _session_list(sessions: Sequence[Session], limit: int, current_id: str = "") -> SessionList:
    answers = [
        SessionAnswer(
            session_id=str(session.id),
            created_at=rfc3339(session.opened_at_ms),
            last_used_at=rfc3339(session.refreshed_at_ms),
            expires_at=rfc3339(session.ends_at_epoch * 1000),
            user_agent=session.labels.user_agent,
            address=session.labels.address,
            current=str(session.id) == current_id,
        )
        for session in sessions
    ]
    return SessionList(answers, limit)


async def end_sessions(ask: Ask) -> None:
    """End all sessions and tokens of a client; its secret keeps working."""
    await ask.services.identity.end_all_sessions(ask.client.client_id, _by(ask))


async def end_session(ask: Ask) -> None:
    """End one session of a client."""
    by = _by(ask)
    await ask.services.tenants.read_record(ask.client)
    await ask.services.identity.end_session(ask.client.client_id, ask.path["session_id"], by)


async def freeze(ask: Ask) -> wire.FreezeAnswer:
    """Refuse models and tokens to a client, or to an organisation and its apps.

    Usage is still counted.
    """
    frozen = await ask.services.tenants.freeze(ask.client, _by(ask))
    return wire.FreezeAnswer(ask.client.client_id, frozen_answer(frozen))


async def unfreeze(ask: Ask) -> None:
    """Lift a client's own freeze, if any."""
    await ask.services.tenants.unfreeze(ask.client, _by(ask))


async def reset_limits(ask: Ask) -> wire.LimitsReset:
    """Fill the token buckets of an app, or those of an organisation that its apps share.

    The app need not be registered.
    """
    by, services, client = _by(ask), ask.services, ask.client
    policy = await services.tenants.read_policy(client)

    async def commit(labels: list[str], operations: Sequence[Write]) -> None:
        details = {"labels": labels}
        change = Change("limits.reset", client.client_id, client.org_id, after=details)
        await services.trail.apply(by, change, operations)

    labels = await services.limiter.reset(policy.bucket_entity, commit=commit)
    return wire.LimitsReset(client.client_id, labels)


async def void_usage(ask: Ask) -> wire.UsageVoided:
    """Remove a usage record from its totals and budgets by a correction; both stay visible.

    This returns money to budgets, so it takes a key that may raise them.
    """
    by, services, request_id = _by(ask), ask.services, ask.path["request_id"]
    services.tenants.budget_rule.require_reach(by, "voiding a usage record")
    org = await services.tenants.read_policy(ask.client)
    about_ms = await services.authorizations.find_captured_ms(org, request_id)
    voided, sums = await services.voider.void(org, request_id, by, about_ms)
    services.metering.note_voided(sums)
    record = voided.record
    return wire.UsageVoided(
        request_id=record.request_id,
        status="voided",
        correction_id=voided.correction_id,
        voided_at=rfc3339(voided.at_ms),
        app_id=record.terms.app_id,
        model_label=record.terms.label,
        cost_usd_micros=split_micros(record.entry.cost_usd_picos)[0],
    )


async def void_authorization(ask: Ask) -> wire.AuthorizationVoided:
    """Void an authorization of any client: its hold and tokens go back."""
    by, services, voided_id = _by(ask), ask.services, ask.path["authorization_id"]
    org, rule = await services.tenants.read_policy(ask.client.org), services.tenants.budget_rule
    voided = await services.authorizations.void_for_admin(org, voided_id, by, rule)
    return wire.AuthorizationVoided(voided.shown_id, "voided", voided.grant.terms.client_id)


def _by(ask: Ask) -> Attribution:
    """The caller; refuses a reason that is not printable or looks like a secret."""
    by = ask.by_reason
    if by.reason is None:
        return by
    return replace(by, reason=without_secret("reason", parse_reason(by.reason)))
