"""Provisioning: organisations, apps, credentials, overrides, containment and admin keys.

A write whose reply is lost raises `ReplyLostError`. Settings can be put again without harm. A lost
retrieval token is replaced by rotating. Freezing, revoking and ending sessions can be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

from pricekeeper.client.api import Api
from pricekeeper.client.asking import Asking
from pricekeeper.client.transport import (
    TIMEOUT_SECS,
    Authorisation,
    HttpTransport,
    Transport,
    Wire,
)
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.values import parse_app_id, parse_org_id
from pricekeeper.wire import operations as ops
from pricekeeper.wire.administration import (
    AdminKeyAnswer,
    AuditList,
    IssuedAdminKey,
    Me,
)
from pricekeeper.wire.alerts import AlertList, ChannelAnswer, ChannelList, TrialAnswer
from pricekeeper.wire.bounds import PAGE_MAX
from pricekeeper.wire.operation import Operation, Pair
from pricekeeper.wire.provisioning import (
    AppAnswer,
    AuthorizationVoided,
    Claimed,
    CredentialsRevoked,
    FreezeAnswer,
    LimitsReset,
    OrgAnswer,
    OverrideAnswer,
    ProvisioningKey,
    Rotated,
    SessionList,
    UsageVoided,
)
from pricekeeper.wire.spend import SpendAnswer

A = TypeVar("A")
E = TypeVar("E")
PAGES_MAX: Final = 10_000
"""Bounds the loop over pages; longer lists are cut."""


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

    async def put_org(self, org_id: str, settings: Mapping[str, Any]) -> OrgAnswer:
        return await self._ask(ops.PUT_ORG, _org(org_id), body=settings)

    async def patch_org(
        self, org_id: str, patch: Mapping[str, Any], *, if_unchanged: str | None = None
    ) -> OrgAnswer:
        """Change some settings of an organisation; ``None`` restores a default.

        With ``if_unchanged``, a `values.settings_tag`, only if the settings still have that tag.
        """
        return await self._ask(
            ops.PATCH_ORG, _org(org_id), body=patch, headers=_if_match(if_unchanged)
        )

    async def get_org(self, org_id: str) -> OrgAnswer:
        return await self._ask(ops.GET_ORG, _org(org_id))

    async def list_orgs(self) -> list[OrgAnswer]:
        return await self._list(ops.LIST_ORGS, {}, lambda page: page.orgs)

    async def page_orgs(
        self, *, after: str | None = None, limit: int = PAGE_MAX
    ) -> tuple[list[OrgAnswer], str | None]:
        """Some organisations in the order of their ids, and the next ``after``."""
        start = parse_org_id(after) if after else None
        page = await self._ask(ops.LIST_ORGS, {}, query={"limit": str(limit), "after": start})
        return page.orgs, page.get("next")

    async def delete_org(self, org_id: str) -> None:
        await self._ask(ops.DELETE_ORG, _org(org_id))

    async def put_app(self, org_id: str, app_id: str, settings: Mapping[str, Any]) -> AppAnswer:
        return await self._ask(ops.PUT_APP, _app(org_id, app_id), body=settings)

    async def patch_app(
        self, org_id: str, app_id: str, patch: Mapping[str, Any], *, if_unchanged: str | None = None
    ) -> AppAnswer:
        """Change some of what an app overrides, as in `patch_org`; ``None`` inherits it again."""
        named, headers = _app(org_id, app_id), _if_match(if_unchanged)
        return await self._ask(ops.PATCH_APP, named, body=patch, headers=headers)

    async def get_app(self, org_id: str, app_id: str) -> AppAnswer:
        return await self._ask(ops.GET_APP, _app(org_id, app_id))

    async def list_apps(self, org_id: str) -> list[AppAnswer]:
        return await self._list(ops.LIST_APPS, _org(org_id), lambda page: page.apps)

    async def delete_app(self, org_id: str, app_id: str) -> None:
        await self._ask(ops.DELETE_APP, _app(org_id, app_id))

    async def rotate(
        self, org_id: str, app_id: str | None = None, *, grace_period_hours: int
    ) -> Rotated:
        """Allow a new secret to be claimed.

        After the claim the old one works until the grace period ends.
        """
        body = {"grace_period_hours": grace_period_hours}
        return await self._ask_about_client(ops.ROTATE, org_id, app_id, body=body)

    async def claim(self, token: str) -> Claimed:
        """Exchange a retrieval token for the secret, once."""
        return await self._ask(ops.CLAIM_SECRET, {}, body={"token": token})

    async def issue_provisioning_key(self, org_id: str) -> ProvisioningKey:
        """Issue an organisation's provisioning key; only this answer shows it."""
        return await self._ask(ops.ISSUE_ORG_KEY, _org(org_id))

    async def withdraw_provisioning_key(self, org_id: str) -> None:
        await self._ask(ops.WITHDRAW_ORG_KEY, _org(org_id))

    async def set_override(
        self, org_id: str, app_id: str | None = None, *, model_label: str
    ) -> OverrideAnswer:
        """Use one label until the end of the organisation's day."""
        body = {"model_label": model_label}
        return await self._ask_about_client(ops.PUT_OVERRIDE, org_id, app_id, body=body)

    async def clear_override(self, org_id: str, app_id: str | None = None) -> None:
        """Let quotas decide again."""
        await self._ask_about_client(ops.DELETE_OVERRIDE, org_id, app_id)

    async def revoke_credentials(
        self, org_id: str, app_id: str | None = None, *, reason: str, previous_only: bool = False
    ) -> CredentialsRevoked:
        """Revoke a client's secrets, sessions and tokens at once; `rotate` gives it a new secret.

        With ``previous_only`` the present secret keeps working.
        """
        body = {"reason": reason, "secrets": "PREVIOUS" if previous_only else "ALL"}
        return await self._ask_about_client(ops.REVOKE_CREDENTIALS, org_id, app_id, body=body)

    async def list_sessions(self, org_id: str, app_id: str | None = None) -> SessionList:
        return await self._ask_about_client(ops.LIST_SESSIONS, org_id, app_id)

    async def end_session(
        self, org_id: str, app_id: str | None = None, *, session_id: str, reason: str
    ) -> None:
        named = {"session_id": session_id}
        await self._ask_about_client(
            ops.END_SESSION, org_id, app_id, named, query={"reason": reason}
        )

    async def end_sessions(self, org_id: str, app_id: str | None = None, *, reason: str) -> None:
        await self._ask_about_client(ops.END_SESSIONS, org_id, app_id, query={"reason": reason})

    async def freeze(self, org_id: str, app_id: str | None = None, *, reason: str) -> FreezeAnswer:
        """Refuse models and tokens to a client, or to an organisation and all of its apps."""
        return await self._ask_about_client(ops.FREEZE, org_id, app_id, body={"reason": reason})

    async def unfreeze(self, org_id: str, app_id: str | None = None, *, reason: str) -> None:
        """Lift a client's own freeze, if it has one."""
        await self._ask_about_client(ops.UNFREEZE, org_id, app_id, query={"reason": reason})

    async def reset_limits(
        self, org_id: str, app_id: str | None = None, *, reason: str
    ) -> LimitsReset:
        """Fill the token buckets of an app, or of an organisation without those of its apps."""
        return await self._ask_about_client(
            ops.RESET_LIMITS, org_id, app_id, body={"reason": reason}
        )

    async def void_usage(self, org_id: str, request_id: str, *, reason: str) -> UsageVoided:
        """Remove a usage record from its totals and budgets; a repetition changes nothing."""
        named = {**_org(org_id), "request_id": request_id}
        return await self._ask(ops.VOID_USAGE, named, body={"reason": reason})

    async def void_authorization(
        self, org_id: str, authorization_id: str, *, reason: str
    ) -> AuthorizationVoided:
        """Return what a client was granted; a repetition changes nothing."""
        named = {**_org(org_id), "authorization_id": authorization_id}
        return await self._ask(ops.VOID_ORG_AUTHORIZATION, named, body={"reason": reason})

    async def create_admin_key(
        self,
        name: str,
        *,
        role: str,
        org_ids: Sequence[str] | None = None,
        expires_at: str | None = None,
    ) -> IssuedAdminKey:
        """Create a key, shown only once. It covers ``org_ids``; ``None``: all."""
        given: dict[str, Any] = {"name": name, "role": role}
        if org_ids is not None:
            given["org_ids"] = list(org_ids)
        if expires_at is not None:
            given["expires_at"] = expires_at
        return await self._ask(ops.CREATE_ADMIN_KEY, {}, body=given)

    async def list_admin_keys(self) -> list[AdminKeyAnswer]:
        """The keys that cover no more than this one."""
        return await self._list(ops.LIST_ADMIN_KEYS, {}, lambda page: page.keys)

    async def rotate_admin_key(self, key_id: str, *, grace_period_hours: int) -> IssuedAdminKey:
        """Give a key a new text, shown now; the old one works for the grace period."""
        body = {"grace_period_hours": grace_period_hours}
        return await self._ask(ops.ROTATE_ADMIN_KEY, {"key_id": key_id}, body=body)

    async def delete_admin_key(self, key_id: str) -> None:
        await self._ask(ops.DELETE_ADMIN_KEY, {"key_id": key_id})

    async def me(self) -> Me:
        return await self._ask(ops.GET_ME, {})

    async def spend(self, first: str, last: str, group_by: str = "") -> SpendAnswer:
        query = {"from": first, "to": last, "group_by": group_by}
        return await self._ask(ops.GET_SPEND, {}, query=query)

    async def alerts(
        self,
        org_id: str | None = None,
        *,
        kind: str | None = None,
        state: str | None = None,
        after: str | None = None,
    ) -> AlertList:
        """A page of alerts, newest first: of one organisation, or of all covered ones."""
        query = {"org_id": org_id, "kind": kind, "state": state, "after": after}
        return await self._ask(ops.LIST_ALERTS, {}, query=query)

    async def alert_channels(self, org_id: str | None = None) -> ChannelList:
        return await self._ask_about_channels(ops.LIST_CHANNELS, org_id)

    async def put_alert_channel(
        self, org_id: str | None, name: str, channel: Mapping[str, Any]
    ) -> ChannelAnswer:
        return await self._ask_about_channels(ops.PUT_CHANNEL, org_id, name, body=channel)

    async def remove_alert_channel(self, org_id: str | None, name: str) -> None:
        await self._ask_about_channels(ops.DELETE_CHANNEL, org_id, name)

    async def test_alert_channel(self, org_id: str | None, name: str) -> TrialAnswer:
        return await self._ask_about_channels(ops.TEST_CHANNEL, org_id, name)

    async def audit(self, query: Mapping[str, str]) -> AuditList:
        """A page of the audit log."""
        return await self._ask(ops.LIST_AUDIT, {}, query=query)

    def reader(self, client: Client) -> Api:
        """Reads what a viewer may see of a client, over these connections; do not close it."""
        return Api.over(self._transport, client)

    async def _ask_about_client(
        self,
        pair: Pair[A, A],
        org_id: str,
        app_id: str | None,
        parameters: Mapping[str, str] | None = None,
        **more: Any,
    ) -> A:
        operation = pair.wide if app_id is None else pair.narrow
        named = _org(org_id) if app_id is None else _app(org_id, app_id)
        return await self._ask(operation, {**named, **(parameters or {})}, **more)

    async def _ask_about_channels(
        self, pair: Pair[A, A], org_id: str | None, name: str | None = None, body: Any = None
    ) -> A:
        operation = pair.wide if org_id is None else pair.narrow
        named = {} if org_id is None else _org(org_id)
        if name is not None:
            named["channel"] = name
        return await self._ask(operation, named, body=body)

    async def _list(
        self,
        operation: Operation[A],
        parameters: Mapping[str, str],
        entries_of: Callable[[A], list[E]],
    ) -> list[E]:
        def read(after: str | None) -> Awaitable[A]:
            return self._ask(operation, parameters, query={"after": after})

        return await read_every_page(read, entries_of)


async def read_every_page(
    read: Callable[[str | None], Awaitable[Any]], entries_of: Callable[[Any], list[E]]
) -> list[E]:
    """The entries of all pages; ``read`` reads the page after that ``next``."""
    found: list[E] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = await read(after)
        found += entries_of(page)
        after = page.get("next")
        if after is None:
            break
    return found


def _org(org_id: str) -> dict[str, str]:
    return {"org_id": parse_org_id(org_id)}


def _app(org_id: str, app_id: str) -> dict[str, str]:
    return {"org_id": parse_org_id(org_id), "app_id": parse_app_id(app_id)}


def _if_match(tag: str | None) -> dict[str, str]:
    return {} if tag is None else {"If-Match": f'"{tag}"'}
