"""Straight on the store: the service's use cases, called without socket and credentials.

Whoever can open the store owns what is in it, so nobody is asked who they are. `LocalAdmin` and
`LocalKeeper` offer to commands what `client.Admin` and `client.Api` do, and their answers
are the same. A service that runs on the same store sees a change within thirty seconds.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import date
from typing import Any, TypeAlias

import msgspec

from pricekeeper.authority import ALL_ORGS, DEPLOYMENT, Attribution
from pricekeeper.bootstrap import Services
from pricekeeper.cli.opening import has_pepper, is_missing_file, open_local_services
from pricekeeper.errors import SettingsError
from pricekeeper.settings import DATA_DIR, PEPPER, Settings
from pricekeeper.shapes import convert
from pricekeeper.tenants import Client, Policy
from pricekeeper.tenants.reading import PAGE_MAX
from pricekeeper.usecases import (
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
    sessions,
    spend,
    usage_records,
)
from pricekeeper.values import OrgId, parse_app_id, parse_org_id
from pricekeeper.wire.administration import AdminKeyBody, RotateKeyBody
from pricekeeper.wire.alerts import ChannelBody
from pricekeeper.wire.authorizations import VoidBody
from pricekeeper.wire.provisioning import (
    ClaimBody,
    OverrideBody,
    ReasonBody,
    RevokeCredentialsBody,
    RotateBody,
)

Json: TypeAlias = dict[str, Any]


class LocalAdmin:
    """What an administrator may do, on the store."""

    def __init__(self, services: Services, *, has_pepper: bool) -> None:
        self._services = services
        self._has_pepper = has_pepper

    async def put_org(self, org_id: str, settings: Mapping[str, Any]) -> Json:
        return await self._put(_client(org_id), settings)

    async def patch_org(
        self, org_id: str, patch: Mapping[str, Any], *, tag: str | None = None
    ) -> Json:
        return await self._patch(_client(org_id), patch, tag)

    async def get_org(self, org_id: str) -> Json:
        return plain(await provisioning.read_client(self._services, _client(org_id)))

    async def list_orgs(self) -> list[Json]:
        return await _read_pages(lambda after: self.page_orgs(after=after))

    async def page_orgs(
        self, *, after: str | None = None, limit: int = PAGE_MAX
    ) -> tuple[list[Json], str | None]:
        """Some organisations in the order of their ids, and where to go on; ``None`` at the end."""
        start = parse_org_id(after) if after else None
        page = plain(await provisioning.list_orgs(self._services, ALL_ORGS, start, limit))
        return page["orgs"], page.get("next")

    async def delete_org(self, org_id: str) -> None:
        await self._services.tenants.delete_org(parse_org_id(org_id), _by())

    async def put_app(self, org_id: str, app_id: str, settings: Mapping[str, Any]) -> Json:
        return await self._put(_client(org_id, app_id), settings)

    async def patch_app(
        self, org_id: str, app_id: str, patch: Mapping[str, Any], *, tag: str | None = None
    ) -> Json:
        return await self._patch(_client(org_id, app_id), patch, tag)

    async def get_app(self, org_id: str, app_id: str) -> Json:
        return plain(await provisioning.read_client(self._services, _client(org_id, app_id)))

    async def list_apps(self, org_id: str) -> list[Json]:
        org = parse_org_id(org_id)

        async def page_apps(after: str | None) -> tuple[list[Json], str | None]:
            start = parse_app_id(after) if after else None
            page = plain(await provisioning.list_apps(self._services, org, start, PAGE_MAX))
            return page["apps"], page.get("next")

        return await _read_pages(page_apps)

    async def delete_app(self, org_id: str, app_id: str) -> None:
        org, app = parse_org_id(org_id), parse_app_id(app_id)
        await self._services.tenants.delete_app(org, app, _by())

    async def rotate(
        self, org_id: str, app_id: str | None = None, *, grace_period_hours: int
    ) -> Json:
        body = convert({"grace_period_hours": grace_period_hours}, RotateBody)
        client = _client(org_id, app_id)
        return plain(await provisioning.rotate(self._services, client, body, _by()))

    async def claim(self, token: str) -> Json:
        self._require_pepper()
        body = convert({"token": token}, ClaimBody)
        claim = await self._services.credentials.find_claim(body.token)
        return plain(await provisioning.complete_claim(self._services, claim, _by()))

    async def issue_provisioning_key(self, org_id: str) -> Json:
        org = parse_org_id(org_id)
        self._require_pepper()
        return plain(await provisioning.issue_provisioning_key(self._services, org, _by()))

    async def withdraw_provisioning_key(self, org_id: str) -> None:
        await self._services.provisioning_keys.withdraw(parse_org_id(org_id), _by())

    async def set_override(
        self, org_id: str, app_id: str | None = None, *, model_label: str
    ) -> Json:
        body = convert({"model_label": model_label}, OverrideBody)
        client = _client(org_id, app_id)
        return plain(await provisioning.put_override(self._services, client, body, _by()))

    async def clear_override(self, org_id: str, app_id: str | None = None) -> None:
        await provisioning.delete_override(self._services, _client(org_id, app_id), _by())

    async def revoke_credentials(
        self, org_id: str, app_id: str | None = None, *, reason: str, previous_only: bool = False
    ) -> Json:
        asked = {"reason": reason, "secrets": "PREVIOUS" if previous_only else "ALL"}
        body, client = convert(asked, RevokeCredentialsBody), _client(org_id, app_id)
        by = _by(body.reason)
        revoked = containment.revoke_credentials(self._services, client, body.secrets, by)
        return plain(await revoked)

    async def list_sessions(self, org_id: str, app_id: str | None = None) -> Json:
        return plain(await containment.list_sessions(self._services, _client(org_id, app_id)))

    async def end_session(
        self, org_id: str, app_id: str | None = None, *, session_id: str, reason: str
    ) -> None:
        client, by = _client(org_id, app_id), _by(reason)
        await containment.end_sessions(self._services, client, by, session_id)

    async def end_sessions(self, org_id: str, app_id: str | None = None, *, reason: str) -> None:
        client, by = _client(org_id, app_id), _by(reason)
        await containment.end_sessions(self._services, client, by)

    async def freeze(self, org_id: str, app_id: str | None = None, *, reason: str) -> Json:
        by = _by_reason(reason)
        return plain(await containment.freeze(self._services, _client(org_id, app_id), by))

    async def unfreeze(self, org_id: str, app_id: str | None = None, *, reason: str) -> None:
        client, by = _client(org_id, app_id), _by(reason)
        await containment.unfreeze(self._services, client, by)

    async def reset_limits(self, org_id: str, app_id: str | None = None, *, reason: str) -> Json:
        by = _by_reason(reason)
        return plain(await containment.reset_limits(self._services, _client(org_id, app_id), by))

    async def void_usage(self, org_id: str, request_id: str, *, reason: str) -> Json:
        by = _by_reason(reason)
        org = _client(org_id)
        return plain(await containment.void_usage(self._services, org, request_id, by))

    async def void_authorization(self, org_id: str, authorization_id: str, *, reason: str) -> Json:
        by = _by_reason(reason)
        org = _client(org_id)
        return plain(
            await containment.void_authorization(self._services, org, authorization_id, by)
        )

    async def create_admin_key(
        self,
        name: str,
        *,
        role: str,
        org_ids: Sequence[str] | None = None,
        expires_at: str | None = None,
    ) -> Json:
        self._require_pepper()
        given = {"name": name, "role": role, "org_ids": org_ids, "expires_at": expires_at}
        body = convert(given, AdminKeyBody)
        return plain(await admin_keys.create_key(self._services, body, _by()))

    async def list_admin_keys(self) -> list[Json]:
        async def page_keys(after: str | None) -> tuple[list[Json], str | None]:
            found = await admin_keys.list_keys(self._services, ALL_ORGS, after, PAGE_MAX)
            page = plain(found)
            return page["keys"], page.get("next")

        return await _read_pages(page_keys)

    async def rotate_admin_key(self, key_id: str, *, grace_period_hours: int) -> Json:
        self._require_pepper()
        body = convert({"grace_period_hours": grace_period_hours}, RotateKeyBody)
        return plain(await admin_keys.rotate_key(self._services, key_id, body, _by()))

    async def delete_admin_key(self, key_id: str) -> None:
        await admin_keys.delete_key(self._services, key_id, _by())

    async def me(self) -> Json:
        """Whoever holds the store may do everything."""
        return plain(admin_keys.key_answer(DEPLOYMENT))

    async def spend(self, first: str, last: str, group_by: str = "") -> Json:
        request = spend.parse_request({"from": first, "to": last, "group_by": group_by})
        return plain((await spend.read_spend(self._services, spend.Viewer(), request))[0])

    async def alerts(
        self,
        org_id: str | None = None,
        *,
        kind: str | None = None,
        state: str | None = None,
        after: str | None = None,
    ) -> Json:
        query = {"org_id": org_id, "kind": kind, "state": state, "after": after}
        given = {name: value for name, value in query.items() if value is not None}
        request = alerts.parse_request(given)
        return plain(await alerts.list_alerts(self._services, request, ALL_ORGS))

    async def alert_channels(self, org_id: str | None = None) -> Json:
        return plain(await alerts.list_channels(self._services, _org(org_id)))

    async def put_alert_channel(
        self, org_id: str | None, name: str, channel: Mapping[str, Any]
    ) -> Json:
        self._require_pepper()
        body = convert(msgspec.to_builtins(channel), ChannelBody)
        return plain(await alerts.put_channel(self._services, _org(org_id), name, body, _by()))

    async def remove_alert_channel(self, org_id: str | None, name: str) -> None:
        await alerts.delete_channel(self._services, _org(org_id), name, _by())

    async def test_alert_channel(self, org_id: str | None, name: str) -> Json:
        self._require_pepper()
        return plain(await alerts.try_channel(self._services, _org(org_id), name, _by()))

    async def audit(self, query: Mapping[str, str]) -> Json:
        request = audit.parse_request(query)
        return plain(await audit.list_entries(self._services, request, ALL_ORGS))

    async def _put(self, client: Client, settings: Mapping[str, Any]) -> Json:
        body = msgspec.to_builtins(settings)
        return plain(await provisioning.put_client(self._services, client, body, _by()))

    async def _patch(self, client: Client, patch: Mapping[str, Any], tag: str | None) -> Json:
        body, expects = msgspec.to_builtins(patch), None if tag is None else f'"{tag}"'
        changed = provisioning.patch_client(self._services, client, body, _by(), expects)
        return plain(await changed)

    def _require_pepper(self) -> None:
        """Hand out no secret whose hash is made under another pepper than the service's own."""
        if not self._has_pepper:
            raise SettingsError(
                DATA_DIR,
                "names a folder without the service's pepper, so that a secret made here would "
                f"open nothing; name the service's folder (or {PEPPER}), or do it there with --url",
            )


