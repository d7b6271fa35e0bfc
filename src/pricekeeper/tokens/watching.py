"""Brings signing keys from where they are kept, again and again, while the service runs.

A new key is published `PUBLISH_AHEAD_SECS` before it signs, and the keyring is fetched more often
than that: every instance knows the key before any of them signs with it. A token with an unknown
key (somebody has dropped the old ones) has it fetched sooner, at most every `HURRY_MS`. What can't
be fetched or read leaves the keys that were good in force, and is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

from pricekeeper.clock import Clock
from pricekeeper.errors import KeyringError, SettingsError
from pricekeeper.tokens.keyring import parse_keyring
from pricekeeper.tokens.keys import Keys

HURRY_MS: Final = 10_000


class KeyringSource(Protocol):
    """Where the keyring is kept, as text."""

    async def read(self) -> str:
        """The keyring's text as it is now; `SettingsError` if it can't be had."""
        ...


class KeyWatcher:
    """Keeps keys as their source has them."""

    def __init__(
        self, keys: Keys, source: KeyringSource, known: str, clock: Clock, refresh_ms: int
    ) -> None:
        """``known`` is the text that the keys were made from."""
        self._keys = keys
        self._source = source
        self._known = known
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._wanted = asyncio.Event()
        keys.on_unknown_key = self._wanted.set

    async def run_forever(self) -> None:
        """Fetch the keyring every so often, and sooner if a key is unknown."""
        while True:
            self._wanted.clear()
            await self._clock.sleep_ms(min(self._refresh_ms, HURRY_MS))
            await self._wait(max(0, self._refresh_ms - HURRY_MS))
            await self.refresh()

    async def refresh(self) -> None:
        """Fetch the keyring, and go on with it if it is another."""
        try:
            text = await self._source.read()
            if text != self._known:
                self._keys.replace(parse_keyring(text))
                self._known = text
        except (KeyringError, SettingsError) as error:
            self._keys.note_failure(str(error))

    async def _wait(self, rest_ms: int) -> None:
        """Wait for the rest of the interval, or until somebody asks for an unknown key."""
        timer = asyncio.ensure_future(self._clock.sleep_ms(rest_ms))
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait((timer, wanted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (timer, wanted):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
