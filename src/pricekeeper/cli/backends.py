"""Where a command works: `Admin` and `Api` of a service, or on the store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pricekeeper.cli.exits import MisusedError, RefusedError
from pricekeeper.client_ids import Client
from pricekeeper.settings import (
    ADMIN_KEY,
    CLIENT_ID,
    CLIENT_SECRET,
    CONFIG,
    LOG_LEVEL,
    STORE,
    URL,
    Settings,
    read_settings,
)
from pricekeeper.values import parse_app_id, parse_org_id

if TYPE_CHECKING:  # a command that only explains itself imports none of this
    from pricekeeper.client import Admin, Api


def client_of(org: str, app: str | None) -> Client:
    """The client of ORG and APP."""
    return Client(parse_org_id(org), None if app is None else parse_app_id(app))


@dataclass(frozen=True, slots=True)
class Where:
    """The service or store, and the credentials, from the command line."""

    store: str | None = None
    config: str | None = None
    url: str | None = None
    key: str | None = field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)

    @property
    def service_url(self) -> str | None:
        """``--store`` overrides the environment's."""
        said_store = self.store is not None or self.config is not None
        if self.url is not None and said_store:
            raise MisusedError("--url and --store or --config exclude each other")
        return self.url or (None if said_store else os.environ.get(URL) or None)

    @property
    def provisioning_key(self) -> str | None:
        return self.key or os.environ.get(ADMIN_KEY) or self.settings().provisioning_key

    @property
    def client(self) -> tuple[str, str] | None:
        client_id = self.client_id or os.environ.get(CLIENT_ID)
        secret = self.client_secret or os.environ.get(CLIENT_SECRET)
        return (client_id, secret) if client_id and secret else None

    def require_named_store(self) -> None:
        """Refuse the default store if the environment names only a service."""
        if self.service_url is not None and not os.environ.get(STORE):
            raise MisusedError(
                f"this works on the store itself, and ${URL} names a service; "
                f"say the service's store with --store, or ${STORE}"
            )

    def settings(self) -> Settings:
        """This process's settings, with the command line's over them."""
        said = {STORE: self.store, CONFIG: self.config}
        given = {name: value for name, value in said.items() if value is not None}
        return read_settings({**os.environ, **given})


class Backend(Protocol):
    """Where a command works."""

    @property
    def admin(self) -> Admin: ...

    def keeper(self, client: Client, *, itself: bool = False) -> Api:
        """One client's operations; ``itself`` if its organisation can't act for it."""
        ...

    def reader(self, client: Client) -> Api:
        """One client's data, also for a provisioning key."""
        ...


class RemoteBackend:
    """A running service."""

    def __init__(self, target: Where, url: str, closing: AsyncExitStack) -> None:
        self._target = target
        self._url = url
        self._closing = closing
        self._admin: Admin | None = None

    @property
    def admin(self) -> Admin:
        """With the key if there is one; claiming needs none."""
        from pricekeeper.client import Admin  # noqa: PLC0415

        if self._admin is None:
            self._admin = Admin(self._url, self._target.provisioning_key)
            self._closing.push_async_callback(self._admin.close)
        return self._admin

    def reader(self, client: Client) -> Api:
        """With the given key, the client's credentials, or the environment's key."""
        credentials, own = self._target.client, {client.client_id, client.org.client_id}
        has_own = credentials is not None and credentials[0] in own
        if (has_own and self._target.key is None) or self._target.provisioning_key is None:
            return self.keeper(client)
        return self.admin.reader(client)

    def keeper(self, client: Client, *, itself: bool = False) -> Api:
        from pricekeeper.client import Api  # noqa: PLC0415

        credentials = self._target.client
        if credentials is None:
            raise RefusedError(
                f"a service shows this to the client alone: set {CLIENT_ID} and {CLIENT_SECRET}, "
                "or leave --url out and work on the store"
            )
        client_id, secret = credentials
        allowed = {client.client_id} if itself else {client.client_id, client.org.client_id}
        if client_id not in allowed:
            raise RefusedError(
                f"{client_id} can't see this: use the credentials of {' or '.join(sorted(allowed))}"
            )
        app_id = None if client_id == client.client_id else client.app_id
        keeper = Api(self._url, client_id, secret, app_id=app_id)
        self._closing.push_async_callback(keeper.close)
        return keeper


@asynccontextmanager
async def open_backend(target: Where, *, may_create: bool = False) -> AsyncIterator[Backend]:
    """Open the store or service; a missing store is an error unless ``may_create``."""
    url = target.service_url
    if url is not None:
        async with AsyncExitStack() as closing:
            yield RemoteBackend(target, url, closing)
        return
    from pricekeeper.cli.local import open_local  # noqa: PLC0415  # it brings everything

    async with open_local(target.settings(), may_create=may_create) as local:
        yield local


def quiet_logs() -> None:
    """Log only errors by default: stdout is for answers."""
    from pricekeeper.telemetry.logs import configure_logging  # noqa: PLC0415

    wanted = os.environ.get(LOG_LEVEL, "error").lower()
    configure_logging(wanted if wanted in ("debug", "info", "warning") else "error")
