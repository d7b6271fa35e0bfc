"""Checks of ``doctor`` on the store and this machine. They create nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from pricekeeper.cli.backends import Where
from pricekeeper.cli.checks_secrets import (
    administrators_check,
    own_secrets_checks,
    provisioning_key_check,
    read_stored_secrets,
)
from pricekeeper.cli.demo_org import DEMO_METRICS_TOKEN
from pricekeeper.cli.doctor import OTHERS, Checked
from pricekeeper.cli.listening import FIX, is_loopback, read_note
from pricekeeper.cli.opening import is_missing_file, open_local_store, store_file, store_name
from pricekeeper.cli.upkeep import find_tables
from pricekeeper.clock import Clock, SystemClock, TrustedClock
from pricekeeper.credentials.strength import HOW_TO_MAKE_A_TOKEN
from pricekeeper.errors import PriceKeeperError, StoreFormatError, StoreMisconfiguredError
from pricekeeper.metering.items import CHECKPOINT, checkpoint_from
from pricekeeper.pricing import load_catalogue
from pricekeeper.settings import (
    METRICS_PORT,
    TRUSTED_PROXIES,
    Settings,
    unknown_settings,
)
from pricekeeper.storage import (
    Delete,
    Item,
    Key,
    Put,
    Store,
    find_damage,
    find_tables_without_expiry,
    read_leap_ms,
    require_format,
)
from pricekeeper.storage.tables import CONFIG, REVOKED_TOKENS
from pricekeeper.storage.typed_items import StrangeItems

AGGREGATION_AGE_MS_MAX: Final = 15 * 60_000
DAMAGE_MS_MAX: Final = 20_000
"""How long to search a database file."""
SKEW_MS_MAX: Final = 30_000
"""Difference that tokens and buckets tolerate."""
STEP_MS_MAX: Final = 250
SAMPLE_MS: Final = 50
FREE_BYTES_MIN: Final = 100 * 1024**2
FREE_BYTES_CALM: Final = 1024**3

_EPOCH_MS_PLAUSIBLE: Final = (1_767_225_600_000, 4_102_444_800_000)
"""From 2026 to 2100."""


async def check_store(target: Where) -> AsyncIterator[Checked]:
    """Run all checks, the most basic first."""
    try:
        settings = target.settings()
    except PriceKeeperError as error:
        yield Checked("settings", "FAIL", str(error), "correct it, then run doctor again")
        return
    yield Checked("settings", "OK", f"store: {store_name(settings)}")
    for text in unknown_settings(os.environ):
        yield Checked("settings", "WARN", text, "correct its name, or unset it")
    for check in (_models, provisioning_key_check, _proxies, _metrics):
        yield check(settings)
    clock = SystemClock()
    async for checked in own_secrets_checks(settings, clock):
        yield checked
    for checked in _disk(settings):
        yield checked
    async for checked in _check_store(settings, TrustedClock(clock)):
        yield checked
    yield await clock_check(clock)
    yield _file_clock(settings, clock)


def _models(settings: Settings) -> Checked:
    try:
        catalogue = load_catalogue(settings.config_path)
    except PriceKeeperError as error:
        return Checked("models", "FAIL", str(error), "config.example.yaml shows every field")
    return Checked("models", "OK", f"{', '.join(catalogue.labels)} ({catalogue.origin})")


def _proxies(settings: Settings) -> Checked:
    """Check whether callers have addresses of their own."""
    listening = read_note(settings.data_dir)
    believed = settings.trusted_proxies
    if believed is None and listening is not None:
        believed = listening.trusted_proxies
    if believed == "*":
        text = "X-Forwarded-For is trusted from any sender, so callers can forge their address"
        return Checked("proxies", "WARN", text, FIX)
    if believed is not None:
        return Checked("proxies", "OK", f"X-Forwarded-For is trusted from {believed or 'no one'}")
    if listening is not None and listening.is_exposed:
        return Checked("proxies", "WARN", listening.warning, FIX)
    return Checked("proxies", "OK", f"{TRUSTED_PROXIES} is not set, which is right on loopback")


def _metrics(settings: Settings) -> Checked:
    """Check that only the operator can read the metrics."""
    at, token = settings.metrics_address, settings.metrics_token
    if token == DEMO_METRICS_TOKEN:
        text = "their token is the demo's, which is public"
        return Checked("metrics", "WARN", text, HOW_TO_MAKE_A_TOKEN)
    if at is None and token is None:
        return Checked("metrics", "WARN", "they are not served", f"export {METRICS_PORT}=9464")
    if at is not None and token is None and not is_loopback(at.host):
        text = f"any host that reaches {at.host}, port {at.port}, can read every tenant's spend"
        return Checked("metrics", "WARN", text, HOW_TO_MAKE_A_TOKEN)
    shown = [] if at is None else [f"on {at.host}, port {at.port}"]
    shown += [] if token is None else ["with their token"]
    return Checked("metrics", "OK", ", ".join(shown))


def _disk(settings: Settings) -> Iterator[Checked]:
    path = store_file(settings)
    folders = {settings.data_dir} if path is None else {settings.data_dir, path.parent}
    disks = {folder.stat().st_dev: folder for folder in map(_existing, folders)}
    for folder in disks.values():
        free = shutil.disk_usage(folder).free
        text = f"{free / 1024**3:,.1f} GiB free at {folder}"
        if free < FREE_BYTES_MIN:
            yield Checked("disk", "FAIL", text, "free some: a full disk stops all recording")
        elif free < FREE_BYTES_CALM:
            yield Checked("disk", "WARN", text, "free some soon")
        else:
            yield Checked("disk", "OK", text)


async def _check_store(settings: Settings, clock: TrustedClock) -> AsyncIterator[Checked]:
    if is_missing_file(settings):
        text = f"{store_name(settings)} does not exist yet"
        yield Checked("store", "WARN", text, "pricekeeper tables create, or pricekeeper serve")
        return
    whole = await _check_whole_file(settings, clock)
    if whole is not None:
        yield whole
        if whole.level == "FAIL":
            return  # the other checks would write to it
    try:
        async with open_local_store(settings, any_format=True, clock=clock) as store:
            found = await find_tables(store)
            missing = [name for name, there in found.items() if not there]
            if CONFIG.name not in missing:
                try:
                    await require_format(store)
                except StoreFormatError as error:
                    yield Checked("format", "FAIL", str(error), "docs/deploy.md, Upgrade")
                    return
            if missing:
                text = f"missing: {', '.join(missing)}"
                yield Checked("tables", "FAIL", text, "pricekeeper tables create")
                return
            yield Checked("tables", "OK", f"all {len(found)} exist")
            yield await _check_expiry(settings, clock)
            yield await _check_writable(store, clock)
            with StrangeItems() as strange:
                yield await _check_aggregation(store, clock)
                yield await administrators_check(settings, store, clock)
                yield (await read_stored_secrets(store, clock)).check
            yield _stored_items(strange)
            yield _store_time(settings, clock)
    except PriceKeeperError as error:
        yield Checked("store", "FAIL", str(error), "check its location, permissions, credentials")
    path = store_file(settings)
    if path is not None:
        yield _store_file(path)


async def _check_whole_file(settings: Settings, clock: Clock) -> Checked | None:
    found = await find_damage(settings.store, clock=clock, patience_ms=DAMAGE_MS_MAX)
    if found is None:
        return None
    if found.damage is not None:
        fix = (
            "stop the service, move the file with its -wal and -shm away, put a backup in its "
            "place (without one: sqlite3 DAMAGED .recover | sqlite3 NEW), then start it"
        )
        return Checked("damage", "FAIL", f"the file is damaged: {found.damage}", fix)
    if not found.complete:
        text = f"no damage in the part that could be read in {DAMAGE_MS_MAX // 1000} s"
        return Checked("damage", "WARN", text, "check all of it: sqlite3 FILE 'PRAGMA quick_check'")
    return Checked("damage", "OK", "none found")


async def _check_expiry(settings: Settings, clock: Clock) -> Checked:
    """Check that expired items are removed, which a restored table forgets."""
    fix = "pricekeeper tables create"
    try:
        lasting = await find_tables_without_expiry(settings.store, clock=clock)
    except StoreMisconfiguredError as error:
        return Checked("expiry", "WARN", f"can't be read: {error}", fix)
    if lasting:
        return Checked("expiry", "WARN", f"items never expire in {', '.join(lasting)}", fix)
    return Checked("expiry", "OK", "expired items are removed")


async def _check_writable(store: Store, clock: Clock) -> Checked:
    """Write, read and remove an item, which expires anyway."""
    key = Key(f"doctor-{uuid.uuid4()}")
    item: Item = {"PK": key.pk, "expires_at_epoch": clock.now_ms() // 1000 + 60}
    began_ms = clock.monotonic_ms()
    await store.put(Put(REVOKED_TOKENS, item))
    there = await store.get(REVOKED_TOKENS, key)
    await store.delete(Delete(REVOKED_TOKENS, key))
    took_ms = clock.monotonic_ms() - began_ms
    if there != item:
        fix = "check that the setting names one store, not several behind one address"
        return Checked("store", "FAIL", "a written item could not be read back", fix)
    return Checked("store", "OK", f"wrote, read and removed an item in {took_ms} ms")


async def _check_aggregation(store: Store, clock: Clock) -> Checked:
    name, last_ms = "aggregator", checkpoint_from(await store.get(*CHECKPOINT))
    if last_ms is None:
        return Checked(name, "OK", "no run on this store yet")
    age_ms = clock.now_ms() - last_ms
    text = f"last complete run {max(0, age_ms) // 1000:,} s ago"
    if age_ms < -SKEW_MS_MAX:
        text = f"another machine's run is {-age_ms // 1000:,} s in our future"
        return Checked(name, "FAIL", text, "set the clocks: timedatectl set-ntp true")
    if age_ms > AGGREGATION_AGE_MS_MAX:
        return Checked(name, "WARN", text, "start a service, or run: pricekeeper aggregate")
    return Checked(name, "OK", text)


def _store_time(settings: Settings, clock: TrustedClock) -> Checked:
    """Compare this clock with the store's and services'."""
    name, fix = "store's time", "set the clocks: timedatectl set-ntp true"
    doubt = clock.doubt
    if doubt is not None:
        fix += "; if this one is right: pricekeeper limits repair"
        text = f"this clock is {_distance(clock.leap_ms)} the store's time: {doubt}"
        return Checked(name, "FAIL", text, fix)
    leap_ms = read_leap_ms(settings.store)
    if leap_ms:
        text = f"a service's clock is {_distance(leap_ms)} the time that it uses instead"
        return Checked(name, "FAIL", text, fix)
    return Checked(name, "OK", "equal to this clock")


def _distance(ahead_ms: int) -> str:
    return f"{abs(ahead_ms) // 1000:,} s {'ahead of' if ahead_ms > 0 else 'behind'}"


def _stored_items(strange: StrangeItems) -> Checked:
    if not strange.counts:
        return Checked("stored items", "OK", "all items of clients can be read")
    text = f"{strange.counts.total()} can't be read: {'; '.join(strange.latest)}"
    return Checked(
        "stored items", "WARN", text, "correct or remove them; each blocks only its own client"
    )


def _store_file(path: Path) -> Checked:
    """Check that only its owner can read the store."""
    if path.stat().st_mode & OTHERS:
        return Checked("store file", "WARN", f"others can read {path}", f"chmod 600 {path}")
    return Checked("store file", "OK", "only its owner can read it")


async def clock_check(clock: Clock) -> Checked:
    """Check that the wall clock is plausible, and as fast as the monotonic one."""
    fix = "timedatectl set-ntp true"
    wall_ms, steady_ms = clock.now_ms(), clock.monotonic_ms()
    first_ms, last_ms = _EPOCH_MS_PLAUSIBLE
    if not first_ms <= wall_ms < last_ms:
        return Checked("clock", "FAIL", f"it says {wall_ms} ms since 1970", fix)
    await clock.sleep_ms(SAMPLE_MS)
    drift_ms = (clock.now_ms() - wall_ms) - (clock.monotonic_ms() - steady_ms)
    if abs(drift_ms) > STEP_MS_MAX:
        return Checked("clock", "WARN", f"it was set by {drift_ms} ms during this check", fix)
    return Checked("clock", "OK", "plausible and steady")


def _file_clock(settings: Settings, clock: Clock) -> Checked:
    """Compare with the file system's clock, which may be a server's."""
    folder = _existing(settings.data_dir)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            skew_ms = Path(file.name).stat().st_mtime_ns // 1_000_000 - clock.now_ms()
    except OSError as error:
        return Checked("file times", "FAIL", f"can't write to {folder}: {error.strerror}",
                     "allow this user to write there")  # fmt: skip
    if abs(skew_ms) > SKEW_MS_MAX:
        text = f"the file system's clock is {skew_ms // 1000} s off"
        return Checked("file times", "WARN", text, "keep the data folder on a local disk")
    return Checked("file times", "OK", "equal to this clock")


def _existing(folder: Path) -> Path:
    folder = folder.resolve()
    return next(one for one in (folder, *folder.parents) if one.is_dir())
