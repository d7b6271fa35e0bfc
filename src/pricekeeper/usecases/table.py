"""The use case of each operation, and which parts of a request it gets.

Other operations have handlers in `http.routes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from pricekeeper.errors import NotFoundError
from pricekeeper.usecases import (
    activity,
    admin_keys,
    aggregates,
    alerts,
    audit,
    authorizations,
    budgets,
    containment,
    forecast,
    provisioning,
    runtime,
    spend,
    usage_records,
)
from pricekeeper.usecases.asking import Ask
from pricekeeper.wire import operations as ops
from pricekeeper.wire.operation import by_name

UseCase: TypeAlias = Callable[[Ask], Awaitable[Any]]
"""Its result is the body of the answer."""


async def _list_alerts(ask: Ask) -> Any:
    request = alerts.parse_request(ask.query)
    ask.require_org_reader()
    if request.org_id is not None and request.org_id not in ask.coverage:
        raise NotFoundError("org")
    return await alerts.list_alerts(ask.services, request, ask.coverage)


async def _list_usage(ask: Ask) -> Any:
    request = usage_records.parse_request(ask.query)
    policy = await ask.read_org_policy(request.app_id)
    return await usage_records.list_usage(ask.services, policy, request)


async def _list_all_budgets(ask: Ask) -> Any:
    after = ask.query.get("after")
    cursor = None if after is None else budgets.BudgetCursor.parse(after)
    return await budgets.list_all_budgets(ask.services, ask.viewer, cursor)


async def _list_denials(ask: Ask) -> Any:
    request = activity.parse_denials(ask.query)
    policy = await ask.read_org_policy(request.app_id)
    return await activity.list_denials(ask.services, policy, request)


async def _list_flips(ask: Ask) -> Any:
    return await activity.list_flips(ask.services, ask.policy, activity.parse_flips(ask.query))


async def _void(ask: Ask) -> None:
    """Void an app's grant; the operator of the store acts as an administrator."""
    voided_id, reason = ask.path["authorization_id"], ask.body.reason
    if ask.authority is None:
        await authorizations.void(ask.services, ask.policy, voided_id, reason)
        return
    await authorizations.read_one(ask.services, ask.policy, voided_id)
    by = ask.by(reason)
    await containment.void_authorization(ask.services, ask.client.org, voided_id, by)


async def _me(ask: Ask) -> Any:
    if ask.principal is not None:
        return admin_keys.client_answer(ask.principal)
    if ask.authority is None:  # pragma: no cover - refused at the gate
        raise LookupError("this operation is opened without credentials")
    return admin_keys.key_answer(ask.authority)


async def _first(reading: Awaitable[tuple[Any, Any]]) -> Any:
    return (await reading)[0]