class LocalKeeper:
    """What concerns one client, on the store."""

    def __init__(self, services: Services, client: Client) -> None:
        self._services = services
        self._client = client

    def of_app(self, app_id: str) -> LocalKeeper:
        """An app of this organisation."""
        return LocalKeeper(self._services, Client(self._client.org_id, parse_app_id(app_id)))

    async def limits(self) -> Json:
        return plain(await runtime.list_limits(self._services, await self._read_policy()))

    async def usage(self, day: date | None = None, *, waits_for_limit: bool = False) -> Json:
        """What a day came to; today, if none is named. There is no limit to wait for."""
        del waits_for_limit
        policy = await self._read_policy()
        day = day or aggregates.today(self._services, policy)
        return plain((await aggregates.read_day(self._services, policy, day))[0])

    async def usage_between(self, first: date, last: date) -> Json:
        policy = await self._read_policy()
        return plain((await aggregates.read_range(self._services, policy, first, last))[0])

    async def usage_records(
        self,
        *,
        first: str | None = None,
        last: str | None = None,
        label: str | None = None,
        tag: str | None = None,
        after: str | None = None,
    ) -> Json:
        query = {"from": first, "to": last, "label": label, "tag": tag, "after": after}
        query["app_id"] = self._client.app_id
        given = {name: value for name, value in query.items() if value is not None}
        request = usage_records.parse_request(given)
        policy = await self._services.tenants.find_policy(self._client.org_id)
        return plain(await usage_records.list_usage(self._services, policy, request))

    async def authorization(self, authorization_id: str) -> Json:
        policy = await self._read_policy()
        return plain(await authorizations.read_one(self._services, policy, authorization_id))

    async def authorizations(self, *, status: str | None = None, after: str | None = None) -> Json:
        policy = await self._read_policy()
        listed = authorizations.list_unfinished(self._services, policy, status, after)
        return plain(await listed)

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None:
        """Void it as the administrator that whoever has the store is, with an audit entry."""
        body = convert({} if reason is None else {"reason": reason}, VoidBody)
        policy = await self._read_policy()
        await authorizations.read_one(self._services, policy, authorization_id)  # it is the app's
        org = Client(self._client.org_id)
        await containment.void_authorization(
            self._services, org, authorization_id, _by(body.reason)
        )

    async def budgets(self) -> Json:
        return plain(await budgets.list_budgets(self._services, await self._read_policy()))

    async def forecast(self) -> Json:
        return plain(await forecast.list_forecasts(self._services, await self._read_policy()))

    async def sessions(self) -> Json:
        return plain(await sessions.list_sessions(self._services, self._client))

    async def end_session(self, session_id: str) -> None:
        await self._services.identity.end_session(self._client.client_id, session_id, _by())

    async def end_sessions(self) -> None:
        await self._services.identity.end_all_sessions(self._client.client_id, _by())

    async def _read_policy(self) -> Policy:
        return await self._services.tenants.find_policy(self._client.org_id, self._client.app_id)


