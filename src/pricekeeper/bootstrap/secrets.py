"""Reads the service's own secrets; without a setting, files that first use creates."""

from __future__ import annotations

from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.credentials import Peppers
from pricekeeper.credentials.peppers import PEPPER_FILE, load_or_create_peppers, parse_peppers
from pricekeeper.errors import KeyringError, SettingsError
from pricekeeper.secret_sources import open_source
from pricekeeper.settings import PEPPER, SIGNING_KEYS, Settings
from pricekeeper.telemetry.logs import keep_secret
from pricekeeper.tokens import Keyring, Keys, KeyWatcher, parse_keyring

KEY_FILE: Final = "signing-keys.json"


async def read_peppers(settings: Settings, clock: Clock) -> Peppers:
    """Read the peppers once, at the start."""
    if settings.pepper is None:
        return load_or_create_peppers(settings.data_dir / PEPPER_FILE)
    text = await open_source(PEPPER, settings.pepper, clock).read()
    peppers = parse_peppers(PEPPER, text)
    for line in text.split():
        keep_secret(line.partition(":")[2])
    return peppers


async def open_keys(settings: Settings, clock: Clock) -> tuple[Keys, KeyWatcher | None]:
    """Open the signing keys, with a watcher if they can change."""
    if settings.signing_keys is None:
        return Keys.in_file(settings.data_dir / KEY_FILE, clock), None
    source = open_source(SIGNING_KEYS, settings.signing_keys, clock)
    text = await source.read()
    keys = Keys(read_keyring(settings, text), clock)
    if source.refresh_ms is None:
        return keys, None
    return keys, KeyWatcher(keys, source.read, text, clock, source.refresh_ms)


def read_keyring(settings: Settings, text: str) -> Keyring:
    """Parse the keyring that the setting names."""
    try:
        return parse_keyring(text)
    except KeyringError as error:
        raise SettingsError(SIGNING_KEYS, f"{settings.signing_keys}: {error}") from None
