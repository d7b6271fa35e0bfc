"""The keyring in force: fixed, in a file that may be rotated meanwhile, or brought by a watcher.

The file is checked when a second has passed, and whenever a token comes with an unknown key,
because another process may just have rotated the keys and signed with the new one. A watcher
fetches the keyring from elsewhere (`pricekeeper.tokens.watching`), and is told of unknown keys.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import structlog

from pricekeeper.clock import Clock
from pricekeeper.errors import KeyringError
from pricekeeper.sessions import RefreshKey
from pricekeeper.telemetry.logs import keep_secret
from pricekeeper.tokens.keyfile import KeyFile
from pricekeeper.tokens.keyring import Jwks, Keyring, TokenKey
from pricekeeper.tokens.meter import KeysMeter

LOOK_INTERVAL_MS: Final = 1_000

_log = structlog.get_logger(__name__)


class Keys:
    """What signs and what verifies, now."""

    def __init__(self, keyring: Keyring, clock: Clock, file: KeyFile | None = None) -> None:
        self._keyring = _kept_secret(keyring)
        self._clock = clock
        self._file = file
        self.on_unknown_key: Callable[[], None] | None = None
        """Is called when a token names a key that is not here."""
        self.meter = KeysMeter()
        self._mark = file.mark() if file is not None else None
        self._looked_ms = clock.monotonic_ms()
        self._revision = 0

    @classmethod
    def in_file(cls, path: Path, clock: Clock) -> Self:
        """The keys in that file, which is made if it is missing."""
        file = KeyFile(path)
        return cls(file.load_or_create(clock.now_ms() // 1000), clock, file)

    @property
    def keyring(self) -> Keyring:
        """All keys, as they are now."""
        return self._refresh_if_due()

    @property
    def revision(self) -> int:
        """Grows whenever the keyring is another: what was concluded before may not hold."""
        self._refresh_if_due()
        return self._revision

    def replace(self, keyring: Keyring) -> None:
        """Go on with that keyring."""
        self._keyring = _kept_secret(keyring)
        self._revision += 1
        self.meter.refreshes["new"] += 1
        _log.info("keyring_reloaded", keys=len(keyring.entries))

    def note_failure(self, reason: str) -> None:
        """Say that the keyring could not be read anew; the keys that were good go on."""
        self.meter.refreshes["failed"] += 1
        _log.error("keyring_unusable", reason=reason)

    def signing_key(self) -> TokenKey:
        """The key that signs now."""
        return self._refresh_if_due().signing(self._now_epoch())

    def verifying_key(self, header_segment: str) -> TokenKey | None:
        """The key whose tokens begin like this."""
        now_epoch = self._now_epoch()
        key = self._refresh_if_due().verifying(header_segment, now_epoch)
        return key or self._reload_if_changed().verifying(header_segment, now_epoch)

    def current_refresh_key(self) -> RefreshKey:
        """The key that refresh tokens are derived with now."""
        return self.signing_key().refresh

    def find_refresh_key(self, key_id: str) -> RefreshKey | None:
        """The refresh key of that name."""
        now_epoch = self._now_epoch()
        key = self._refresh_if_due().refreshing(key_id, now_epoch)
        return key or self._reload_if_changed().refreshing(key_id, now_epoch)

    def jwks(self) -> Jwks:
        """The public keys, for those who verify by themselves."""
        return self._refresh_if_due().jwks(self._now_epoch())

    def _now_epoch(self) -> int:
        return self._clock.now_ms() // 1000

    def _refresh_if_due(self) -> Keyring:
        if self._file is None:
            return self._keyring
        if self._clock.monotonic_ms() - self._looked_ms >= LOOK_INTERVAL_MS:
            return self._reload_if_changed()
        return self._keyring

    def _reload_if_changed(self) -> Keyring:
        """The keyring as the file has it this moment.

        A file that went missing or bad is an operator's mistake that must not log everybody
        out: the keys that were good go on, and the log says so.
        """
        if self.on_unknown_key is not None:
            self.on_unknown_key()
        if self._file is None:
            return self._keyring
        self._looked_ms = self._clock.monotonic_ms()
        mark = self._file.mark()
        if mark == self._mark:
            return self._keyring
        self._mark = mark
        try:
            self.replace(self._file.load())
        except KeyringError as error:
            # Without its causes, which might quote what they could not read.
            self.note_failure(str(error))
        return self._keyring


def _kept_secret(keyring: Keyring) -> Keyring:
    """The keyring, whose private parts are in no log from now on."""
    for entry in keyring.entries:
        for text in (entry.refresh, entry.signing["d"]):
            keep_secret(text)
    return keyring
