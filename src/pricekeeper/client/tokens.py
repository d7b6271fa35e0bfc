"""An app's access tokens: fetched by the first request, renewed before they expire.

Simultaneous requests share one login and its failure. The session ends with the client, so restarts
do not push out siblings.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from pricekeeper.client.errors import (
    ForbiddenError,
    RateLimitedError,
    RejectedError,
    ServiceError,
    UnavailableError,
)
from pricekeeper.client.transport import (
    ATTEMPTS_MAX,
    PAUSE_MAX_MS,
    Authorisation,
    Request,
    Wire,
    path_of,
    pause_ms,
)
from pricekeeper.clock import Clock
from pricekeeper.concurrency import SingleFlight

MARGIN_SECS_MAX: Final = 60
"""Renewed this long before expiry, or a tenth of its life if less."""
PUT_OFF_MAX: Final = 10
"""Repeats of a login that is put off, each after at most `PAUSE_MAX_MS`."""
REFUSED_MS: Final = 1_000
"""How long a refused login's error is repeated."""
UNPROVEN_MS: Final = 10_000
"""A 429 makes a token doubtful if it was last accepted longer ago than this."""
DOUBT_EVERY_MS: Final = 60_000


class Tokens(Authorisation):
    """The tokens of one session of one client."""

    def __init__(self, wire: Wire, client_id: str, client_secret: str, clock: Clock) -> None:
        super().__init__({})
        self._wire = wire
        # RFC 6749 has both encoded like form fields, before the base64 of HTTP Basic.
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
        self._basic = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        self._clock = clock
        self._access = ""
        self._refresh = ""
        self._renew_at_ms = 0
        self._renew_at_wall_ms = 0
        self._accepted_at_ms = 0
        self._doubted_at_ms: int | None = None
        self._logins: SingleFlight[None, str] = SingleFlight("pricekeeper-login")
        self._refusal: ServiceError | None = None
        self._refused_until_ms = 0
        self.logins = 0
        self.renewals = 0

    async def headers(self) -> Mapping[str, str]:
        """The header with a token that is valid for a while."""
        is_fresh = bool(self._access) and self._clock.monotonic_ms() < self._renew_at_ms
        # Requests share the login that is under way.
        access = self._access if is_fresh else await self._logins.run(None, self._obtain)
        return {"Authorization": f"Bearer {access}"}

    def accept(self, accepted: Mapping[str, str]) -> None:
        if self._is_current(accepted):
            self._accepted_at_ms = self._clock.monotonic_ms()

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Forget the token if it is the refused one."""
        if self._is_current(refused):
            self._access = ""
            # A token that is refused before it expires has lost its session, and so has the refresh
            # token. The wall clock decides, because it also runs while a machine sleeps.
            if self._clock.now_ms() < self._renew_at_wall_ms:
                self._refresh = ""
        return True

    async def doubt(self, limited: Mapping[str, str]) -> bool:
        """Forget the token if a 429 may hide that it is refused; at most once a minute.

        After too many refused tokens of an address, the service may answer 429 instead of 401.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._is_current(limited) or now_ms - self._accepted_at_ms < UNPROVEN_MS:
            return False
        if self._doubted_at_ms is not None and now_ms - self._doubted_at_ms < DOUBT_EVERY_MS:
            return False
        self._doubted_at_ms = now_ms
        return await self.renew(limited)

    async def end(self) -> None:
        """End the session; on failure it expires."""
        await self._logins.drain()
        if self._refresh:
            body = {"token": self._refresh}
            self._refresh = self._access = ""
            with contextlib.suppress(ServiceError):
                await self._wire.exchange(
                    Request("POST", path_of("auth", "revoke"), body=body), self._basic
                )

    def _is_current(self, headers: Mapping[str, str]) -> bool:
        return headers.get("Authorization") == f"Bearer {self._access}"

    async def _obtain(self) -> str:
        if self._refusal is not None and self._clock.monotonic_ms() < self._refused_until_ms:
            raise self._refusal
        attempts, put_off = 1, 0
        while True:  # at most ATTEMPTS_MAX times unavailable and PUT_OFF_MAX times put off
            try:
                return await self._refresh_or_log_in()
            except RateLimitedError as error:
                wait_ms = (error.retry_after_secs or 1) * 1000
                if put_off == PUT_OFF_MAX or wait_ms > PAUSE_MAX_MS:
                    self._remember_refusal(error, wait_ms)
                    raise
                put_off += 1
                await self._clock.sleep_ms(pause_ms(error, attempts))
            except UnavailableError as error:
                if attempts == ATTEMPTS_MAX:
                    raise
                await self._clock.sleep_ms(pause_ms(error, attempts))
                attempts += 1
            except (ForbiddenError, RejectedError) as error:
                self._remember_refusal(error, REFUSED_MS)
                raise

    async def _refresh_or_log_in(self) -> str:
        if self._refresh:
            body = {"grant_type": "refresh_token", "refresh_token": self._refresh}
            try:
                access = await self._ask("refresh", body)
            except (RejectedError, ForbiddenError):
                self._refresh = ""
            else:
                self.renewals += 1
                return access
        access = await self._ask("token", {"grant_type": "client_credentials"})
        self.logins += 1
        return access

    async def _ask(self, name: str, body: Mapping[str, str]) -> str:
        asked_at_ms, asked_at_wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        answer: Mapping[str, Any] = await self._wire.exchange(
            Request("POST", path_of("auth", name), body=body), self._basic
        )
        self._refresh = answer["refresh_token"]
        self._keep(answer["access_token"], int(answer["expires_in"]), asked_at_ms, asked_at_wall_ms)
        return self._access

    def _keep(self, access: str, life_secs: int, asked_at_ms: int, asked_at_wall_ms: int) -> None:
        lasts_ms = (life_secs - min(MARGIN_SECS_MAX, life_secs // 10)) * 1000
        self._access = access
        self._renew_at_ms = asked_at_ms + lasts_ms
        self._renew_at_wall_ms = asked_at_wall_ms + lasts_ms
        self._accepted_at_ms = self._clock.monotonic_ms()

    def _remember_refusal(self, error: ServiceError, wait_ms: int) -> None:
        """Repeat this error for a while, so calls do not become logins."""
        self._refusal = error
        self._refused_until_ms = self._clock.monotonic_ms() + wait_ms


class OutsideTokens(Tokens):
    """Tokens without a session: each process has its own."""

    async def _refresh_or_log_in(self) -> str:
        asked_at_ms, asked_at_wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        answer: Mapping[str, Any] = await self._wire.exchange(
            Request("GET", path_of("auth", "aws-credentials")), self._basic
        )
        access: str = answer["Token"]
        self.logins += 1
        self._keep(access, _life_secs(access), asked_at_ms, asked_at_wall_ms)
        return access


def _life_secs(token: str) -> int:
    """A token's life by its own claims, since the clocks may differ."""
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return int(claims["exp"]) - int(claims["iat"])
