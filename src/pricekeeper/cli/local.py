"""Straight on the store: the service's own operations, called without socket and credentials.

Whoever can open the store owns what is in it, so nobody is asked who they are. Everything behind
the gate is the service's own code, which makes the answers the same as over HTTP, to the byte.
A service that runs on the same store sees a change within thirty seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import unquote, urlencode

import msgspec
import starlette.requests
from starlette.routing import compile_path
from starlette.types import Message

from pricekeeper.bootstrap import Services, open_services
from pricekeeper.client import Admin, PriceKeeper, Request
from pricekeeper.clock import SystemClock
from pricekeeper.errors import NotFoundError
from pricekeeper.http.app import OPERATIONS
from pricekeeper.http.edge import read_json
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.operation import Call, Operation
from pricekeeper.settings import Settings
from pricekeeper.storage import Store, open_store
from pricekeeper.tenants import Client
from pricekeeper.tokens import Principal

_PATHS: Final = [(compile_path(operation.path)[0], operation) for operation in OPERATIONS]
_JSON: Final = [(b"content-type", b"application/json")]


class LocalTransport:
    """Carries requests to the operations of this process, as the client or as the operator."""

    def __init__(self, services: Services, client: Client | None = None) -> None:
        self._services = services
        self._principal = None if client is None else _principal(client)

    async def send(self, request: Request) -> Any:
        """The answer's JSON; raises the error itself where a service would tell a problem."""
        operation, path = _found(request)
        call = Call(
            services=self._services,
            api_limits=ApiLimits(self._services.limiter, {}),
            metrics=Metrics(self._services.meter),
            request=_as_starlette(request),
            request_id="local",
            path=path,
            principal=self._principal,
        )
        if operation.body is not None and not operation.reads_body:
            call.body = await read_json(call.request, operation.body)
        body = (await operation.handler(call)).body
        if body is None:
            return None
        return msgspec.json.decode(body if isinstance(body, bytes) else msgspec.json.encode(body))

    async def close(self) -> None:
        """The services are somebody else's."""


class Local:
    """The store as a place for commands."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def admin(self) -> Admin:
        """Provisioning."""
        return Admin.over(LocalTransport(self._services))

    def keeper(self, client: Client, *, itself: bool = False) -> PriceKeeper:
        """What concerns one client; the operator may act for any."""
        del itself
        return PriceKeeper.over(LocalTransport(self._services, client), client)


@asynccontextmanager
async def open_local(settings: Settings) -> AsyncIterator[Local]:
    """Open everything that the service would open."""
    async with open_services(settings) as services:
        yield Local(services)


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """The store alone, for what needs neither keys nor prices. Nothing is created in it."""
    store = await open_store(settings.store, clock=SystemClock())
    try:
        yield store
    finally:
        await store.close()


def _found(request: Request) -> tuple[Operation, dict[str, str]]:
    for pattern, operation in _PATHS:
        matched = pattern.match(request.path) if operation.method == request.method else None
        if matched is not None:
            return operation, {name: unquote(text) for name, text in matched.groupdict().items()}
    raise NotFoundError(f"{request.method} {request.path}")  # pragma: no cover - a client's bug


def _as_starlette(request: Request) -> starlette.requests.Request[Any]:
    body = b"" if request.body is None else msgspec.json.encode(request.body)
    messages: Sequence[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    following = iter(messages)

    async def receive() -> Message:
        return next(following)

    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "query_string": urlencode(request.query).encode(),
        "headers": _JSON,
        "client": None,
    }
    return starlette.requests.Request(scope, receive)


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
