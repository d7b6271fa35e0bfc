"""Settings: the environment and a settings file, read once into a frozen value.

No other module knows what a variable of the service means. Where the store is and where prices come
from is parsed here too, so that a typo is told at start and not when it is first needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pricekeeper.errors import SettingsError

STORE: Final = "PRICEKEEPER_STORE"
CONFIG: Final = "PRICEKEEPER_CONFIG"
DATA_DIR: Final = "PRICEKEEPER_DATA_DIR"
PROVISIONING_KEY: Final = "PRICEKEEPER_PROVISIONING_KEY"
API_RATE_LIMITS: Final = "PRICEKEEPER_API_RATE_LIMITS"
AGGREGATOR_INTERVAL: Final = "PRICEKEEPER_AGGREGATOR_INTERVAL_SECS"
ISSUER: Final = "PRICEKEEPER_ISSUER"
AUDIENCE: Final = "PRICEKEEPER_AUDIENCE"
PRICE_SOURCE: Final = "PRICEKEEPER_PRICE_SOURCE"
LOG_LEVEL: Final = "PRICEKEEPER_LOG_LEVEL"
DRAIN: Final = "PRICEKEEPER_DRAIN_SECS"
TRUSTED_PROXIES: Final = "PRICEKEEPER_TRUSTED_PROXIES"
SETTINGS_FILE: Final = "PRICEKEEPER_SETTINGS"
_KNOWN: Final = frozenset(
    {
        STORE,
        CONFIG,
        DATA_DIR,
        PROVISIONING_KEY,
        API_RATE_LIMITS,
        AGGREGATOR_INTERVAL,
        ISSUER,
        AUDIENCE,
        PRICE_SOURCE,
        LOG_LEVEL,
        DRAIN,
        TRUSTED_PROXIES,
    }
)
KEY_LENGTH_MIN: Final = 16
_SECONDS_MAX: Final = 86_400
MEMORY: Final = ":memory:"
STORE_DEFAULT: Final = "sqlite:///data/pricekeeper.db"
PREFIX_DEFAULT: Final = "pricekeeper-"

_STORE_EXAMPLES: Final = (
    "use sqlite:///path/to/file.db, sqlite://:memory: "
    "or dynamodb://REGION?prefix=NAME-&endpoint=http://127.0.0.1:8000"
)
_SOURCE_EXAMPLES: Final = "use genai-prices, aws:REGION or aws:REGION:FILE_OR_URL[,FILE_OR_URL...]"
_SENDABLE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{0,100}")


@dataclass(frozen=True, slots=True)
class SqliteLocation:
    """An embedded store: a file, or `MEMORY`."""

    path: str


@dataclass(frozen=True, slots=True)
class DynamoDbLocation:
    """Tables in one region, their names starting with the prefix."""

    region: str
    prefix: str = PREFIX_DEFAULT
    endpoint: str | None = None


StoreLocation: TypeAlias = SqliteLocation | DynamoDbLocation


@dataclass(frozen=True, slots=True)
class GenaiPackage:
    """Prices from the package ``genai-prices``."""


@dataclass(frozen=True, slots=True)
class AwsOffers:
    """Prices from AWS's offers of a region: those files or URLs, or what AWS publishes."""

    region: str
    places: tuple[str, ...] = ()


PriceLocation: TypeAlias = GenaiPackage | AwsOffers


API_LIMITS_PER_MINUTE: Final[Mapping[str, int]] = {
    "token": 60,
    "refresh": 120,
    "revoke": 60,
    "claim": 60,
    "provisioning": 300,
    "aggregates": 300,
    "selection": 6_000,
    "failures": 60,
    "usage": 360_000,
    "batch": 6_000,
    "limits": 120_000,
    "force_check": 600,
}
"""Requests a minute for each client or key; ``failures`` counts refused credentials by address.

What apps send all day (from ``usage`` on) is counted by each process, and no honest client meets
the limit. ``usage`` is a fifth more than the 5,000 a second that are promised for one organisation,
``batch`` is 10,000 records a second in full batches, ``limits`` is an acquire and an adjustment for
a thousand calls a second. A record that meets its limit is not lost: its client sends it again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table of settings: what the documentation and ``doctor`` show."""

    name: str
    default: str
    meaning: str


