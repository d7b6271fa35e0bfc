"""What an administrator does to a client whose secret has leaked.

``by`` says who asks, from where, and why as they have written it. A reason is shown and stored, so
it is refused if it looks like a secret.
"""

from __future__ import annotations

from dataclasses import replace

from pricekeeper.bootstrap import Services
from pricekeeper.errors import InvalidValueError
from pricekeeper.pricing import split_micros
from pricekeeper.telemetry.logs import contains_secret
from pricekeeper.tenants import Client
from pricekeeper.usecases.provisioning import frozen_answer
from pricekeeper.usecases.sessions import session_list
from pricekeeper.usecases.wire import containment as wire
from pricekeeper.usecases.wire.sessions import SessionList
from pricekeeper.usecases.wire.values import rfc3339
from pricekeeper.values import Attribution, parse_reason


async def revoke_credentials(
    services: Services, client: Client, secrets: str, by: Attribution
) -> wire.CredentialsRevoked:
    """Stop a client's secrets, sessions and tokens at once; a rotation gives it a secret again."""
    await services.containment.revoke_credentials(
        client, _checked(by), previous_only=secrets == "PREVIOUS"
    )
    return wire.CredentialsRevoked(client.client_id, "revoked", secrets)


async def list_sessions(services: Services, client: Client) -> SessionList:
    """Read the live sessions of a client, the oldest first."""
    policy, sessions = await services.containment.list_sessions(client)
    return session_list(sessions, policy.session_limit)


async def end_sessions(
    services: Services, client: Client, by: Attribution, session_id: str | None = None
) -> None:
    """End one session of a client, or every one and all of its tokens; its secret goes on."""
    if session_id is None:
        await services.containment.end_all_sessions(client, _checked(by))
    else:
        await services.containment.end_session(client, session_id, _checked(by))


async def freeze(services: Services, client: Client, by: Attribution) -> wire.FreezeAnswer:
    """Refuse models and tokens to a client, or to an organisation and its apps; usage counts on."""
    frozen = await services.containment.freeze(client, _checked(by))
    return wire.FreezeAnswer(client.client_id, frozen_answer(frozen))


async def unfreeze(services: Services, client: Client, by: Attribution) -> None:
    """Lift a client's own freeze, if it has one."""
    await services.containment.unfreeze(client, _checked(by))


async def reset_limits(services: Services, client: Client, by: Attribution) -> wire.LimitsReset:
    """Fill the token buckets of a client: of an app, or of an organisation without its apps."""
    labels = await services.containment.reset_limits(client, _checked(by))
    return wire.LimitsReset(client.client_id, labels)


async def void_usage(
    services: Services, client: Client, request_id: str, by: Attribution
) -> wire.UsageVoided:
    """Take a usage record out of its totals and budgets, by a correction; both stay visible."""
    by = _checked(by)
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
    """Give back what any client of the organisation was granted: the call is not to be made."""
    by = _checked(by)
    org = await services.tenants.read_policy(client)
    voided = await services.authorizations.void_for_admin(org, authorization_id, by)
    return wire.AuthorizationVoided(voided.shown_id, "voided", voided.grant.client_id)


def _checked(by: Attribution) -> Attribution:
    """The same with a reason that people can be shown, if there is one."""
    if by.reason is None:
        return by
    reason = parse_reason(by.reason)
    if contains_secret(reason):
        raise InvalidValueError("reason", "has something in it that looks like a secret")
    return replace(by, reason=reason)
