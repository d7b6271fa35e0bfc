"""Checks of ``doctor``: admin keys, signing keys, the pepper, the age of clients' secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Final

from pricekeeper.admin_keys import list_roots
from pricekeeper.bootstrap import HOW_TO_MAKE_A_ROOT
from pricekeeper.bootstrap.secrets import KEY_FILE, open_keys, read_peppers
from pricekeeper.cli.demo_org import DEMO_KEY
from pricekeeper.cli.doctor import OTHERS, Checked, Level
from pricekeeper.cli.drawing import plain
from pricekeeper.cli.opening import is_missing_file
from pricekeeper.client import Admin
from pricekeeper.clock import Clock
from pricekeeper.credentials.peppers import PEPPER_FILE
from pricekeeper.credentials.strength import HOW_TO_MAKE_ONE, estimate_bits, require_strong_key
from pricekeeper.errors import PriceKeeperError, SettingsError
from pricekeeper.settings import DATA_DIR, SecretLocation, Settings
from pricekeeper.storage import Store
from pricekeeper.tenants import Tenants

KEY_AGE_DAYS_MAX: Final = 180
SOON_DAYS: Final = 14
_DAY_SECS: Final = 86_400


def provisioning_key_check(settings: Settings) -> Checked:
    """Check that the environment's key can't be guessed."""
    name, key = "provisioning key", settings.provisioning_key
    if key == DEMO_KEY:
        return Checked(name, "WARN", "it is the demo's, which is public", HOW_TO_MAKE_ONE)
    if key is None and is_missing_file(settings):
        return Checked(name, "FAIL", "serve can't start: there is no key yet", HOW_TO_MAKE_ONE)
    if key is None:
        return Checked(name, "OK", "none; only admin keys open this deployment")
    try:
        require_strong_key(key)
    except SettingsError as error:
        return Checked(name, "FAIL", f"serve can't start: {error}", HOW_TO_MAKE_ONE)
    return Checked(name, "OK", f"about {estimate_bits(key)} bits")


async def own_secrets_checks(settings: Settings, clock: Clock) -> AsyncIterator[Checked]:
    """Check that only their owner can read signing keys and pepper."""
    folder = settings.data_dir
    is_used = settings.signing_keys is None or settings.pepper is None
    if is_used and not folder.is_dir():
        text = f"{folder.resolve()} does not exist yet; the first start makes it"
        yield Checked("data folder", "WARN", text, f"if it should exist: set {DATA_DIR}")
        return
    if is_used and folder.stat().st_mode & OTHERS:
        text = f"others can read {folder.resolve()}"
        yield Checked("data folder", "WARN", text, f"chmod 700 {folder}")
    elif is_used:
        yield Checked("data folder", "OK", str(folder.resolve()))
    yield await _signing_keys(settings, clock)
    yield await _pepper(settings, clock)


async def _signing_keys(settings: Settings, clock: Clock) -> Checked:
    name, path = "signing keys", settings.data_dir / KEY_FILE
    if settings.signing_keys is None and not path.exists():
        return Checked(name, "WARN", f"{path} does not exist yet; the first start makes it")
    try:
        keyring = (await open_keys(settings, clock))[0].keyring
    except PriceKeeperError as error:
        return Checked(name, "FAIL", str(error), _mend(settings.signing_keys))
    now_epoch = clock.now_ms() // 1000
    age_days = (now_epoch - max(entry.active_from_epoch for entry in keyring.entries)) // _DAY_SECS
    text = f"{len(keyring.entries)}, the newest {max(0, age_days)} days old"
    if age_days > KEY_AGE_DAYS_MAX:
        return Checked(name, "WARN", text, "pricekeeper keys rotate")
    return Checked(name, "OK", text)


async def _pepper(settings: Settings, clock: Clock) -> Checked:
    path = settings.data_dir / PEPPER_FILE
    if settings.pepper is None and not path.exists():
        return Checked("pepper", "WARN", f"{path} does not exist yet; the first start makes it")
    try:
        await read_peppers(settings, clock)
    except PriceKeeperError as error:
        return Checked("pepper", "FAIL", str(error), _mend(settings.pepper))
    if settings.pepper is not None:
        return Checked("pepper", "OK", f"from {settings.pepper}")
    return Checked("pepper", "OK", "only its owner can read it")


def _mend(location: SecretLocation | None) -> str:
    if location is None:
        return "correct its mode, or restore it from the backup"
    return "correct the setting, or the secret that it names; serve can't start without it"


async def administrators_check(settings: Settings, store: Store, clock: Clock) -> Checked:
    """Check that an administrator's key exists."""
    name, now_epoch = "administrators", clock.now_ms() // 1000
    roots = await list_roots(store)
    counting = [key for key in roots if not key.has_ended(now_epoch)]
    if not counting and settings.provisioning_key is None:
        text = "all admin keys have expired" if roots else "there is no key, so serve can't start"
        level: Level = "WARN" if roots else "FAIL"
        return Checked(name, level, text, HOW_TO_MAKE_A_ROOT)
    text = f"{len(counting) or 'no'} ADMIN keys for all organisations"
    ends = [key.expires_at_epoch for key in counting]
    lasting = [end for end in ends if end is None or end - now_epoch > SOON_DAYS * _DAY_SECS]
    if settings.provisioning_key is None and not lasting:
        text += f", the last of which expires within {SOON_DAYS} days"
        return Checked(name, "WARN", text, f"make another before that: {HOW_TO_MAKE_A_ROOT}")
    return Checked(name, "OK", text)


