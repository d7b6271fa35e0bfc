"""An app's tokens: fetched at the first request, renewed before they end, replaced when refused.

Whoever comes while another request is fetching waits for that one. The session is ended when
the client closes, so that a process that is restarted often does not push out its siblings.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from pricekeeper.client.errors import RejectedError, ServiceError
from pricekeeper.client.transport import Request, Wire
from pricekeeper.clock import Clock

MARGIN_SECS_MAX: Final = 60
"""A token is renewed this long before its end, or a tenth of its life if that is less."""


class Tokens:
    """The tokens of one session of one client."""

    def __init__(self, wire: Wire, client_id: str, client_secret: str, clock: Clock) -> None:
        self._wire = wire
        # RFC 6749 has both encoded like form fields, before the base64 of HTTP Basic.
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
        self._basic = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        self._clock = clock
        self._access = ""
        self._refresh = ""
        self._renew_at_ms = 0
        self._one_at_a_time = asyncio.Lock()
        self.logins = 0
        """Sessions that were opened."""
        self.renewals = 0
        """How often a session went on with new tokens."""

    async def headers(self) -> Mapping[str, str]:
        """An access token that is good for a while."""
        if not self._is_fresh():
            async with self._one_at_a_time:
                if not self._is_fresh():
                    await self._obtain()
        return {"Authorization": f"Bearer {self._access}"}

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Forget the token if it is still the refused one; the next request gets another."""
        if refused.get("Authorization") == f"Bearer {self._access}":
            self._access = ""
        return True

    async def end(self) -> None:
        """End the session. One that can't be ended now ends by itself, in time."""
        if self._refresh:
            body = {"token": self._refresh}
            self._refresh = self._access = ""
            with contextlib.suppress(ServiceError):
                await self._wire.exchange(Request("POST", "/auth/revoke", body=body), self._basic)

    def _is_fresh(self) -> bool:
        return bool(self._access) and self._clock.monotonic_ms() < self._renew_at_ms

    async def _obtain(self) -> None:
        """Go on with the session, or open a new one if it is over."""
        if self._refresh:
            body = {"grant_type": "refresh_token", "refresh_token": self._refresh}
            try:
                await self._ask("/auth/refresh", body, {})
            except RejectedError:
                self._refresh = ""
            else:
                self.renewals += 1
                return
        await self._ask("/auth/token", {"grant_type": "client_credentials"}, self._basic)
        self.logins += 1

    async def _ask(self, path: str, body: Mapping[str, str], headers: Mapping[str, str]) -> None:
        asked_at_ms = self._clock.monotonic_ms()
        answer: Mapping[str, Any] = await self._wire.exchange(
            Request("POST", path, body=body), headers
        )
        life_secs = int(answer["expires_in"])
        margin_secs = min(MARGIN_SECS_MAX, life_secs // 10)
        self._access, self._refresh = answer["access_token"], answer["refresh_token"]
        self._renew_at_ms = asked_at_ms + (life_secs - margin_secs) * 1000