USE_CASES: Final[Mapping[str, UseCase]] = by_name(
    {
        # What an app asks.
        ops.ADJUST: lambda a: runtime.adjust(a.services, a.policy, a.path["lease_id"], a.body),
        ops.RELEASE: lambda a: a.services.limiter.release(
            a.policy.bucket_entity, a.path["lease_id"]
        ),
        ops.LIST_LIMITS: lambda a: runtime.list_limits(a.services, a.policy),
        ops.LIST_AUTHORIZATIONS: lambda a: authorizations.list_unfinished(
            a.services, a.policy, a.query.get("status"), a.query.get("after")
        ),
        ops.GET_AUTHORIZATION: lambda a: authorizations.read_one(
            a.services, a.policy, a.path["authorization_id"]
        ),
        ops.CAPTURE: lambda a: authorizations.capture(
            a.services, a.policy, a.path["authorization_id"], a.body
        ),
        ops.VOID: _void,
        ops.EXTEND: lambda a: authorizations.extend(
            a.services, a.policy, a.path["authorization_id"], a.body.hold_secs
        ),
        ops.LIST_BUDGETS: lambda a: budgets.list_budgets(a.services, a.policy),
        ops.LIST_OWN_SESSIONS: lambda a: containment.list_own_sessions(
            a.services, a.caller, "" if a.principal is None else a.principal.session_id
        ),
        ops.END_OWN_SESSIONS: lambda a: a.services.identity.end_all_sessions(
            a.caller.client_id, a.by_admin
        ),
        ops.END_OWN_SESSION: lambda a: a.services.identity.end_session(
            a.caller.client_id, a.path["session_id"], a.by_admin
        ),
        # Reports.
        ops.GET_FORECAST: lambda a: forecast.list_forecasts(a.services, a.policy),
        ops.READ_TODAY: lambda a: _first(
            aggregates.read_day(a.services, a.policy, aggregates.today(a.services, a.policy))
        ),
        ops.READ_DAY: lambda a: _first(
            aggregates.read_day(a.services, a.policy, aggregates.parse_day(a.path["date"]))
        ),
        ops.READ_RANGE: lambda a: _first(
            aggregates.read_range(a.services, a.policy, *aggregates.parse_range(a.query))
        ),
        ops.GET_SPEND: lambda a: _first(
            spend.read_spend(a.services, a.viewer, spend.parse_request(a.query))
        ),
        ops.LIST_USAGE: _list_usage,
        ops.LIST_ALL_BUDGETS: _list_all_budgets,
        ops.LIST_ALL_DENIALS: lambda a: activity.list_all_denials(
            a.services, a.viewer, activity.parse_denials(a.query)
        ),
        ops.LIST_DENIALS: _list_denials,
        ops.LIST_FLIPS: _list_flips,
        # What an administrator sets up.
        ops.LIST_ORGS: lambda a: provisioning.list_orgs(a.services, a.coverage, *a.page),
        ops.LIST_APPS: lambda a: provisioning.list_apps(a.services, a.org_id, *a.page),
        ops.GET_ORG: lambda a: provisioning.read_client(a.services, a.client),
        ops.GET_APP: lambda a: provisioning.read_client(a.services, a.client),
        ops.GET_ORG_SETTINGS: lambda a: provisioning.read_client(a.services, a.client),
        ops.GET_APP_SETTINGS: lambda a: provisioning.read_client(a.services, a.client),
        ops.PUT_ORG: lambda a: provisioning.put_client(a.services, a.client, a.body, a.by_query),
        ops.PUT_APP: lambda a: provisioning.put_client(a.services, a.client, a.body, a.by_query),
        ops.PATCH_ORG: lambda a: provisioning.patch_client(
            a.services, a.client, a.body, a.by_query, a.expected_tag
        ),
        ops.PATCH_APP: lambda a: provisioning.patch_client(
            a.services, a.client, a.body, a.by_query, a.expected_tag
        ),
        ops.DELETE_ORG: lambda a: a.services.tenants.delete_org(a.org_id, a.by_query),
        ops.DELETE_APP: lambda a: a.services.tenants.delete_app(a.org_id, a.app_id, a.by_query),
        ops.ROTATE: lambda a: provisioning.rotate(a.services, a.client, a.body, a.by_query),
        ops.PUT_OVERRIDE: lambda a: provisioning.put_override(
            a.services, a.client, a.body, a.by_query
        ),
        ops.DELETE_OVERRIDE: lambda a: provisioning.delete_override(
            a.services, a.client, a.by_query
        ),
        ops.ISSUE_ORG_KEY: lambda a: provisioning.issue_provisioning_key(
            a.services, a.org_id, a.by()
        ),
        ops.WITHDRAW_ORG_KEY: lambda a: a.services.provisioning_keys.withdraw(a.org_id, a.by()),
        ops.CLAIM_SECRET: lambda a: provisioning.claim(a.services, a.body.token, a.by()),
        # What an administrator does about a leaked secret.
        ops.LIST_SESSIONS: lambda a: containment.list_sessions(a.services, a.client),
        ops.REVOKE_CREDENTIALS: lambda a: containment.revoke_credentials(
            a.services, a.client, a.body.secrets, a.by_reason
        ),
        ops.END_SESSIONS: lambda a: containment.end_sessions(a.services, a.client, a.by_reason),
        ops.END_SESSION: lambda a: containment.end_sessions(
            a.services, a.client, a.by_reason, a.path["session_id"]
        ),
        ops.FREEZE: lambda a: containment.freeze(a.services, a.client, a.by_reason),
        ops.UNFREEZE: lambda a: containment.unfreeze(a.services, a.client, a.by_reason),
        ops.RESET_LIMITS: lambda a: containment.reset_limits(a.services, a.client, a.by_reason),
        ops.VOID_USAGE: lambda a: containment.void_usage(
            a.services, a.client, a.path["request_id"], a.by_reason
        ),
        ops.VOID_ORG_AUTHORIZATION: lambda a: containment.void_authorization(
            a.services, a.client, a.path["authorization_id"], a.by_reason
        ),
        # Keys, alerts and the audit log.
        ops.CREATE_ADMIN_KEY: lambda a: admin_keys.create_key(a.services, a.body, a.by()),
        ops.LIST_ADMIN_KEYS: lambda a: admin_keys.list_keys(a.services, a.coverage, *a.page),
        ops.ROTATE_ADMIN_KEY: lambda a: admin_keys.rotate_key(
            a.services, a.path["key_id"], a.body, a.by()
        ),
        ops.DELETE_ADMIN_KEY: lambda a: admin_keys.delete_key(a.services, a.path["key_id"], a.by()),
        ops.GET_ME: _me,
        ops.LIST_ALERTS: _list_alerts,
        ops.LIST_CHANNELS: lambda a: alerts.list_channels(a.services, a.channel_owner),
        ops.PUT_CHANNEL: lambda a: alerts.put_channel(
            a.services, a.channel_owner, a.path["channel"], a.body, a.by()
        ),
        ops.DELETE_CHANNEL: lambda a: alerts.delete_channel(
            a.services, a.channel_owner, a.path["channel"], a.by()
        ),
        ops.TEST_CHANNEL: lambda a: alerts.try_channel(
            a.services, a.channel_owner, a.path["channel"], a.by()
        ),
        ops.LIST_AUDIT: lambda a: audit.list_entries(
            a.services, audit.parse_request(a.query), a.coverage
        ),
    }
)
