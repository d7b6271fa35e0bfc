"""GetSecretValue of AWS Secrets Manager, over its JSON 1.1 protocol.

One small request, signed by us, with credentials and endpoint from botocore's own chain, as the
DynamoDB client does it. It changes nothing, so it may be sent again: a few times, within seconds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from typing import Any, Final

import aiohttp
import msgspec

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import StoreError
from pricekeeper.settings import AwsSecret
from pricekeeper.sigv4 import AwsKeys
from pricekeeper.storage.dynamodb.credentials import AwsAccess, find_service
from pricekeeper.storage.dynamodb.faults import PASSING, Fault, Treatment, fault_of
from pricekeeper.storage.dynamodb.signed_post import post_signed

SERVICE: Final = "secretsmanager"
ACTION: Final = "GetSecretValue"
ATTEMPTS_MAX: Final = 4
TIMEOUT_SECS: Final = 3
_BACKOFF: Final = Backoff(100, 1_600)
_HEADERS: Final = {
    "content-type": "application/x-amz-json-1.1",
    "x-amz-target": f"{SERVICE}.{ACTION}",
}
_OK: Final = 200


class SecretUnavailableError(Exception):
    """The secret can't be had; the message says why, and nothing that is secret."""


class _Reply(msgspec.Struct, frozen=True):
    """What is used of the answer. A secret is text, or bytes in base64."""

    SecretString: str | None = None
    SecretBinary: str | None = None


class SecretsManager:
    """One secret of AWS Secrets Manager."""

    def __init__(self, secret: AwsSecret, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock
        self._access: AwsAccess | None = None
        self._random = random.Random()  # noqa: S311  # spreads attempts, no secret

    async def read(self) -> str:
        """The secret as it is now (its version AWSCURRENT)."""
        fault = Fault(Treatment.UNAVAILABLE, "NoAnswer")
        for attempt in range(1, ATTEMPTS_MAX + 1):
            outcome = await self._attempt()
            if not isinstance(outcome, Fault):
                return _text_of(outcome)
            fault = outcome
            if fault.treatment not in (*PASSING, Treatment.RENEW):
                break
            if attempt < ATTEMPTS_MAX:
                await self._clock.sleep_ms(_BACKOFF.pause_ms(attempt, self._random.randrange))
        raise SecretUnavailableError(fault.text(ACTION))

    async def _attempt(self) -> dict[str, Any] | Fault:
        """Ask once: the reply, or what went wrong."""
        try:
            if self._access is None:
                self._access = await find_service(SERVICE, self._secret.region, self._clock)
            credentials = self._access.credentials
            keys = credentials.current() or await credentials.renew()
        except StoreError as error:
            return Fault(Treatment.UNAVAILABLE, "Credentials", str(error))
        body = msgspec.json.encode({"SecretId": self._secret.secret_id})
        try:
            outcome = await self._send(self._access, keys, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Fault(Treatment.UNREACHABLE, type(error).__name__, str(error))
        if isinstance(outcome, Fault) and outcome.treatment is Treatment.RENEW:
            credentials.discard(keys)
        return outcome

    async def _send(self, access: AwsAccess, keys: AwsKeys, body: bytes) -> dict[str, Any] | Fault:
        now_epoch = self._clock.now_ms() // 1000
        async with asyncio.timeout(TIMEOUT_SECS):
            status, content = await post_signed(
                access, keys, SERVICE, body, headers=_HEADERS, now_epoch=now_epoch
            )
        try:
            reply = msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.DecodeError:  # not chained: it might quote what it could not read
            return Fault(Treatment.LOST, f"HTTP {status}", "the reply is no JSON object")
        return reply if status == _OK else fault_of(status, reply)


def _text_of(reply: dict[str, Any]) -> str:
    """The secret in a reply, whichever way it is kept."""
    try:
        found = msgspec.convert(reply, _Reply)
        if found.SecretString is not None:
            return found.SecretString
        if found.SecretBinary is not None:
            return base64.b64decode(found.SecretBinary, validate=True).decode()
    except (msgspec.ValidationError, binascii.Error, UnicodeDecodeError):
        pass
    raise SecretUnavailableError(f"{ACTION}: the reply has no secret that is text")
