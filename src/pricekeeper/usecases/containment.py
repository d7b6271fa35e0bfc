"""Containment: what an administrator does to a client whose secret has leaked.

Each step is for one client, an organisation or an app, and raises `NotFoundError` if it is absent.
A step can be repeated after a lost reply (`OutcomeUnknownError`). ``by`` is audited in the same
write. A reason that looks like a secret is refused, because it is stored and shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pricekeeper.audit import Change
from pricekeeper.authority import Attribution
from pricekeeper.bootstrap import Services
from pricekeeper.pricing import split_micros
from pricekeeper.sessions import Session
from pricekeeper.storage import Write
from pricekeeper.tenants import Client
from pricekeeper.usecases.provisioning import frozen_answer
from pricekeeper.usecases.queries import without_secret
from pricekeeper.values import parse_reason
from pricekeeper.wire import provisioning as wire
from pricekeeper.wire.provisioning import SessionAnswer, SessionList
from pricekeeper.wire.values import rfc3339


async def revoke_credentials(
    services: Services, client: Client, secrets: str, by: Attribution
) -> wire.CredentialsRevoked:
    """Revoke a client's secrets, sessions and tokens at once; rotate for a new secret."""
    previous_only = secrets == "PREVIOUS"
    await services.credentials.revoke_now(client, _checked(by), previous_only=previous_only)
    return wire.CredentialsRevoked(client.client_id, "revoked", secrets)


async def list_sessions(services: Services, client: Client) -> SessionList:
    """Read the live sessions of a client, the oldest first."""
    policy = await services.tenants.read_registered_policy(client)
    sessions = await services.identity.list_sessions(client.client_id)
    return _session_list(sessions, policy.session_limit)


async def list_own_sessions(
    services: Services, client: Client, current_id: str = ""
) -> SessionList:
    """The live sessions, the oldest first; ``current_id`` is the one that asks."""
    policy = await services.tenants.find_registered_policy(client.org_id, client.app_id)
    sessions = await services.identity.list_sessions(client.client_id)
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


async def end_sessions(
    services: Services, client: Client, by: Attribution, session_id: str | None = None
) -> None:
    """End one session of a client, or all sessions and tokens; its secret keeps working."""
    by = _checked(by)
    if session_id is None:
        await services.identity.end_all_sessions(client.client_id, by)
    else:
        await services.tenants.read_record(client)
        await services.identity.end_session(client.client_id, session_id, by)


async def freeze(services: Services, client: Client, by: Attribution) -> wire.FreezeAnswer:
    """Refuse models and tokens to a client, or to an organisation and its apps.

    Usage is still counted.
    """
    frozen = await services.tenants.freeze(client, _checked(by))
    return wire.FreezeAnswer(client.client_id, frozen_answer(frozen))


async def unfreeze(services: Services, client: Client, by: Attribution) -> None:
    """Lift a client's own freeze, if any."""
    await services.tenants.unfreeze(client, _checked(by))


async def reset_limits(services: Services, client: Client, by: Attribution) -> wire.LimitsReset:
    """Fill the token buckets of an app, or those of an organisation that its apps share.

    The app need not be registered.
    """
    by = _checked(by)
    policy = await services.tenants.read_policy(client)

    async def commit(labels: list[str], operations: Sequence[Write]) -> None:
        details = {"labels": labels}
        change = Change("limits.reset", client.client_id, client.org_id, after=details)
        await services.trail.apply(by, change, operations)

    labels = await services.limiter.reset(policy.bucket_entity, commit=commit)
    return wire.LimitsReset(client.client_id, labels)


async def void_usage(
    services: Services, client: Client, request_id: str, by: Attribution
) -> wire.UsageVoided:
    """Remove a usage record from its totals and budgets by a correction; both stay visible.

    This returns money to budgets, so it takes a key that may raise them.
    """
    by = _checked(by)
    services.tenants.budget_rule.require_reach(by, "voiding a usage record")
    org = await services.tenants.read_policy(client)
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


async def void_authorization(
    services: Services, client: Client, authorization_id: str, by: Attribution
) -> wire.AuthorizationVoided:
    """Void an authorization of any client: its hold and tokens go back."""
    by, rule = _checked(by), services.tenants.budget_rule
    org = await services.tenants.read_policy(client)
    voided = await services.authorizations.void_for_admin(org, authorization_id, by, rule)
    return wire.AuthorizationVoided(voided.shown_id, "voided", voided.grant.terms.client_id)


def _checked(by: Attribution) -> Attribution:
    """Refuse a reason that is not printable or looks like a secret."""
    if by.reason is None:
        return by
    return replace(by, reason=without_secret("reason", parse_reason(by.reason)))
