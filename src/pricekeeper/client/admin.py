"""Provisioning: organisations, apps, their credentials and overrides; containment; admin keys.

Answers are the JSON of the REST contract. A write whose reply is lost raises `ReplyLostError`:
settings can be put again without harm, a lost retrieval token is replaced by rotating, and what
contains a leaked secret can be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

from pricekeeper.client.api import Api
from pricekeeper.client.transport import (
    TIMEOUT_SECS,
    Authorisation,
    HttpTransport,
    Request,
    Transport,
    Wire,
    path_of,
)
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.values import parse_app_id, parse_org_id

PAGES_MAX: Final = 10_000
"""A list that is longer than a million entries is cut: nobody reads it, and loops have an end."""

PAGE_MAX: Final = 100
"""The number of entries that the service puts on one page."""

_BASE: Final = ("api", "v1")
_KEYS: Final = (*_BASE, "admin-keys")
_Segments: TypeAlias = tuple[str, ...]


class Admin:
    """What a key of an administrator allows; it may be left out for claiming a secret."""

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
        """An admin on another transport."""
        made = cls.__new__(cls)
        made._transport = transport  # noqa: SLF001  # its own constructor
        return made

    async def put_org(self, org_id: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create an organisation or replace its settings."""
        return await self._ask("PUT", _org(org_id), settings)

    async def patch_org(
        self, org_id: str, patch: Mapping[str, Any], *, tag: str | None = None
    ) -> dict[str, Any]:
        """Change some settings of an organisation; ``None`` restores a default.

        With the ``tag`` of settings, `values.settings_tag`, only if it has those.
        """
        return await self._ask("PATCH", _org(org_id), patch, headers=_if_match(tag))

    async def get_org(self, org_id: str) -> dict[str, Any]:
        return await self._ask("GET", _org(org_id))

    async def list_orgs(self) -> list[dict[str, Any]]:
        return await self._list((*_BASE, "orgs"), "orgs")

    async def page_orgs(
        self, *, after: str | None = None, limit: int = PAGE_MAX
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Some organisations in the order of their ids, and where to go on; ``None`` at the end."""
        query = {"limit": str(limit), **({"after": parse_org_id(after)} if after else {})}
        page = await self._ask("GET", (*_BASE, "orgs"), query=query)
        return page["orgs"], page.get("next")

    async def delete_org(self, org_id: str) -> None:
        """End an organisation and its apps."""
        await self._ask("DELETE", _org(org_id))

    async def put_app(
        self, org_id: str, app_id: str, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Create an app or replace what it overrides."""
        return await self._ask("PUT", _client(org_id, app_id), settings)

    async def patch_app(
        self, org_id: str, app_id: str, patch: Mapping[str, Any], *, tag: str | None = None
    ) -> dict[str, Any]:
        """Change some of what an app overrides; what is ``None`` is inherited again.

        ``tag`` is as in `patch_org`.
        """
        return await self._ask("PATCH", _client(org_id, app_id), patch, headers=_if_match(tag))

    async def get_app(self, org_id: str, app_id: str) -> dict[str, Any]:
        return await self._ask("GET", _client(org_id, app_id))

    async def list_apps(self, org_id: str) -> list[dict[str, Any]]:
        return await self._list((*_org(org_id), "apps"), "apps")

    async def delete_app(self, org_id: str, app_id: str) -> None:
        await self._ask("DELETE", _client(org_id, app_id))

    async def rotate(
        self, org_id: str, app_id: str | None = None, *, grace_period_hours: int
    ) -> dict[str, Any]:
        """Let a new secret be claimed; then the old one lives for the grace."""
        path = (*_client(org_id, app_id), "credentials", "rotate")
        return await self._ask("POST", path, {"grace_period_hours": grace_period_hours})

    async def claim(self, token: str) -> dict[str, Any]:
        """Turn a retrieval token into the secret, once."""
        return await self._ask("POST", (*_BASE, "credentials", "claim"), {"token": token})

    async def issue_provisioning_key(self, org_id: str) -> dict[str, Any]:
        """Give an organisation a provisioning key of its own; this is when it is shown."""
        return await self._ask("POST", (*_org(org_id), "provisioning-key"))

    async def withdraw_provisioning_key(self, org_id: str) -> None:
        """Stop an organisation's own provisioning key from working."""
        await self._ask("DELETE", (*_org(org_id), "provisioning-key"))

    async def set_override(
        self, org_id: str, app_id: str | None = None, *, model_label: str
    ) -> dict[str, Any]:
        """Have one label used until the end of the organisation's day."""
        path = (*_client(org_id, app_id), "model-override")
        return await self._ask("PUT", path, {"model_label": model_label})

    async def clear_override(self, org_id: str, app_id: str | None = None) -> None:
        """Let quotas decide again."""
        await self._ask("DELETE", (*_client(org_id, app_id), "model-override"))

    async def revoke_credentials(
        self, org_id: str, app_id: str | None = None, *, reason: str, previous_only: bool = False
    ) -> dict[str, Any]:
        """Stop a client's secrets, sessions and tokens at once; `rotate` gives it a secret again.

        With ``previous_only`` its present secret goes on working: what stops is the one before it,
        whose grace still runs, and every token.
        """
        body = {"reason": reason, "secrets": "PREVIOUS" if previous_only else "ALL"}
        return await self._ask("POST", (*_client(org_id, app_id), "credentials", "revoke"), body)

    async def list_sessions(self, org_id: str, app_id: str | None = None) -> dict[str, Any]:
        """The live sessions of a client."""
        return await self._ask("GET", (*_client(org_id, app_id), "sessions"))

    async def end_session(
        self, org_id: str, app_id: str | None = None, *, session_id: str, reason: str
    ) -> None:
        """End one session of a client, and its tokens."""
        path = (*_client(org_id, app_id), "sessions", session_id)
        await self._ask("DELETE", path, query={"reason": reason})

    async def end_sessions(self, org_id: str, app_id: str | None = None, *, reason: str) -> None:
        """End every session of a client, and all of its tokens."""
        path = (*_client(org_id, app_id), "sessions")
        await self._ask("DELETE", path, query={"reason": reason})

    async def freeze(
        self, org_id: str, app_id: str | None = None, *, reason: str
    ) -> dict[str, Any]:
        """Refuse models and tokens to a client, or to an organisation and all of its apps."""
        path = (*_client(org_id, app_id), "freeze")
        return await self._ask("PUT", path, {"reason": reason}, repeatable=True)

    async def unfreeze(self, org_id: str, app_id: str | None = None, *, reason: str) -> None:
        """Lift a client's own freeze, if it has one."""
        await self._ask("DELETE", (*_client(org_id, app_id), "freeze"), query={"reason": reason})

    async def reset_limits(
        self, org_id: str, app_id: str | None = None, *, reason: str
    ) -> dict[str, Any]:
        """Fill the token buckets of a client; an organisation's without those of its apps."""
        path = (*_client(org_id, app_id), "limits", "reset")
        return await self._ask("POST", path, {"reason": reason})

    async def void_usage(self, org_id: str, request_id: str, *, reason: str) -> dict[str, Any]:
        """Take a usage record out of its totals and budgets; doing it again changes nothing."""
        path = (*_org(org_id), "usage", request_id, "void")
        return await self._ask("POST", path, {"reason": reason}, repeatable=True)

    async def void_authorization(
        self, org_id: str, authorization_id: str, *, reason: str
    ) -> dict[str, Any]:
        """Give back what a client was granted; doing it again changes nothing."""
        path = (*_org(org_id), "authorizations", authorization_id, "void")
        return await self._ask("POST", path, {"reason": reason}, repeatable=True)

    async def create_admin_key(
        self,
        name: str,
        *,
        role: str,
        org_ids: Sequence[str] | None = None,
        expires_at: str | None = None,
    ) -> dict[str, Any]:
        """Make a key for an administrator; this is when it is shown.

        ``org_ids`` are those that it covers; ``None``: all.
        """
        given: dict[str, Any] = {"name": name, "role": role}
        if org_ids is not None:
            given["org_ids"] = list(org_ids)
        if expires_at is not None:
            given["expires_at"] = expires_at
        return await self._ask("POST", _KEYS, given)

    async def list_admin_keys(self) -> list[dict[str, Any]]:
        """The keys that cover nothing which this one does not."""
        return await self._list(_KEYS, "keys")

    async def rotate_admin_key(self, key_id: str, *, grace_period_hours: int) -> dict[str, Any]:
        """Give a key another text, shown now; the one in use counts for the grace."""
        path = (*_KEYS, key_id, "rotate")
        return await self._ask("POST", path, {"grace_period_hours": grace_period_hours})

    async def delete_admin_key(self, key_id: str) -> None:
        """End a key for good."""
        await self._ask("DELETE", (*_KEYS, key_id))

    async def me(self) -> dict[str, Any]:
        """What this key is, and what it may see."""
        return await self._ask("GET", (*_BASE, "me"))

    async def spend(self, first: str, last: str, group_by: str = "") -> dict[str, Any]:
        """What everybody whom the key covers has spent, broken down."""
        query = {"from": first, "to": last, "group_by": group_by}
        return await self._ask("GET", (*_BASE, "spend"), query=query)

    async def alerts(
        self,
        org_id: str | None = None,
        *,
        kind: str | None = None,
        state: str | None = None,
        after: str | None = None,
    ) -> dict[str, Any]:
        """A page of alerts, the newest first: of one organisation, or of whom the key covers."""
        query = {"org_id": org_id, "kind": kind, "state": state, "after": after}
        given = {name: value for name, value in query.items() if value is not None}
        return await self._ask("GET", (*_BASE, "alerts"), query=given)

    async def alert_channels(self, org_id: str | None = None) -> dict[str, Any]:
        """The channels of an organisation, or of the deployment."""
        return await self._ask("GET", _channels(org_id))

    async def put_alert_channel(
        self, org_id: str | None, name: str, channel: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Create a channel or change it."""
        return await self._ask("PUT", (*_channels(org_id), name), channel)

    async def remove_alert_channel(self, org_id: str | None, name: str) -> None:
        """Remove a channel."""
        await self._ask("DELETE", (*_channels(org_id), name))

    async def test_alert_channel(self, org_id: str | None, name: str) -> dict[str, Any]:
        """Send a test through a channel."""
        return await self._ask("POST", (*_channels(org_id), name, "test"))

    async def audit(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of the changes that people and keys have made, as the query asks for."""
        return await self._ask("GET", (*_BASE, "audit"), query=query)

    def reader(self, client: Client) -> Api:
        """A look at a client's data, with the key: its usage and its limits, and nothing else.

        It shares this one's connections; it need not be closed.
        """
        return Api.over(self._transport, client)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(
        self,
        method: str,
        path: _Segments,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        repeatable: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        repeatable = repeatable or method == "GET"
        request = Request(
            method, path_of(*path), query or {}, body, repeatable, headers=headers or {}
        )
        answer: dict[str, Any] | None = await self._transport.send(request)
        return answer or {}

    async def _list(self, path: _Segments, name: str) -> list[dict[str, Any]]:
        def read(after: str | None) -> Awaitable[dict[str, Any]]:
            return self._ask("GET", path, query={} if after is None else {"after": after})

        return await read_every_page(read, name)


async def read_every_page(
    read: Callable[[str | None], Awaitable[Mapping[str, Any]]], name: str
) -> list[dict[str, Any]]:
    """The entries of a list under that name, of all pages; ``read`` reads the one behind."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = await read(after)
        found += page[name]
        after = page.get("next")
        if after is None:
            break
    return found


def _org(org_id: str) -> _Segments:
    return (*_BASE, "orgs", parse_org_id(org_id))


def _channels(org_id: str | None) -> _Segments:
    return (*(_BASE if org_id is None else _org(org_id)), "alert-channels")


def _client(org_id: str, app_id: str | None) -> _Segments:
    return _org(org_id) if app_id is None else (*_org(org_id), "apps", parse_app_id(app_id))


def _if_match(tag: str | None) -> dict[str, str]:
    return {} if tag is None else {"If-Match": f'"{tag}"'}