SETTINGS: Final = (
    Setting(STORE, STORE_DEFAULT, "where the data lives"),
    Setting(CONFIG, "built in", "the deployment file with model labels and prices"),
    Setting(DATA_DIR, "data", "signing keys and pepper; keep it private, and keep it"),
    Setting(PROVISIONING_KEY, "", "the key for provisioning; at least 16 characters"),
    Setting(API_RATE_LIMITS, "on", "off, or changes such as token=120,usage=600 (a minute)"),
    Setting(AGGREGATOR_INTERVAL, "60", "seconds between aggregator runs; 0 turns it off here"),
    Setting(ISSUER, "pricekeeper", "the iss of the tokens: your service's public URL"),
    Setting(AUDIENCE, "pricekeeper", "the aud of the tokens"),
    Setting(PRICE_SOURCE, "", "genai-prices, aws:REGION or aws:REGION:FILE_OR_URL; asked daily"),
    Setting(LOG_LEVEL, "info", "debug, info, warning or error"),
    Setting(DRAIN, "1", "seconds between /readyz saying no and the end of serving"),
    Setting(TRUSTED_PROXIES, "", "addresses whose X-Forwarded-For is believed, with commas"),
    Setting(SETTINGS_FILE, "", "a file of NAME=value lines for whatever is not set otherwise"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be configured from outside."""

    store: StoreLocation
    config_path: Path | None = None
    data_dir: Path = Path("data")
    provisioning_key: str | None = None
    api_limits_per_minute: Mapping[str, int] = field(default_factory=dict)
    """Empty if the API's own limits are off."""
    aggregator_interval_secs: int = 60
    issuer: str = "pricekeeper"
    audience: str = "pricekeeper"
    price_source: PriceLocation | None = None
    log_level: str = "info"
    drain_secs: int = 1
    trusted_proxies: str = ""

    def __repr__(self) -> str:
        """Without the key: settings end up in logs."""
        key = None if self.provisioning_key is None else "..."
        return f"Settings(store={self.store!r}, data_dir={self.data_dir!r}, key={key!r})"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that this environment asks for; a settings file fills what it leaves open."""
    given = {**_settings_file(environment.get(SETTINGS_FILE)), **environment}
    config, key, prices = (given.get(name) for name in (CONFIG, PROVISIONING_KEY, PRICE_SOURCE))
    if key is not None and len(key) < KEY_LENGTH_MIN:
        raise SettingsError(PROVISIONING_KEY, f"needs at least {KEY_LENGTH_MIN} characters")
    if key is not None and not _SENDABLE.fullmatch(key):
        raise SettingsError(
            PROVISIONING_KEY,
            "must be what a header can carry: ASCII, no line breaks, no blanks at the ends",
        )
    level = given.get(LOG_LEVEL, "info").lower()
    if level not in ("debug", "info", "warning", "error"):
        raise SettingsError(LOG_LEVEL, "must be debug, info, warning or error")
    return Settings(
        store=parse_store_location(given.get(STORE, STORE_DEFAULT)),
        config_path=Path(config) if config else None,
        data_dir=Path(given.get(DATA_DIR) or "data"),
        provisioning_key=key,
        api_limits_per_minute=_api_limits(given.get(API_RATE_LIMITS, "on")),
        aggregator_interval_secs=_seconds(
            AGGREGATOR_INTERVAL, given.get(AGGREGATOR_INTERVAL, "60")
        ),
        issuer=given.get(ISSUER) or "pricekeeper",
        audience=given.get(AUDIENCE) or "pricekeeper",
        price_source=parse_price_location(prices) if prices else None,
        log_level=level,
        trusted_proxies=given.get(TRUSTED_PROXIES, ""),
        drain_secs=_seconds(DRAIN, given.get(DRAIN, "1")),
    )


def _settings_file(path: str | None) -> dict[str, str]:
    """``NAME=value`` lines; blank lines and ``#`` comments do not count."""
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(SETTINGS_FILE, f"can't read {path}: {error}") from error
    made: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.partition("=")
        if not separator or name.strip() not in _KNOWN:
            raise SettingsError(SETTINGS_FILE, f"{path}, line {number}: want NAME=value")
        made[name.strip()] = value.strip()
    return made


def _api_limits(text: str) -> Mapping[str, int]:
    if text.lower() == "off":
        return {}
    limits = dict(API_LIMITS_PER_MINUTE)
    for change in filter(None, (part.strip() for part in text.split(","))):
        if change.lower() == "on":
            continue
        name, _, number = change.partition("=")
        if name not in API_LIMITS_PER_MINUTE or not number.isascii() or not number.isdigit():
            known = ", ".join(sorted(API_LIMITS_PER_MINUTE))
            raise SettingsError(API_RATE_LIMITS, f"{change!r}: want NAME=NUMBER, NAME of {known}")
        limits[name] = int(number)
    return {name: number for name, number in limits.items() if number}


def _seconds(setting: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _SECONDS_MAX:
        raise SettingsError(setting, f"{text!r} is not a number of seconds up to {_SECONDS_MAX}")
    return int(text)


def parse_store_location(url: str) -> StoreLocation:
    """``sqlite:///relative``, ``sqlite:////absolute``, ``sqlite://:memory:`` or ``dynamodb://...``."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":
        return _sqlite_location(rest)
    if separator and scheme == "dynamodb":
        return _dynamodb_location(url)
    raise SettingsError(STORE, f"{url!r} is not a store; {_STORE_EXAMPLES}")


def _sqlite_location(rest: str) -> SqliteLocation:
    if rest == MEMORY:
        return SqliteLocation(MEMORY)
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or path in ("", MEMORY) or "?" in rest or "\0" in path:
        raise SettingsError(STORE, f"'sqlite://{rest}' names no file; {_STORE_EXAMPLES}")
    return SqliteLocation(path)


def _dynamodb_location(url: str) -> DynamoDbLocation:
    parts = _split(url)
    region = parts.netloc
    if not _REGION.fullmatch(region) or parts.path not in ("", "/"):
        raise SettingsError(STORE, f"{region!r} is not an AWS region; {_STORE_EXAMPLES}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - {"prefix", "endpoint"}):
        raise SettingsError(STORE, f"unknown option {unknown[0]!r}; {_STORE_EXAMPLES}")
    prefix = options.get("prefix", PREFIX_DEFAULT)
    if not _PREFIX.fullmatch(prefix):
        raise SettingsError(STORE, "prefix may have up to 100 of A-Z a-z 0-9 _ . -")
    endpoint = options.get("endpoint")
    if endpoint is not None:
        target = _split(endpoint)
        if target.scheme not in ("http", "https") or not target.hostname:
            raise SettingsError(STORE, f"endpoint {endpoint!r} is not an http(s) URL")
        endpoint = endpoint.rstrip("/")
    return DynamoDbLocation(region, prefix, endpoint)


def parse_price_location(text: str) -> PriceLocation:
    """``genai-prices``, ``aws:REGION`` or ``aws:REGION:FILE_OR_URL[,FILE_OR_URL...]``."""
    if text == "genai-prices":
        return GenaiPackage()
    scheme, _, rest = text.partition(":")
    region, named, places = rest.partition(":")
    if scheme != "aws" or not rest:
        raise SettingsError(PRICE_SOURCE, f"{text!r} is no source of prices; {_SOURCE_EXAMPLES}")
    if not _REGION.fullmatch(region):
        raise SettingsError(PRICE_SOURCE, f"{region!r} is not an AWS region; {_SOURCE_EXAMPLES}")
    listed = tuple(places.split(",")) if named else ()
    for place in listed:
        if not place or ("://" in place and not place.startswith(("https://", "http://"))):
            told = f"{place!r} is no file and no http(s) URL; {_SOURCE_EXAMPLES}"
            raise SettingsError(PRICE_SOURCE, told)
    return AwsOffers(region, listed)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # read to have it checked
    except ValueError as error:
        raise SettingsError(STORE, f"{url!r} is not a URL ({error}); {_STORE_EXAMPLES}") from error
    return parts
