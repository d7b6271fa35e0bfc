"""An app's tokens: fetched at the first request, renewed before they end, replaced when refused.

Requests that need a token at the same time share one login, and its failure. A token that was
refused is not sent again. A login that the service refuses is not tried again at once, and one
that it puts off is tried again when the service says so.

The session is ended when the client closes, so that a process that is restarted often does not
push out its siblings.
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
"""A token is renewed this long before its end, or a tenth of its life if that is less."""
PUT_OFF_MAX: Final = 10
"""How often a login is tried again that the service has put off, for `PAUSE_MAX_MS` at the most."""
REFUSED_MS: Final = 1_000
"""For how long a refused login is the answer to every request that needs one."""
UNPROVEN_MS: Final = 10_000
"""How long ago a token was accepted when a 429 makes one doubt it."""
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
        """Sessions that were opened."""
        self.renewals = 0
        """How often a session went on with new tokens."""

    async def headers(self) -> Mapping[str, str]:
        """An access token that is good for a while."""
        is_fresh = bool(self._access) and self._clock.monotonic_ms() < self._renew_at_ms
        # Whoever needs one shares the login that is under way.
        access = self._access if is_fresh else await self._logins.run(None, self._obtain)
        return {"Authorization": f"Bearer {access}"}

    def accept(self, accepted: Mapping[str, str]) -> None:
        """Note that the service knows the token."""
        if self._is_current(accepted):
            self._accepted_at_ms = self._clock.monotonic_ms()

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Forget the token if it is still the refused one; the next request gets another."""
        if self._is_current(refused):
            self._access = ""
            # A token that is refused before its time has lost its session, and with it the refresh
            # token. The wall clock decides: it goes on while a machine sleeps.
            if self._clock.now_ms() < self._renew_at_wall_ms:
                self._refresh = ""
        return True

    async def doubt(self, limited: Mapping[str, str]) -> bool:
        """Forget the token if a 429 may hide that it is refused; at most once a minute.

        A service that has refused too many tokens of an address may answer 429 instead of 401.
        A client that waits for a 401 would then wait until its token expires.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._is_current(limited) or now_ms - self._accepted_at_ms < UNPROVEN_MS:
            return False
        if self._doubted_at_ms is not None and now_ms - self._doubted_at_ms < DOUBT_EVERY_MS:
            return False
        self._doubted_at_ms = now_ms
        return await self.renew(limited)

    async def end(self) -> None:
        """End the session. One that can't be ended now ends by itself, in time."""
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
        """Go on with the session, or open a new one if it is over."""
        if self._refusal is not None and self._clock.monotonic_ms() < self._refused_until_ms:
            raise self._refusal
        attempts, put_off = 1, 0
        while True:  # ends: at most ATTEMPTS_MAX times unavailable and PUT_OFF_MAX times put off
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
        """Use this token from now on, until shortly before its end."""
        lasts_ms = (life_secs - min(MARGIN_SECS_MAX, life_secs // 10)) * 1000
        self._access = access
        self._renew_at_ms = asked_at_ms + lasts_ms
        self._renew_at_wall_ms = asked_at_wall_ms + lasts_ms
        self._accepted_at_ms = self._clock.monotonic_ms()

    def _remember_refusal(self, error: ServiceError, wait_ms: int) -> None:
        """Answer with this error for a while, so that an app's calls do not become logins."""
        self._refusal = error
        self._refused_until_ms = self._clock.monotonic_ms() + wait_ms


class OutsideTokens(Tokens):
    """Tokens that need no session: one for each process, and none pushes another out."""

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
    """For how long a token lasts, by its own words: the two clocks need not agree."""
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return int(claims["exp"]) - int(claims["iat"])
