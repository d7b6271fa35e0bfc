"""Settings: the environment and a settings file, read once into a frozen value.

No other module knows what a variable of the service means. Where the store is and where prices come
from is parsed here too, so that a typo is told at start and not when it is first needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
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
REFRESH_AUTH: Final = "PRICEKEEPER_REFRESH_AUTH"
METRICS_PORT: Final = "PRICEKEEPER_METRICS_PORT"
METRICS_TOKEN: Final = "PRICEKEEPER_METRICS_TOKEN"  # noqa: S105 - its name
CONNECTIONS_MAX: Final = "PRICEKEEPER_CONNECTIONS_MAX"
SETTINGS_FILE: Final = "PRICEKEEPER_SETTINGS"
URL: Final = "PRICEKEEPER_URL"
CLIENT_ID: Final = "PRICEKEEPER_CLIENT_ID"
CLIENT_SECRET: Final = "PRICEKEEPER_CLIENT_SECRET"  # noqa: S105 - its name
RETRIEVAL_TOKEN: Final = "PRICEKEEPER_RETRIEVAL_TOKEN"  # noqa: S105 - its name
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
        REFRESH_AUTH,
        METRICS_PORT,
        METRICS_TOKEN,
        CONNECTIONS_MAX,
    }
)
NO_PROXIES: Final = "none"
TOKEN_LENGTH_MIN: Final = 16
_SECONDS_MAX: Final = 86_400
_PORT_MAX: Final = 65_535
LOOPBACK: Final = "127.0.0.1"
CONNECTIONS_DEFAULT: Final = 4_096
_CONNECTIONS_RANGE: Final = range(16, 1_000_001)
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


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen."""

    host: str
    port: int


API_LIMITS_PER_MINUTE: Final[Mapping[str, int]] = {
    "token": 300,
    "refresh": 300,
    "revoke": 300,
    "claim": 60,
    "provisioning": 300,
    "aggregates": 300,
    "selection": 6_000,
    "failures": 60,
}
"""Requests a minute for each client or key; ``failures`` counts wrong credentials by address. A
client may have a hundred sessions, so many processes may log in, refresh or end at one moment.
Usage is not limited unless it is configured: a refused record is lost money."""
_LIMITABLE: Final = frozenset({*API_LIMITS_PER_MINUTE, "usage", "limits"})


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
    Setting(PROVISIONING_KEY, "", "the key for provisioning; 128 bits: openssl rand -hex 32"),
    Setting(API_RATE_LIMITS, "on", "off, or changes such as token=120,usage=600 (a minute)"),
    Setting(AGGREGATOR_INTERVAL, "60", "seconds between aggregator runs; 0 turns it off here"),
    Setting(ISSUER, "pricekeeper", "the iss of the tokens: your service's public URL"),
    Setting(AUDIENCE, "pricekeeper", "the aud of the tokens"),
    Setting(PRICE_SOURCE, "", "genai-prices, aws:REGION or aws:REGION:FILE_OR_URL; asked daily"),
    Setting(LOG_LEVEL, "info", "debug, info, warning or error"),
    Setting(DRAIN, "1", "seconds between /readyz saying no and the end of serving"),
    Setting(
        TRUSTED_PROXIES,
        "",
        "addresses or networks whose X-Forwarded-For is believed, with commas; or none",
    ),
    Setting(REFRESH_AUTH, "optional", "required: /auth/refresh asks for the client's secret too"),
    Setting(METRICS_PORT, "", "PORT (of 127.0.0.1) or ADDRESS:PORT for metrics and health alone"),
    Setting(METRICS_TOKEN, "", "the bearer token that opens /metrics; at least 16 characters"),
    Setting(CONNECTIONS_MAX, str(CONNECTIONS_DEFAULT), "connections that one worker may have open"),
    Setting(SETTINGS_FILE, "", "a file of NAME=value lines for whatever is not set otherwise"),
)
CLIENT_SETTINGS: Final = (
    Setting(URL, "", "where the service is, such as https://keeper.example.com"),
    Setting(CLIENT_ID, "", "who is calling: org-ORG-app-APP, or org-ORG"),
    Setting(CLIENT_SECRET, "", "its secret, as it was claimed"),
    Setting(RETRIEVAL_TOKEN, "", "for pricekeeper credentials claim: what to claim a secret with"),
)
"""What is set where a client or the command line runs. The service does not look at them."""

