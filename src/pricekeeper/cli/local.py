"""Straight on the store: the service's own operations, called without socket and credentials.

Whoever can open the store owns what is in it, so nobody is asked who they are. Everything behind
the gate is the service's own code, which makes the answers the same as over HTTP, to the byte.
A service that runs on the same store sees a change within thirty seconds.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote, urlencode

import msgspec
from starlette.types import Message

from pricekeeper.bootstrap import Services, open_services
from pricekeeper.cli.stores import is_missing_file, store_name
from pricekeeper.client import Admin, PriceKeeper, Request
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.credentials.pepperfile import FILE as PEPPER_FILE
from pricekeeper.errors import NotFoundError, SettingsError, StoreMisconfiguredError
from pricekeeper.http.app import OPERATIONS
from pricekeeper.http.encoding import EncodedAnswers
from pricekeeper.http.incoming import Incoming
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.operation import Call, Operation
from pricekeeper.http.routing import Paths
from pricekeeper.settings import DATA_DIR, Settings
from pricekeeper.storage import Store, open_store
from pricekeeper.tenants import Client
from pricekeeper.tokens import Principal

NEEDING_THE_PEPPER: Final = frozenset({"claimSecret", "issueProvisioningKey"})
"""What hands out a secret: its hash is made under the service's own pepper."""

_JSON: Final = [(b"content-type", b"application/json")]


class LocalTransport:
    """Carries requests to the operations of this process, as the client or as the operator."""

    def __init__(
        self, services: Services, client: Client | None = None, *, claims: bool = False
    ) -> None:
        self._services = services
        self._principal = None if client is None else _principal(client)
        self._claims = claims

    async def send(self, request: Request) -> Any:
        """The answer's JSON; raises the error itself where a service would tell a problem."""
        operation, path = _found(request)
        if operation.name in NEEDING_THE_PEPPER and not self._claims:
            raise SettingsError(
                DATA_DIR,
                "names a folder without the service's pepper, so that a secret made here would "
                "open nothing; name the service's folder, or do it there with --url",
            )
        call = Call(
            services=self._services,
            api_limits=ApiLimits(self._services.limiter, {}),
            metrics=Metrics(self._services.meter),
            encoded=EncodedAnswers(),
            request=_incoming(request),
            request_id="local",
            path=path,
            principal=self._principal,
            actor=local_actor(),
        )
        body = (await operation.perform(call)).body
        if body is None:
            return None
        return msgspec.json.decode(body if isinstance(body, bytes) else msgspec.json.encode(body))

    async def close(self) -> None:
        """The services are somebody else's."""


class Local:
    """The store as a place for commands."""

    def __init__(self, services: Services, *, claims: bool) -> None:
        self._services = services
        self._claims = claims

    @property
    def admin(self) -> Admin:
        """Provisioning."""
        return Admin.over(LocalTransport(self._services, claims=self._claims))

    def keeper(self, client: Client, *, itself: bool = False) -> PriceKeeper:
        """What concerns one client; the operator may act for any."""
        del itself
        return PriceKeeper.over(LocalTransport(self._services, client), client)

    def reader(self, client: Client) -> PriceKeeper:
        """A look at one client's data."""
        return self.keeper(client)


@asynccontextmanager
async def open_local(settings: Settings, *, may_create: bool) -> AsyncIterator[Local]:
    """The store as a place; secrets can be claimed where the service's pepper is."""
    claims = is_missing_file(settings) or (settings.data_dir / PEPPER_FILE).exists()
    async with opened_services(settings, may_create=may_create) as services:
        yield Local(services, claims=claims)


@asynccontextmanager
async def opened_services(
    settings: Settings, *, may_create: bool = False
) -> AsyncIterator[Services]:
    """Everything that the service would open, leaving no keys where it has none.

    A new store gets new keys and a new pepper, as at a first start. But a store that is there
    already has a service somewhere with its own, and whatever were made here beside it would
    be taken for those later.
    """
    is_new = is_missing_file(settings)
    if not may_create:
        _require_store(settings)
    with ExitStack() as closing:
        if not is_new and not (settings.data_dir / PEPPER_FILE).exists():
            folder = closing.enter_context(TemporaryDirectory(prefix="pricekeeper-"))
            settings = replace(settings, data_dir=Path(folder))
        async with open_services(settings) as services:
            yield services


@asynccontextmanager
async def opened_store(
    settings: Settings, *, may_create: bool = False, clock: Clock | None = None
) -> AsyncIterator[Store]:
    """The store alone, for what needs neither keys nor prices. Nothing is created in it."""
    if not may_create:
        _require_store(settings)
    store = await open_store(settings.store, clock=clock or SystemClock())
    try:
        yield store
    finally:
        await store.close()


def _require_store(settings: Settings) -> None:
    if is_missing_file(settings):
        raise StoreMisconfiguredError(f"there is no store: {store_name(settings)} is missing")


def _found(request: Request) -> tuple[Operation, Mapping[str, str]]:
    """The operation on that path; a path that nobody serves names nothing."""
    operation, parameters = _paths()[request.method].find(unquote(request.path))
    if operation is None:
        raise NotFoundError(f"{request.method} {request.path}")
    return operation, parameters


@cache
def _paths() -> Mapping[str, Paths[Operation]]:
    """Every operation by method and path."""
    paths: dict[str, Paths[Operation]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.method, Paths()).add(operation.path, operation)
    return paths


def _incoming(request: Request) -> Incoming:
    body = b"" if request.body is None else msgspec.json.encode(request.body)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "query_string": urlencode(request.query).encode(),
        "headers": _JSON,
        "client": ("local", 0),
    }
    return Incoming(scope, receive)


def local_actor() -> str:
    """Who runs this command, as far as the operating system knows."""
    try:
        return f"cli/{getpass.getuser()}"
    except (KeyError, OSError):  # a container may have a user without a name
        return f"cli/uid-{os.getuid()}"


def _principal(client: Client) -> Principal:
    """The client itself, without a session."""
    return Principal(
        org_id=client.org_id,
        app_id=client.app_id,
        client_id=client.client_id,
        scopes=frozenset(),
        session_id="",
        token_id="",
        issued_at_epoch=0,
        expires_at_epoch=0,
    )
