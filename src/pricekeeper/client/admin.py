"""Provisioning: organisations, apps, credentials, overrides, containment and admin keys.

A write whose reply is lost raises `ReplyLostError`. Settings can be put again without harm. A lost
retrieval token is replaced by rotating. Freezing, revoking and ending sessions can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pricekeeper.client.api import Api
from pricekeeper.client.asking import Asking, Given, asks, lists, nothing
from pricekeeper.client.transport import (
    TIMEOUT_SECS,
    Authorisation,
    HttpTransport,
    Transport,
    Wire,
)
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.values import parse_org_id
from pricekeeper.wire import operations as ops
from pricekeeper.wire.alerts import ChannelAnswer
from pricekeeper.wire.bounds import PAGE_MAX
from pricekeeper.wire.provisioning import AppAnswer, CredentialsRevoked, OrgAnswer

# What several methods take.


def _org(org_id: str) -> Given:
    return {"org_id": org_id}


def _app(org_id: str, app_id: str) -> Given:
    return {"org_id": org_id, "app_id": app_id}


def _client(org_id: str, app_id: str | None = None) -> Given:
    return {"org_id": org_id, "app_id": app_id}


def _client_and_reason(org_id: str, app_id: str | None = None, *, reason: str) -> Given:
    return {"org_id": org_id, "app_id": app_id, "reason": reason}


def _channel(org_id: str | None, name: str) -> Given:
    return {"org_id": org_id, "channel": name}


# What one method takes.


def _grace_of_client(org_id: str, app_id: str | None = None, *, grace_period_hours: int) -> Given:
    return {"org_id": org_id, "app_id": app_id, "grace_period_hours": grace_period_hours}


def _label(org_id: str, app_id: str | None = None, *, model_label: str) -> Given:
    return {"org_id": org_id, "app_id": app_id, "model_label": model_label}


def _session(org_id: str, app_id: str | None = None, *, session_id: str, reason: str) -> Given:
    return {"org_id": org_id, "app_id": app_id, "session_id": session_id, "reason": reason}


def _record(org_id: str, request_id: str, *, reason: str) -> Given:
    return {"org_id": org_id, "request_id": request_id, "reason": reason}


def _authorization(org_id: str, authorization_id: str, *, reason: str) -> Given:
    return {"org_id": org_id, "authorization_id": authorization_id, "reason": reason}


def _new_key(
    name: str, *, role: str, org_ids: Sequence[str] | None = None, expires_at: str | None = None
) -> Given:
    return {"name": name, "role": role, "org_ids": org_ids, "expires_at": expires_at}


def _grace_of_key(key_id: str, *, grace_period_hours: int) -> Given:
    return {"key_id": key_id, "grace_period_hours": grace_period_hours}


def _key(key_id: str) -> Given:
    return {"key_id": key_id}


def _alerts(
    org_id: str | None = None,
    *,
    kind: str | None = None,
    state: str | None = None,
    after: str | None = None,
) -> Given:
    return {"org_id": org_id, "kind": kind, "state": state, "after": after}


def _range(first: str, last: str, group_by: str = "") -> Given:
    return {"from": first, "to": last, "group_by": group_by}


def _token(token: str) -> Given:
    return {"token": token}


def _owner(org_id: str | None = None) -> Given:
    return {"org_id": org_id}


def _query(query: Mapping[str, str]) -> Given:
    return query


class Admin(Asking):
    """What an administrator's key allows. Claiming a secret needs no key."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        clock: Clock | None = None,
        timeout_secs: float = TIMEOUT_SECS,
    ) -> None:
        wire = Wire(url, timeout_secs)
        by = Authorisation({} if key is None else {"X-API-Key": key})
        self._transport: Transport = HttpTransport(wire, by, clock or SystemClock())

    @classmethod
    def over(cls, transport: Transport) -> Self:
        made = cls.__new__(cls)
        made._transport = transport  # noqa: SLF001  # its own constructor
        return made

    get_org = asks(ops.GET_ORG, _org)
    list_orgs = lists(ops.LIST_ORGS, lambda page: page.orgs, nothing)
    delete_org = asks(ops.DELETE_ORG, _org)
    get_app = asks(ops.GET_APP, _app)
    list_apps = lists(ops.LIST_APPS, lambda page: page.apps, _org)
    delete_app = asks(ops.DELETE_APP, _app)
    rotate = asks(ops.ROTATE, _grace_of_client)
    claim = asks(ops.CLAIM_SECRET, _token)
    issue_provisioning_key = asks(ops.ISSUE_ORG_KEY, _org)
    withdraw_provisioning_key = asks(ops.WITHDRAW_ORG_KEY, _org)
    set_override = asks(ops.PUT_OVERRIDE, _label)
    clear_override = asks(ops.DELETE_OVERRIDE, _client)
    list_sessions = asks(ops.LIST_SESSIONS, _client)
    end_session = asks(ops.END_SESSION, _session)
    end_sessions = asks(ops.END_SESSIONS, _client_and_reason)
    freeze = asks(ops.FREEZE, _client_and_reason)
    unfreeze = asks(ops.UNFREEZE, _client_and_reason)
    reset_limits = asks(ops.RESET_LIMITS, _client_and_reason)
    void_usage = asks(ops.VOID_USAGE, _record)
    void_authorization = asks(ops.VOID_ORG_AUTHORIZATION, _authorization)
    create_admin_key = asks(ops.CREATE_ADMIN_KEY, _new_key)
    list_admin_keys = lists(ops.LIST_ADMIN_KEYS, lambda page: page.keys, nothing)
    rotate_admin_key = asks(ops.ROTATE_ADMIN_KEY, _grace_of_key)
    delete_admin_key = asks(ops.DELETE_ADMIN_KEY, _key)
    me = asks(ops.GET_ME, nothing)
    spend = asks(ops.GET_SPEND, _range)
    alerts = asks(ops.LIST_ALERTS, _alerts)
    alert_channels = asks(ops.LIST_CHANNELS, _owner)
    remove_alert_channel = asks(ops.DELETE_CHANNEL, _channel)
    test_alert_channel = asks(ops.TEST_CHANNEL, _channel)
    audit = asks(ops.LIST_AUDIT, _query)

    async def put_org(self, org_id: str, settings: Mapping[str, Any]) -> OrgAnswer:
        return await self.ask(ops.PUT_ORG, _org(org_id), body=settings)

    async def put_app(self, org_id: str, app_id: str, settings: Mapping[str, Any]) -> AppAnswer:
        return await self.ask(ops.PUT_APP, _app(org_id, app_id), body=settings)

    async def patch_org(
        self, org_id: str, patch: Mapping[str, Any], *, if_unchanged: str | None = None
    ) -> OrgAnswer:
        """Change some settings of an organisation; ``None`` restores a default.

        With ``if_unchanged``, a `values.settings_tag`, only if the settings still have that tag.
        """
        headers = _if_match(if_unchanged)
        return await self.ask(ops.PATCH_ORG, _org(org_id), body=patch, headers=headers)

    async def patch_app(
        self, org_id: str, app_id: str, patch: Mapping[str, Any], *, if_unchanged: str | None = None
    ) -> AppAnswer:
        """Change some of what an app overrides, as in `patch_org`; ``None`` inherits it again."""
        headers = _if_match(if_unchanged)
        return await self.ask(ops.PATCH_APP, _app(org_id, app_id), body=patch, headers=headers)

    async def page_orgs(
        self, *, after: str | None = None, limit: int = PAGE_MAX
    ) -> tuple[list[OrgAnswer], str | None]:
        """Some organisations in the order of their ids, and the next ``after``."""
        given = {"limit": str(limit), "after": parse_org_id(after) if after else None}
        page = await self.ask(ops.LIST_ORGS, given)
        return page.orgs, page.get("next")

    async def revoke_credentials(
        self, org_id: str, app_id: str | None = None, *, reason: str, previous_only: bool = False
    ) -> CredentialsRevoked:
        """Revoke a client's secrets, sessions and tokens at once; `rotate` gives it a new secret.

        With ``previous_only`` the present secret keeps working.
        """
        secrets = "PREVIOUS" if previous_only else "ALL"
        given = {**_client_and_reason(org_id, app_id, reason=reason), "secrets": secrets}
        return await self.ask(ops.REVOKE_CREDENTIALS, given)

    async def put_alert_channel(
        self, org_id: str | None, name: str, channel: Mapping[str, Any]
    ) -> ChannelAnswer:
        return await self.ask(ops.PUT_CHANNEL, _channel(org_id, name), body=channel)

    def reader(self, client: Client) -> Api:
        """Reads what a viewer may see of a client, over these connections; do not close it."""
        return Api.over(self._transport, client)


def _if_match(tag: str | None) -> dict[str, str]:
    return {} if tag is None else {"If-Match": f'"{tag}"'}
