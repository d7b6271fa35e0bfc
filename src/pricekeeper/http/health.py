"""Health, metrics and documentation: for operators, probes and people.

Whether the service can do its work: a small item is written and read, at most once a second.

A store that can be read may still refuse every write: the disk is full, the file system is
read-only, or a process that was stopped holds the write lock. So the probe goes the way that every
write goes. Anybody may ask ``/readyz``, and each probe costs money on DynamoDB. So one probe
answers everybody who asks while it is under way, or within a second of its beginning. Nobody waits
for it longer than `PROBE_MS_MAX`; a probe that hangs stays the only one until it ends.

The answer names the kind of the trouble alone, because anybody may read it. The log has the rest,
once for each change.

The documentation page: the OpenAPI document made readable, without asking anybody else.

One HTML file with its own style and script inside, so that it works offline and under a strict
content security policy; a hash in the policy admits exactly that script and that style.
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


MEMORY_MS: Final = 1_000
PROBE_MS_MAX: Final = 1_500
"""How long anybody waits for a probe; with the rest of a request, an answer takes about 2 s."""
HANGS: Final = "the store has not taken a write in time; a write lock may be held, or it hangs"

_PROBE: Final = Key("readyz")
_PROBE_LIFE_SECS: Final = 3_600
_REASONS: Final[dict[type[StoreError], str]] = {
    errors.StoreReplacedError: "the database file was removed or replaced; restart the service",
    errors.StoreDamagedError: "the database file is damaged; restore it and restart the service",
    errors.StoreReadOnlyError: "the database file can't be written: it is read-only",
    errors.StoreMisconfiguredError: "the store refuses: a table, a permission or a file is amiss",
    errors.StoreFullError: "the disk is full",
    errors.ThrottledError: "the store takes no more writes for now",
    errors.ContendedError: "another process holds the write lock of the database",
    errors.StoreUnavailableError: "the store can't be reached or written",
    errors.OutcomeUnknownError: "the store does not say whether it has taken a write",
}

_log = structlog.get_logger(__name__)


class Readiness:
    """What is known of the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._probe: asyncio.Task[str | None] | None = None
        """The last one, under way or done."""
        self._patience: asyncio.Task[None] | None = None
        """Ends when nobody waits for that probe any longer."""
        self._began_ms = 0
        self._probes = secrets.randbits(32)
        self._logged: str | None = None

    async def check(self) -> str | None:
        """Why the service can't work, by a probe that began a second ago at most; else nothing."""
        now_ms = self._clock.monotonic_ms()
        probe, patience = self._probe, self._patience
        if probe is None or (probe.done() and now_ms - self._began_ms >= MEMORY_MS):
            probe = asyncio.create_task(self._ask(), name="pricekeeper-readiness")
            patience = asyncio.create_task(self._clock.sleep_ms(PROBE_MS_MAX))
            probe.add_done_callback(lambda _: patience.cancel())
            self._probe, self._patience, self._began_ms = probe, patience, now_ms
        if not probe.done() and patience is not None:
            # Whoever has begun it may leave; the others still wait for it.
            await asyncio.wait((probe, patience), return_when=asyncio.FIRST_COMPLETED)
        return probe.result() if probe.done() else self._note(HANGS, HANGS)

    async def close(self) -> None:
        """Wait for a probe that is under way: the store closes next."""
        if self._probe is not None:
            await asyncio.wait([self._probe])

    async def _ask(self) -> str | None:
        expires = self._clock.now_ms() // 1000 + _PROBE_LIFE_SECS
        self._probes += 1
        # SQLite does not write an item that is the same as before, so each one is different.
        item: Item = {"PK": _PROBE.pk, "expires_at_epoch": expires, "probe": self._probes}
        try:
            await self._store.put(Put(REVOKED_TOKENS, item))
            await self._store.get(REVOKED_TOKENS, _PROBE)
        except StoreError as error:
            return self._note(_reason_of(error), str(error))
        return self._note(None, "")

    def _note(self, reason: str | None, detail: str) -> str | None:
        """Log a change of the answer, and give it back."""
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