AGE_DAYS_MAX: Final = 90
CLIENTS_MAX: Final = 10_000
"""The summary says if there are more."""
ORGS_ASKED_MAX: Final = 100
"""One request for each one's apps."""
NAMED_MAX: Final = 10


class Ages:
    """Ages of clients' secrets."""

    def __init__(self, now_epoch: int) -> None:
        self._now_epoch = now_epoch
        self.old: list[tuple[int, str]] = []
        """Days and client of each old secret."""
        self.seen = 0
        self.is_complete = True

    def note(self, client_id: str, created_at_epoch: int | None) -> None:
        self.seen += 1
        if created_at_epoch is None:
            return
        age_days = (self._now_epoch - created_at_epoch) // _DAY_SECS
        if age_days > AGE_DAYS_MAX:
            self.old.append((age_days, client_id))

    @property
    def summary(self) -> str:
        looked = f"{self.seen} clients" if self.is_complete else f"the first {self.seen} clients"
        oldest = sorted(self.old, reverse=True)
        named = [f"{client_id} ({days} days)" for days, client_id in oldest[:NAMED_MAX]]
        more = [f"{len(oldest) - NAMED_MAX} more"] if len(oldest) > NAMED_MAX else []
        names = f": {', '.join(named + more)}" if named else ""
        return f"{len(oldest) or 'none'} older than {AGE_DAYS_MAX} days, of {looked}{names}"

    @property
    def check(self) -> Checked:
        if not self.old:
            return Checked("client secrets", "OK", self.summary)
        fix = "pricekeeper credentials rotate ORG [APP], and claim the new one"
        return Checked("client secrets", "WARN", self.summary, fix)


async def read_stored_secrets(store: Store, clock: Clock) -> Ages:
    """Read the ages in the store."""
    ages, tenants = Ages(clock.now_ms() // 1000), Tenants(store, clock, ())
    async for policy in tenants.read_all():
        if ages.seen == CLIENTS_MAX:
            ages.is_complete = False
            break
        ages.note(policy.client_id, policy.client_secret_created_at_epoch)
    return ages


async def read_served_secrets(admin: Admin, orgs: list[dict[str, Any]], clock: Clock) -> Ages:
    """Read the ages of organisations and some apps."""
    ages = Ages(clock.now_ms() // 1000)
    ages.is_complete = len(orgs) <= ORGS_ASKED_MAX
    for org in orgs:
        ages.note(org["client_id"], _created_at_epoch(org))
    for org in orgs[:ORGS_ASKED_MAX]:
        for app in plain(await admin.list_apps(org["org_id"])):
            ages.note(app["client_id"], _created_at_epoch(app))
    return ages


def _created_at_epoch(answer: Mapping[str, Any]) -> int | None:
    created_at = answer.get("client_secret_created_at")
    return None if created_at is None else int(datetime.fromisoformat(created_at).timestamp())
