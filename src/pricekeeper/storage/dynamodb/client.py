"""Sends a request to DynamoDB, and retries it where that is safe.

*Surely not applied* (no connection, a throttle, a conflict): every request is retried. *Refused*:
the caller of this module reads DynamoDB's answer. *Reply lost* (a timeout, a reset, a broken body,
a server error): the write may have happened, and `Repeat` decides. Then no later failure proves
that nothing was applied, so giving up raises `OutcomeUnknownError`.

aiohttp does not retry POST on a stale connection; a test checks that. Redirects are off.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final

import aiohttp
import msgspec
import yarl

from pricekeeper.clock import LEAP_MS_MAX, Clock, TrustedClock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import (
    InvalidOperationError,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from pricekeeper.storage.dynamodb.credentials import AwsAccess, Signer
from pricekeeper.storage.dynamodb.faults import (
    PASSING,
    SKEWED,
    TRANSACTION_CANCELLED,
    Fault,
    Treatment,
    fault_of,
    refused_write_units,
)
from pricekeeper.telemetry import StoreMeter

_TARGET: Final = "DynamoDB_20120810."
_CHECKSUM: Final = "x-amz-crc32"
_OK: Final = 200
_HALF_A_SECOND_MS: Final = 500
"""The average delay of a Date header, which has whole seconds."""
_READS: Final = frozenset({"GetItem", "BatchGetItem", "Query"})
_NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_AUTO_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of waits, attempts and connections."""

    connections_max: int = 64
    connect_timeout_ms: int = 1_000
    """Less than the total, so a request that takes longer was sent."""
    total_timeout_ms: int = 3_000
    attempts_max: int = 8
    lost_replies_max: int = 3
    patience_ms: int = 15_000
    start_wait_ms: int = 0
    """How long to wait for tables, beyond one request's patience, while the store keeps failing."""
    pause_first_ms: int = 25
    pause_max_ms: int = 1_600


class Repeat(Enum):
    """Whether a request whose reply was lost may be sent again."""

    HARMLESS = "harmless"
    """It changes nothing visible: retry."""
    TOKENED = "tokened"
    """It carries a token by which DynamoDB recognises it: retry."""
    GUARDED = "guarded"
    """Once applied, its own condition refuses it: retry, but then a refusal proves nothing."""
    NEVER = "never"
    """It could be applied twice."""


class RequestRefused(Exception):  # noqa: N818  # an answer, and never seen outside of this package
    """DynamoDB refused; with ``after_lost_reply`` the lost attempt may be the cause."""

    def __init__(self, fault: Fault, *, after_lost_reply: bool) -> None:
        super().__init__(fault.name)
        self.name = fault.name
        self.reply = fault.reply
        self.after_lost_reply = after_lost_reply


