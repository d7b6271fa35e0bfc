"""The ASGI application: routes, and the lifespan that opens and closes the services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pricekeeper.bootstrap import Services, open_services
from pricekeeper.errors import StoreError
from pricekeeper.settings import Settings
from pricekeeper.storage import Key
from pricekeeper.storage.tables import CONFIG

_PROBE: Final = Key("readyz", "readyz")


class State(TypedDict):
    """What a request handler can reach."""

    services: Services


def make_app(settings: Settings) -> Starlette:
    """An application that opens its services when it starts."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[State]:
        async with open_services(settings) as services:
            yield {"services": services}

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz)], lifespan=lifespan
    )


async def healthz(_: Request) -> JSONResponse:
    """Whether the process is alive; it asks nobody else."""
    return JSONResponse({"status": "alive"})


async def readyz(request: Request[State]) -> JSONResponse:
    """Whether the store answers, so that requests can be served."""
    try:
        await request.state["services"].store.get(CONFIG, _PROBE)
    except StoreError as error:
        return JSONResponse({"status": "unavailable", "code": error.code}, status_code=503)
    return JSONResponse({"status": "ready"})
