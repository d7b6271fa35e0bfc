"""The keyring in force: fixed, in a file, or read from elsewhere at intervals.

A file is checked every second, and when a token has an unknown key: another process may have
rotated. The first process that gets the lock creates it. It is replaced as a whole, a rotation
survives a power failure, and only its owner can read it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import wait_or_wake
from pricekeeper.errors import KeyringError, SettingsError
from pricekeeper.sessions import RefreshKey
from pricekeeper.telemetry.logs import keep_secret
from pricekeeper.tokens.keyring import (
    Jwks,
    Keyring,
    TokenKey,
    dump_keyring,
    new_keyring,
    parse_keyring,
)
from pricekeeper.tokens.meter import KeysMeter

LOOK_INTERVAL_MS: Final = 1_000
PUBLISH_AHEAD_SECS: Final = 300
"""How long a new key is published before it signs, so that caches of the JWKS have it."""
KEYFILE_BYTES_MAX: Final = 1 << 20
_PRIVATE: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
HURRY_MS: Final = 10_000

_log = structlog.get_logger(__name__)


class KeyFile:
    """A keyring file. Its calls block briefly, for a lock and an fsync."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load_or_create(self, now_epoch: int) -> Keyring:
        with _naming_path(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                with self._lock():
                    if not self._path.exists():
                        self._write(new_keyring(now_epoch))
        return self.load()

    def load(self) -> Keyring:
        """Read the keyring; raises `KeyringError` if others could read the file."""
        with _naming_path(self._path), self._path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(KEYFILE_BYTES_MAX + 1)
        if mode & _OTHERS:
            raise KeyringError(f"{self._path} can be read by others; run chmod 600 {self._path}")
        if len(text) > KEYFILE_BYTES_MAX:
            raise KeyringError(f"{self._path} is too large to be a keyring")
        try:
            return parse_keyring(text)
        except KeyringError as error:
            raise KeyringError(f"{self._path}: {error}") from error

    def rotate(
        self, now_epoch: int, ahead_secs: int = PUBLISH_AHEAD_SECS, *, drop_old: bool = False
    ) -> Keyring:
        """Add a key that signs after ``ahead_secs``.

        With ``drop_old``, all old keys and their tokens end at once.
        """
        with _naming_path(self._path), self._lock():
            if drop_old:
                keyring = new_keyring(now_epoch)
            else:
                keyring = self.load().rotated(now_epoch, ahead_secs)
            self._write(keyring)
        return keyring

    def fingerprint(self) -> tuple[int, int, int] | None:
        """Changes with the file or its mode; ``None`` if there is no file."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock a second file, because the first one is replaced."""
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, keyring: Keyring) -> None:
        fresh = Path(f"{self._path}.new")
        fresh.unlink(missing_ok=True)  # left by a process that died with the lock
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(dump_keyring(keyring))
            file.flush()
            os.fsync(descriptor)
        fresh.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def _naming_path(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KeyringError(f"{path}: {error.strerror}") from error


class Keys:
    """The keys in force."""

    def __init__(self, keyring: Keyring, clock: Clock, file: KeyFile | None = None) -> None:
        self._keyring = _kept_secret(keyring)
        self._clock = clock
        self._file = file
        self.on_unknown_key: Callable[[], None] | None = None
        self.meter = KeysMeter()
        self._fingerprint = file.fingerprint() if file is not None else None
        self._looked_ms = clock.monotonic_ms()
        self._revision = 0

    @classmethod
    def in_file(cls, path: Path, clock: Clock) -> Self:
        file = KeyFile(path)
        return cls(file.load_or_create(clock.now_ms() // 1000), clock, file)

    @property
    def keyring(self) -> Keyring:
        return self._refresh_if_due()

    @property
    def revision(self) -> int:
        self._refresh_if_due()
        return self._revision

    def replace(self, keyring: Keyring) -> None:
        self._keyring = _kept_secret(keyring)
        self._revision += 1
        self.meter.refreshes["new"] += 1
        _log.info("keyring_reloaded", keys=len(keyring.entries))

    def note_failure(self, reason: str) -> None:
        """Log that the keyring could not be read; the known keys stay in force."""
        self.meter.refreshes["failed"] += 1
        _log.error("keyring_unusable", reason=reason)

    def signing_key(self) -> TokenKey:
        return self._refresh_if_due().signing(self._now_epoch())

    def verifying_key(self, header_segment: str) -> TokenKey | None:
        now_epoch = self._now_epoch()
        key = self._refresh_if_due().verifying(header_segment, now_epoch)
        return key or self._reload_if_changed().verifying(header_segment, now_epoch)

    def current_refresh_key(self) -> RefreshKey:
        return self.signing_key().refresh

    def find_refresh_key(self, key_id: str) -> RefreshKey | None:
        now_epoch = self._now_epoch()
        key = self._refresh_if_due().refreshing(key_id, now_epoch)
        return key or self._reload_if_changed().refreshing(key_id, now_epoch)

    def jwks(self) -> Jwks:
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
        """Read the file if it has changed.

        A missing or damaged file must not log out all clients, so the known keys stay.
        """
        if self.on_unknown_key is not None:
            self.on_unknown_key()
        if self._file is None:
            return self._keyring
        self._looked_ms = self._clock.monotonic_ms()
        fingerprint = self._file.fingerprint()
        if fingerprint == self._fingerprint:
            return self._keyring
        self._fingerprint = fingerprint
        try:
            self.replace(self._file.load())
        except KeyringError as error:
            # Without its causes, which might quote a secret.
            self.note_failure(str(error))
        return self._keyring


def _kept_secret(keyring: Keyring) -> Keyring:
    for entry in keyring.entries:
        for text in (entry.refresh, entry.signing["d"]):
            keep_secret(text)
    return keyring


class KeyWatcher:
    """Reads the keyring from its source at intervals, while the service runs.

    It reads more often than `PUBLISH_AHEAD_SECS`, so every instance knows a key before any signs
    with it. An unknown key brings the next read forward, to `HURRY_MS` after the last. After a
    failed read (logged and counted) the known keys stay in force.
    """

    def __init__(
        self,
        keys: Keys,
        read: Callable[[], Awaitable[str]],
        known: str,
        clock: Clock,
        refresh_ms: int,
    ) -> None:
        """``read`` raises `SettingsError`; ``known`` is the text of the present keys."""
        self._keys = keys
        self._read = read
        self._known = known
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._wanted = asyncio.Event()
        keys.on_unknown_key = self._wanted.set

    async def run_forever(self) -> None:
        while True:
            self._wanted.clear()
            await self._clock.sleep_ms(min(self._refresh_ms, HURRY_MS))
            rest = self._clock.sleep_ms(max(0, self._refresh_ms - HURRY_MS))
            await wait_or_wake(rest, self._wanted)
            await self.refresh()

    async def refresh(self) -> None:
        try:
            text = await self._read()
            if text != self._known:
                self._keys.replace(parse_keyring(text))
                self._known = text
        except (KeyringError, SettingsError) as error:
            self._keys.note_failure(str(error))