class DynamoDbClient:
    """A signing, counting, retrying connection pool to one endpoint."""

    def __init__(
        self,
        access: AwsAccess,
        *,
        clock: Clock,
        meter: StoreMeter,
        prefix: str,
        limits: Limits,
        randomness: random.Random,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._trusted = clock if isinstance(clock, TrustedClock) else None
        self._date_noted = ""
        self._meter = meter
        self._prefix = prefix
        self._randomness = randomness
        self._url = yarl.URL(access.endpoint + "/")
        self._credentials = access.credentials
        self._signer = Signer(access.region, access.host)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limits.connections_max, ssl=access.trust, ttl_dns_cache=60
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._signer.constant_headers,
            skip_auto_headers=_AUTO_HEADERS,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(
                total=limits.total_timeout_ms / 1000, connect=limits.connect_timeout_ms / 1000
            ),
        )

    async def close(self) -> None:
        await self._session.close()

    async def pause(self, failures: int) -> None:
        await self._clock.sleep_ms(self._pause_ms(failures))

    async def call(
        self,
        action: str,
        request: Mapping[str, Any],
        repeat: Repeat | Callable[[], Repeat],
        *,
        expected: str = "",
    ) -> dict[str, Any]:
        """Send a request; raises `RequestRefused` for a condition or the ``expected`` error name.

        At most ``attempts_max`` attempts, none started after ``patience_ms``. A function ``repeat``
        is called only when a reply is lost.
        """
        body = _body(request)
        deadline_ms = self._clock.monotonic_ms() + self.limits.patience_ms
        lost = 0
        renewed = False
        for attempt in range(1, self.limits.attempts_max + 1):
            outcome = await self._attempt(action, body)
            if not isinstance(outcome, Fault):
                return outcome
            fault = outcome
            for table, units in refused_write_units(request, fault).items():
                self._meter.write_half_units[table.removeprefix(self._prefix)] += 2 * units
            if fault.treatment is Treatment.RENEW and not renewed:
                renewed = True  # once: newer credentials that are refused, too, are no good
                continue
            if fault.treatment not in PASSING or fault.name == expected:
                break
            self._meter.faults[fault.treatment.value] += 1
            if fault.treatment is Treatment.LOST:
                lost += 1
                repeat = repeat if isinstance(repeat, Repeat) else repeat()
                if repeat is Repeat.NEVER or lost == self.limits.lost_replies_max:
                    break
            pause_ms = self._pause_ms(attempt)
            if self._clock.monotonic_ms() + pause_ms > deadline_ms:
                break
            if attempt < self.limits.attempts_max:
                await self._clock.sleep_ms(pause_ms)
        raise _final(action, fault, lost, repeat, expected)

    async def _attempt(self, action: str, body: bytes) -> dict[str, Any] | Fault:
        try:
            credentials = self._credentials.current() or await self._credentials.renew()
        except StoreMisconfiguredError as error:
            return Fault(Treatment.MISCONFIGURED, "Credentials", str(error))
        except StoreUnavailableError as error:
            return Fault(Treatment.UNAVAILABLE, "Credentials", str(error))
        now_ms = self._clock.now_ms()
        headers = self._signer.headers(credentials, _TARGET + action, body, now_ms // 1000)
        self._meter.attempts[action] += 1
        try:
            # No "async with": read() releases the connection on every path.
            response = await self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            )
            content = await response.read()
        except _NEVER_SENT as error:
            return Fault(Treatment.UNREACHABLE, type(error).__name__, str(error))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Fault(Treatment.LOST, type(error).__name__, str(error))
        self._note_date(response.headers.get("Date"))
        outcome = _read(response.status, response.headers.get(_CHECKSUM), content)
        if not isinstance(outcome, Fault):
            self._count_capacity(action, outcome)
        elif outcome.name in SKEWED and abs(self._clock.now_ms() - now_ms) > LEAP_MS_MAX:
            # The reply has corrected our time; the next request is signed with it.
            return Fault(Treatment.RENEW, outcome.name, outcome.message)
        elif outcome.treatment is Treatment.RENEW:
            self._credentials.discard(credentials)
        return outcome

    def _note_date(self, date: str | None) -> None:
        """Pass the store's time to our clock, once for replies with the same date."""
        if self._trusted is None or date is None or date == self._date_noted:
            return
        self._date_noted = date
        with contextlib.suppress(ValueError):  # a proxy's own idea of a date says nothing
            date_ms = int(parsedate_to_datetime(date).timestamp()) * 1000
            self._trusted.note_store_date(date_ms + _HALF_A_SECOND_MS)

    def _pause_ms(self, failures: int) -> int:
        backoff = Backoff(self.limits.pause_first_ms, self.limits.pause_max_ms)
        return backoff.pause_ms(failures, self._randomness.randrange)

    def _count_capacity(self, action: str, reply: dict[str, Any]) -> None:
        consumed = reply.get("ConsumedCapacity")
        if consumed is None:
            return
        for entry in consumed if isinstance(consumed, list) else (consumed,):
            table = entry.get("TableName", "").removeprefix(self._prefix)
            read, write = entry.get("ReadCapacityUnits", 0), entry.get("WriteCapacityUnits", 0)
            if not read and not write:  # reported apart only where an action could be either
                units = entry.get("CapacityUnits", 0)
                read, write = (units, 0) if action in _READS else (0, units)
            if read:
                self._meter.read_half_units[table] += round(2 * read)
            if write:
                self._meter.write_half_units[table] += round(2 * write)


def _body(request: Mapping[str, Any]) -> bytes:
    try:
        return _encode(request)
    except UnicodeEncodeError as error:
        raise InvalidOperationError("a string holds a lone surrogate, which is not text") from error


def _read(status: int, checksum: str | None, content: bytes) -> dict[str, Any] | Fault:
    if checksum is not None and checksum != str(zlib.crc32(content)):
        return Fault(Treatment.LOST, "Checksum", "the reply does not match its checksum")
    try:
        reply = _decode(content)
    except msgspec.DecodeError as error:
        return Fault(Treatment.LOST, f"HTTP {status}", f"the reply is no JSON object: {error}")
    return reply if status == _OK else fault_of(status, reply)


def _final(
    action: str, fault: Fault, lost: int, repeat: object, expected: str
) -> RequestRefused | StoreError:
    if fault.treatment is Treatment.REFUSED or fault.name == expected:
        return RequestRefused(fault, after_lost_reply=lost > 0)
    # A cancellation under a token is certain: DynamoDB would have known the token if the first copy
    # had been applied. Any other failure leaves a lost reply lost.
    cancelled = fault.name == TRANSACTION_CANCELLED and fault.treatment not in PASSING
    if lost and repeat is not Repeat.HARMLESS and not cancelled:
        return OutcomeUnknownError(f"it may or may not have been applied: {fault.text(action)}")
    return fault.error(action)
