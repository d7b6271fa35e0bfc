"""Health, metrics and documentation: for operators, probes and people."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from pricekeeper.clock import Doubt
from pricekeeper.http.documentation import PAGE, POLICY
from pricekeeper.http.metrics import CONTENT_TYPE
from pricekeeper.http.operation import NO_STORE, SECURITY, Access, Answer, Call, Operation
from pricekeeper.wire.identity import Health

CLOCK_IN_DOUBT: Final = "clock in doubt"
_PAGE_SECURITY: Final = tuple({**dict(SECURITY), b"content-security-policy": POLICY}.items())


async def healthz(call: Call) -> Answer:
    """Whether the process is alive; it asks nobody else."""
    del call
    return Answer(200, Health("alive"), NO_STORE)


async def readyz(call: Call) -> Answer:
    """Whether requests can be served: the store takes writes, and we are not shutting down.

    If the clock is in doubt, the answer says so. The instance is unready only if the store's clock
    contradicts its clock. Otherwise no other instance would be a better choice.
    """
    if call.request.state["draining"].is_set():
        return Answer(503, Health("draining"), (*NO_STORE, (b"retry-after", b"1")))
    reason = await call.request.state["readiness"].check()
    if reason is not None:
        return Answer(503, Health("unavailable", reason), (*NO_STORE, (b"retry-after", b"1")))
    doubt = call.services.clock.doubt
    if doubt is Doubt.CONTRADICTED:  # instances with a right clock can do what this one can't
        return Answer(503, Health(CLOCK_IN_DOUBT), (*NO_STORE, (b"retry-after", b"10")))
    return Answer(200, Health(CLOCK_IN_DOUBT if doubt else "ready"), NO_STORE)


async def metrics(call: Call) -> Answer:
    """What Prometheus scrapes, with the metrics token."""
    return Answer(200, call.metrics.render_exposition(), NO_STORE, CONTENT_TYPE)


async def openapi_document(call: Call) -> Answer:
    """This API, described."""
    return Answer(200, call.request.state["openapi"], _CACHE)


async def documentation(call: Call) -> Answer:
    """This API, readable; works offline."""
    del call
    return Answer(200, PAGE, _CACHE, b"text/html; charset=utf-8", _PAGE_SECURITY)


_CACHE: Final = ((b"cache-control", b"public, max-age=300"),)


class Document(msgspec.Struct):
    """An OpenAPI document."""

    openapi: str


_row: Final = partial(Operation, tag="operations")
_public: Final = partial(_row, access=Access.PUBLIC, bounds_itself=True)
OPERATIONS: Final = (
    _public("GET", "/healthz", "healthz", healthz, {200: Health}),
    _public("GET", "/readyz", "readyz", readyz, {200: Health, 503: Health}),
    _row(
        "GET", "/metrics", "metrics", metrics, {200: "text/plain"}, Access.METRICS, problems=(429,)
    ),
    _public("GET", "/openapi.json", "openapi", openapi_document, {200: Document}),
    _public("GET", "/docs", "documentation", documentation, {200: "text/html"}),
)