PREFIX: Final = "PRICEKEEPER_"
_OF_DEVELOPMENT: Final = frozenset({f"{PREFIX}REQUIRE_ENGINE"})
_OF_KUBERNETES: Final = re.compile(
    rf"{PREFIX}(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""What Kubernetes sets in every pod beside a service that is called pricekeeper."""


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
    trusted_proxies: str | None = None
    """Empty if it is said that there are none, ``None`` if nothing is said."""
    refresh_needs_secret: bool = False
    metrics_address: ListenAddress | None = None
    """Where metrics and health have a listener of their own, if anywhere."""
    metrics_token: str | None = None
    connections_max: int = CONNECTIONS_DEFAULT

    def __repr__(self) -> str:
        """Without the key: settings end up in logs."""
        key = None if self.provisioning_key is None else "..."
        return f"Settings(store={self.store!r}, data_dir={self.data_dir!r}, key={key!r})"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that this environment asks for; a settings file fills what it leaves open."""
    given = {**_settings_file(environment.get(SETTINGS_FILE)), **environment}
    config, key, prices = (given.get(name) for name in (CONFIG, PROVISIONING_KEY, PRICE_SOURCE))
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
        trusted_proxies=_proxies(given.get(TRUSTED_PROXIES) or None),
        refresh_needs_secret=_refresh_needs_secret(given.get(REFRESH_AUTH) or "optional"),
        drain_secs=_seconds(DRAIN, given.get(DRAIN, "1")),
        metrics_address=_metrics_address(given.get(METRICS_PORT)),
        metrics_token=_metrics_token(given.get(METRICS_TOKEN)),
        connections_max=_connections(given.get(CONNECTIONS_MAX, str(CONNECTIONS_DEFAULT))),
    )


def _metrics_token(text: str | None) -> str | None:
    if text and (len(text) < TOKEN_LENGTH_MIN or not _SENDABLE.fullmatch(text)):
        raise SettingsError(
            METRICS_TOKEN,
            f"needs at least {TOKEN_LENGTH_MIN} characters that a header can carry: ASCII, no line "
            "breaks, no blanks at the ends; openssl rand -hex 32 makes one",
        )
    return text or None


def _metrics_address(text: str | None) -> ListenAddress | None:
    """``PORT``, ``ADDRESS:PORT`` or ``[ADDRESS]:PORT``; a port alone is one of the loopback."""
    if not text:
        return None
    host, named, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= _PORT_MAX:
        raise SettingsError(METRICS_PORT, f"{text!r}: want PORT or ADDRESS:PORT, such as 9464")
    if named and (not bare or (":" in bare and bare == host)):
        raise SettingsError(METRICS_PORT, f"{text!r}: want ADDRESS:PORT, such as [::1]:9464")
    return ListenAddress(bare or LOOPBACK, int(port))


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
            told = f"; {name.strip()} is no setting{_nearest(name.strip())}" if separator else ""
            raise SettingsError(SETTINGS_FILE, f"{path}, line {number}: want NAME=value{told}")
        made[name.strip()] = value.strip()
    return made


def unknown_settings(environment: Mapping[str, str]) -> list[str]:
    """A sentence about each variable that looks like a setting and is none, without its value."""
    known = {one.name for one in (*SETTINGS, *CLIENT_SETTINGS)} | _OF_DEVELOPMENT
    return [
        f"{name} is no setting, and nobody reads it{_nearest(name)}"
        for name, value in sorted(environment.items())
        if name not in known and _looks_like_a_setting(name, value)
    ]


def _looks_like_a_setting(name: str, value: str) -> bool:
    if _OF_KUBERNETES.fullmatch(name):
        return name == f"{PREFIX}PORT" and "://" not in value  # Kubernetes' own is a URL
    upper = name.upper()
    return upper.startswith(PREFIX) or (upper.startswith("PRICE") and bool(_nearest(name)))


def _nearest(name: str) -> str:
    """The setting that may be meant, if one is like it."""
    from difflib import get_close_matches  # noqa: PLC0415 - for the few who need it

    known, upper = [one.name for one in (*SETTINGS, *CLIENT_SETTINGS)], name.upper()
    if not upper.startswith(PREFIX):
        found = get_close_matches(upper, known, n=1, cutoff=0.9)
    else:  # what is the same in all of them makes none of them like another
        ends = [one.removeprefix(PREFIX) for one in known]
        found = [PREFIX + end for end in get_close_matches(upper.removeprefix(PREFIX), ends, n=1)]
    return f"; do you mean {found[0]}?" if found else ""


def _api_limits(text: str) -> Mapping[str, int]:
    if text.lower() == "off":
        return {}
    limits = dict(API_LIMITS_PER_MINUTE)
    for change in filter(None, (part.strip() for part in text.split(","))):
        if change.lower() == "on":
            continue
        name, _, number = change.partition("=")
        if name not in _LIMITABLE or not number.isascii() or not number.isdigit():
            known = ", ".join(sorted(_LIMITABLE))
            raise SettingsError(API_RATE_LIMITS, f"{change!r}: want NAME=NUMBER, NAME of {known}")
        limits[name] = int(number)
    return {name: number for name, number in limits.items() if number}


def _proxies(text: str | None) -> str | None:
    """What uvicorn takes: addresses and networks with commas, or ``*`` for everybody."""
    if text is None or text == "*":
        return text
    if text.lower() == NO_PROXIES:
        return ""
    named = [part.strip() for part in text.split(",")]
    for one in named:
        try:
            ip_network(one)
        except ValueError as error:
            told = f"{one!r} is no address and no network such as 10.0.0.0/16 ({error})"
            raise SettingsError(TRUSTED_PROXIES, told) from None
    return ",".join(named)


def _refresh_needs_secret(text: str) -> bool:
    if text not in ("optional", "required"):
        raise SettingsError(REFRESH_AUTH, "must be optional or required")
    return text == "required"


def _seconds(setting: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _SECONDS_MAX:
        raise SettingsError(setting, f"{text!r} is not a number of seconds up to {_SECONDS_MAX}")
    return int(text)


def _connections(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:9]) not in _CONNECTIONS_RANGE:
        least, most = _CONNECTIONS_RANGE[0], _CONNECTIONS_RANGE[-1]
        raise SettingsError(CONNECTIONS_MAX, f"{text!r} is not a number from {least} to {most}")
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
        if not place or ("://" in place and not place.startswith("https://")):
            told = f"{place!r} is no file and no https URL; {_SOURCE_EXAMPLES}"
            raise SettingsError(PRICE_SOURCE, told)
    return AwsOffers(region, listed)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # read to have it checked
    except ValueError as error:
        raise SettingsError(STORE, f"{url!r} is not a URL ({error}); {_STORE_EXAMPLES}") from error
    return parts
