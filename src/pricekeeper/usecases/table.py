"""The use case of each operation.

Other operations have handlers in `http.routes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

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


async def _first(reading: Awaitable[tuple[Any, Any]]) -> Any:
    return (await reading)[0]


USE_CASES: Final[Mapping[str, UseCase]] = by_name(
    {
        # What an app asks.
        ops.ADJUST: runtime.adjust,
        ops.RELEASE: runtime.release,
        ops.LIST_LIMITS: runtime.list_limits,
        ops.LIST_AUTHORIZATIONS: authorizations.list_unfinished,
        ops.GET_AUTHORIZATION: authorizations.read_one,
        ops.CAPTURE: authorizations.capture,
        ops.VOID: authorizations.void,
        ops.EXTEND: authorizations.extend,
        ops.LIST_BUDGETS: budgets.list_budgets,
        ops.LIST_OWN_SESSIONS: containment.list_own_sessions,
        ops.END_OWN_SESSIONS: lambda a: a.services.identity.end_all_sessions(
            a.caller.client_id, a.by_admin
        ),
        ops.END_OWN_SESSION: lambda a: a.services.identity.end_session(
            a.caller.client_id, a.path["session_id"], a.by_admin
        ),
        # Reports.
        ops.GET_FORECAST: forecast.list_forecasts,
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
        ops.LIST_USAGE: usage_records.list_usage,
        ops.LIST_ALL_BUDGETS: budgets.list_all_budgets,
        ops.LIST_ALL_DENIALS: activity.list_all_denials,
        ops.LIST_DENIALS: activity.list_denials,
        ops.LIST_FLIPS: activity.list_flips,
        # What an administrator sets up.
        ops.LIST_ORGS: provisioning.list_orgs,
        ops.LIST_APPS: provisioning.list_apps,
        ops.GET_ORG: provisioning.read_client,
        ops.GET_APP: provisioning.read_client,
        ops.GET_ORG_SETTINGS: provisioning.read_client,
        ops.GET_APP_SETTINGS: provisioning.read_client,
        ops.PUT_ORG: provisioning.put_client,
        ops.PUT_APP: provisioning.put_client,
        ops.PATCH_ORG: provisioning.patch_client,
        ops.PATCH_APP: provisioning.patch_client,
        ops.DELETE_ORG: lambda a: a.services.tenants.delete_org(a.org_id, a.by_query),
        ops.DELETE_APP: lambda a: a.services.tenants.delete_app(a.org_id, a.app_id, a.by_query),
        ops.ROTATE: provisioning.rotate,
        ops.PUT_OVERRIDE: provisioning.put_override,
        ops.DELETE_OVERRIDE: provisioning.delete_override,
        ops.ISSUE_ORG_KEY: provisioning.issue_provisioning_key,
        ops.WITHDRAW_ORG_KEY: lambda a: a.services.provisioning_keys.withdraw(a.org_id, a.by()),
        ops.CLAIM_SECRET: provisioning.claim,
        # What an administrator does about a leaked secret.
        ops.LIST_SESSIONS: containment.list_sessions,
        ops.REVOKE_CREDENTIALS: containment.revoke_credentials,
        ops.END_SESSIONS: containment.end_sessions,
        ops.END_SESSION: containment.end_session,
        ops.FREEZE: containment.freeze,
        ops.UNFREEZE: containment.unfreeze,
        ops.RESET_LIMITS: containment.reset_limits,
        ops.VOID_USAGE: containment.void_usage,
        ops.VOID_ORG_AUTHORIZATION: containment.void_authorization,
        # Keys, alerts and the audit log.
        ops.CREATE_ADMIN_KEY: admin_keys.create_key,
        ops.LIST_ADMIN_KEYS: admin_keys.list_keys,
        ops.ROTATE_ADMIN_KEY: admin_keys.rotate_key,
        ops.DELETE_ADMIN_KEY: lambda a: a.services.admin_keys.delete(a.path["key_id"], a.by()),
        ops.GET_ME: admin_keys.read_me,
        ops.LIST_ALERTS: alerts.list_alerts,
        ops.LIST_CHANNELS: alerts.list_channels,
        ops.PUT_CHANNEL: alerts.put_channel,
        ops.DELETE_CHANNEL: alerts.delete_channel,
        ops.TEST_CHANNEL: alerts.try_channel,
        ops.LIST_AUDIT: audit.list_entries,
    }
)