class LocalBackend:
    """The store, for commands."""

    def __init__(self, services: Services, *, has_pepper: bool) -> None:
        self._services = services
        self.admin = LocalAdmin(services, has_pepper=has_pepper)

    def keeper(self, client: Client, *, itself: bool = False) -> LocalKeeper:
        """What concerns one client; the operator may act for any."""
        del itself
        return self.reader(client)

    def reader(self, client: Client) -> LocalKeeper:
        """A look at one client's data."""
        return LocalKeeper(self._services, client)


@asynccontextmanager
async def open_local(settings: Settings, *, may_create: bool) -> AsyncIterator[LocalBackend]:
    """Open the store for commands; secrets can be claimed where the service's pepper is."""
    has_pepper_here = is_missing_file(settings) or has_pepper(settings)
    async with open_local_services(settings, may_create=may_create) as services:
        yield LocalBackend(services, has_pepper=has_pepper_here)


def plain(answer: Any) -> Json:
    """The answer as the JSON of the REST contract has it."""
    found: Json = msgspec.to_builtins(answer)
    return found


async def _read_pages(
    read_page: Callable[[str | None], Awaitable[tuple[list[Json], str | None]]],
) -> list[Json]:
    found, after = await read_page(None)
    while after is not None:  # ends with the partition: every page begins behind the one before
        page, after = await read_page(after)
        found += page
    return found


def _org(org_id: str | None) -> OrgId | None:
    return None if org_id is None else parse_org_id(org_id)


def _client(org_id: str, app_id: str | None = None) -> Client:
    return Client(parse_org_id(org_id), None if app_id is None else parse_app_id(app_id))


def _by(reason: str | None = None) -> Attribution:
    """Who works on the store, and why."""
    return Attribution(local_actor(), "local", "local", reason, DEPLOYMENT)


def _by_reason(reason: str) -> Attribution:
    """The same for what takes a reason: it is checked as a service would."""
    return _by(convert({"reason": reason}, ReasonBody).reason)


def local_actor() -> str:
    """Who runs this command, as far as the operating system knows."""
    try:
        return f"cli/{getpass.getuser().encode('utf-8', 'replace').decode()}"
    except (KeyError, OSError):  # a container may have a user without a name
        return f"cli/uid-{os.getuid()}"
