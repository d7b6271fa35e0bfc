"""Health, readiness, metrics and documentation.

`Readiness` writes and reads a small item, because a readable store may refuse writes. Anyone may
ask ``/readyz`` and a probe costs money on DynamoDB, so one probe answers everyone within
`MEMORY_MS`. A request waits at most `PROBE_MS_MAX`; a hanging probe stays the only one until it
ends. The public answer names only the kind of trouble; the log has the details, once per change.

The documentation page is one HTML file that works offline. A hash in its content security policy
admits exactly its own script and style.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from importlib.resources import files
from typing import Final

import structlog

from pricekeeper import errors
from pricekeeper.clock import Clock, Doubt
from pricekeeper.errors import StoreError
from pricekeeper.http.metrics import CONTENT_TYPE
from pricekeeper.http.operation import NO_STORE, SECURITY, Answer, Call
from pricekeeper.storage import Item, Key, Put, Store
from pricekeeper.storage.tables import REVOKED_TOKENS
from pricekeeper.wire.identity import Health

_PAGE: Final = files("pricekeeper.http").joinpath("documentation.html").read_text("utf-8")


def _hash_of(tag: str) -> str:
    inside = _PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    digest = hashlib.sha256(inside.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


PAGE: Final = _PAGE.encode()
POLICY: Final = (
    f"default-src 'none'; connect-src 'self'; script-src {_hash_of('script')}; "
    f"style-src {_hash_of('style')}; base-uri 'none'; frame-ancestors 'none'"
).encode()

CLOCK_IN_DOUBT: Final = "clock in doubt"
_PAGE_SECURITY: Final = tuple({**dict(SECURITY), b"content-security-policy": POLICY}.items())


async def healthz(call: Call) -> Answer:
    """Whether the process is alive; it asks no other service."""
    del call
    return Answer(200, Health("alive"), NO_STORE)


async def readyz(call: Call) -> Answer:
    """Whether requests can be served: the store takes writes, and we are not shutting down.

    A doubtful clock is reported. It makes the instance unready only if the store's clock
    contradicts it; otherwise no other instance would be a better choice.
    """
    if call.request.state["draining"].is_set():
        return Answer(503, Health("draining"), (*NO_STORE, (b"retry-after", b"1")))
    reason = await call.request.state["readiness"].check()
    if reason is not None:
        return Answer(503, Health("unavailable", reason), (*NO_STORE, (b"retry-after", b"1")))
    doubt = call.services.clock.doubt
    if doubt is Doubt.CONTRADICTED:
        return Answer(503, Health(CLOCK_IN_DOUBT), (*NO_STORE, (b"retry-after", b"10")))
    return Answer(200, Health(CLOCK_IN_DOUBT if doubt else "ready"), NO_STORE)


async def metrics(call: Call) -> Answer:
    """What Prometheus scrapes, with the metrics token."""
    return Answer(200, call.metrics.render_exposition(), NO_STORE, CONTENT_TYPE)


async def openapi_document(call: Call) -> Answer:
    """The OpenAPI document of this API."""
    return Answer(200, call.request.state["openapi"], _CACHE)


async def documentation(call: Call) -> Answer:
    """The documentation of this API; works offline."""
    del call
    return Answer(200, PAGE, _CACHE, b"text/html; charset=utf-8", _PAGE_SECURITY)


_CACHE: Final = ((b"cache-control", b"public, max-age=300"),)


MEMORY_MS: Final = 1_000
PROBE_MS_MAX: Final = 1_500
"""With the rest of the request, an answer takes about 2 s."""
HANGS: Final = (
    "the store did not take a write in time: it hangs, or another process holds its write lock"
)

_PROBE: Final = Key("readyz")
_PROBE_LIFE_SECS: Final = 3_600
_REASONS: Final[dict[type[StoreError], str]] = {
    errors.StoreReplacedError: "the database file was removed or replaced; restart the service",
    errors.StoreDamagedError: "the database file is damaged; restore it and restart the service",
    errors.StoreReadOnlyError: "the database file is read-only",
    errors.StoreMisconfiguredError: "the store refuses: check its tables, permissions and files",
    errors.StoreFullError: "the disk is full",
    errors.ThrottledError: "the store is throttling writes",
    errors.ContendedError: "another process holds the write lock of the database",
    errors.StoreUnavailableError: "the store can't be reached or written",
    errors.OutcomeUnknownError: "the store did not confirm a write",
}

_log = structlog.get_logger(__name__)


class Readiness:
    """Probes the store, and remembers the result for `MEMORY_MS`."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._probe: asyncio.Task[str | None] | None = None
        self._patience: asyncio.Task[None] | None = None
        self._began_ms = 0
        self._probes = secrets.randbits(32)
        self._logged: str | None = None

    async def check(self) -> str | None:
        """Why the service can't work; ``None`` if it can. At most `MEMORY_MS` old."""
        now_ms = self._clock.monotonic_ms()
        probe, patience = self._probe, self._patience
        if probe is None or (probe.done() and now_ms - self._began_ms >= MEMORY_MS):
            probe = asyncio.create_task(self._ask(), name="pricekeeper-readiness")
            patience = asyncio.create_task(self._clock.sleep_ms(PROBE_MS_MAX))
            probe.add_done_callback(lambda _: patience.cancel())
            self._probe, self._patience, self._began_ms = probe, patience, now_ms
        if not probe.done() and patience is not None:
            # The caller that began the probe may leave; the others still wait.
            await asyncio.wait((probe, patience), return_when=asyncio.FIRST_COMPLETED)
        return probe.result() if probe.done() else self._note(HANGS, HANGS)

    async def aclose(self) -> None:
        """Wait for the current probe, before the store closes."""
        if self._probe is not None:
            await asyncio.wait([self._probe])

    async def _ask(self) -> str | None:
        expires = self._clock.now_ms() // 1000 + _PROBE_LIFE_SECS
        self._probes += 1
        # SQLite does not write an unchanged item, so each one is different.
        item: Item = {"PK": _PROBE.pk, "expires_at_epoch": expires, "probe": self._probes}
        try:
            await self._store.put(Put(REVOKED_TOKENS, item))
            await self._store.get(REVOKED_TOKENS, _PROBE)
        except StoreError as error:
            return self._note(_reason_of(error), str(error))
        return self._note(None, "")

    def _note(self, reason: str | None, detail: str) -> str | None:
        if reason != self._logged:
            self._logged = reason
            if reason is None:
                _log.info("ready_again")
            else:
                _log.warning("not_ready", reason=reason, detail=detail)
        return reason


def _reason_of(error: StoreError) -> str:
    for kind in type(error).__mro__:
        if kind in _REASONS:
            return _REASONS[kind]
    return "the store failed"
