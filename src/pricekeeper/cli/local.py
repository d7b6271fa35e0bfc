"""Operations straight on the store: the same clients, over another transport.

Each use case runs in this process, with the deployment's authority. A service on the store sees
changes within 30 seconds.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from pricekeeper.authority import DEPLOYMENT, Attribution
from pricekeeper.bootstrap import Services
from pricekeeper.cli.opening import has_pepper, is_missing_file, open_local_services
from pricekeeper.client.admin import Admin
from pricekeeper.client.api import Api
from pricekeeper.client.transport import Request
from pricekeeper.errors import RequestRefusedError, SettingsError
from pricekeeper.settings import DATA_DIR, PEPPER, Settings
from pricekeeper.shapes import convert
from pricekeeper.tenants import Client, Policy
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.table import USE_CASES
from pricekeeper.wire import operations as ops
from pricekeeper.wire.operation import UNDER_A_POLICY, Operation, names_of

_NEED_PEPPER: Final = names_of(
    *(ops.CLAIM_SECRET, ops.ISSUE_ORG_KEY, ops.CREATE_ADMIN_KEY, ops.ROTATE_ADMIN_KEY),
    *(ops.PUT_CHANNEL, ops.TEST_CHANNEL),
)
"""They hash or encrypt a secret."""
_SETTINGS: Final = names_of(ops.PUT_ORG, ops.PUT_APP, ops.PATCH_ORG, ops.PATCH_APP)
"""The use case checks these bodies, to list every mistake."""


class LocalAsk(Ask):
    """A request of the operator of the store."""

    authority = DEPLOYMENT
    principal = None

    def __init__(
        self, services: Services, request: Request, body: Any, caller: Client | None
    ) -> None:
        self.services = services
        self.path = request.parameters
        self.body = body
        self._request = request
        self._caller = caller
        self._policy: Policy | None = None

    async def read_policy(self) -> None:
        """The policy of the client in the path."""
        self._policy = await self.services.tenants.find_policy(*self.client)

    @property
    def query(self) -> Mapping[str, str]:
        return self._request.query

    @property
    def policy(self) -> Policy:
        if self._policy is None:  # pragma: no cover - its access reads one
            raise LookupError("this operation is declared without a policy")
        return self._policy

    @property
    def caller(self) -> Client:
        if self._caller is None:  # pragma: no cover - only `Api` asks about itself
            raise LookupError("no client asks")
        return self._caller

    @property
    def expected_tag(self) -> str | None:
        return self._request.headers.get("If-Match")

    def by(self, reason: str | None = None) -> Attribution:
        return Attribution(local_actor(), "local", "local", reason, DEPLOYMENT)


class LocalTransport:
    """Runs use cases; ``caller`` is a client that asks about itself."""

    def __init__(
        self, services: Services, *, has_pepper: bool, caller: Client | None = None
    ) -> None:
        self._services = services
        self._has_pepper = has_pepper
        self._caller = caller

    async def send(self, request: Request) -> Any:
        """The answer as JSON; raises what the use case raises."""
        operation = request.operation
        case = None if operation is None else USE_CASES.get(operation.name)
        if operation is None or case is None:
            raise RequestRefusedError("this works on a service only; name one with --url")
        if operation.name in _NEED_PEPPER and not self._has_pepper:
            raise SettingsError(
                DATA_DIR,
                "names a folder without the service's pepper, so that a secret made here would "
                f"open nothing; name the service's folder (or {PEPPER}), or do it there with --url",
            )
        ask = LocalAsk(self._services, request, _body_of(operation, request.body), self._caller)
        if operation.access in UNDER_A_POLICY:
            await ask.read_policy()
        return msgspec.to_builtins(await case(ask))

    async def close(self) -> None:
        """The services are closed where they were opened."""


class LocalBackend:
    """The store, for commands."""

    def __init__(self, services: Services, *, has_pepper: bool) -> None:
        self._services = services
        self._has_pepper = has_pepper
        self.admin = Admin.over(LocalTransport(services, has_pepper=has_pepper))

    def keeper(self, client: Client, *, itself: bool = False) -> Api:
        """The operator may act for any client."""
        del itself
        return self.reader(client)

    def reader(self, client: Client) -> Api:
        transport = LocalTransport(self._services, has_pepper=self._has_pepper, caller=client)
        return Api.over(transport, client)


@asynccontextmanager
async def open_local(settings: Settings, *, may_create: bool) -> AsyncIterator[LocalBackend]:
    """Open the store; claiming secrets needs the service's pepper."""
    has_pepper_here = is_missing_file(settings) or has_pepper(settings)
    async with open_local_services(settings, may_create=may_create) as services:
        yield LocalBackend(services, has_pepper=has_pepper_here)


def _body_of(operation: Operation[Any], given: Any) -> Any:
    plain = msgspec.to_builtins(given)
    if operation.body is None or operation.name in _SETTINGS:
        return plain
    return convert(plain, operation.body)


def local_actor() -> str:
    """The operating system's user."""
    try:
        return f"cli/{getpass.getuser().encode('utf-8', 'replace').decode()}"
    except (KeyError, OSError):  # a container may have a user without a name
        return f"cli/uid-{os.getuid()}"
