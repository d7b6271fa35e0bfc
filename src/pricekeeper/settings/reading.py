"""The environment and a settings file, checked at the start and read into a frozen value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Final

from pricekeeper.errors import SettingsError
from pricekeeper.settings.locations import (
    BedrockLocation,
    DynamoDbLocation,
    ExportLocation,
    ListenAddress,
    PriceLocation,
    SecretLocation,
    StoreLocation,
    parse_bedrock_location,
    parse_export_location,
    parse_listen_address,
    parse_price_location,
    parse_s3_endpoint,
    parse_secret_location,
    parse_store_location,
)
from pricekeeper.settings.table import (
    AGGREGATOR_INTERVAL,
    ALERT_NETWORKS,
    ALERT_TOPICS,
    API_RATE_LIMITS,
    AUDIENCE,
    AUDIT_RETENTION,
    AUDIT_RETENTION_DAYS_DEFAULT,
    BEDROCK_REGION,
    BEDROCK_UPSTREAM,
    CONFIG,
    CONNECTIONS_DEFAULT,
    CONNECTIONS_MAX,
    DATA_DIR,
    DRAIN,
    EVENT_LISTENERS,
    EVENT_LISTENERS_DEFAULT,
    EXPORT_BEFORE_DELETE,
    EXPORT_TO,
    GATEWAY_BODY,
    IN_A_FILE,
    ISSUER,
    LOG_LEVEL,
    METRICS_PORT,
    METRICS_TOKEN,
    NO_PROXIES,
    ORG_ADMINS_SET_BUDGETS,
    PEPPER,
    PRICE_SOURCE,
    PROVISIONING_KEY,
    REFRESH_AUTH,
    REQUEST_DEADLINE,
    RETENTION,
    RETENTION_DAYS_DEFAULT,
    S3_ENDPOINT,
    SERVE_ONLY,
    SETTINGS,
    SETTINGS_FILE,
    SIGNING_KEYS,
    STORE,
    STORE_DEFAULT,
    TOKEN_LENGTH_MIN,
    TRUSTED_PROXIES,
    USAGE_LINGER,
    suggest_setting,
)

_DEFAULTS: Final = {one.name: one.default for one in SETTINGS}
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_SECONDS_MAX: Final = 86_400
_CONNECTIONS_RANGE: Final = range(16, 1_000_001)
_LISTENERS_RANGE: Final = range(100_001)
_DEADLINE_RANGE: Final = range(1, 61)
_LINGER_RANGE: Final = range(101)
_BODY_MB_RANGE: Final = range(1, 1_001)
RETENTION_RANGE: Final = range(30, 3_651)
_TOPIC_EXAMPLE: Final = "arn:aws:sns:eu-central-1:123456789012:alerts"
_SENDABLE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")

API_LIMITS_PER_MINUTE: Final[Mapping[str, int]] = {
    "token": 300,
    "refresh": 300,
    "revoke": 300,
    "claim": 60,
    "provisioning": 300,
    "aggregates": 300,
    "selection": 6_000,
    "failures": 60,
    "usage": 360_000,
    "batch": 6_000,
    "limits": 120_000,
    "force_check": 600,
    "authorize": 120_000,
    "capture": 360_000,
    "reports": 1_200,
    "events": 120,
}
"""Requests a minute for each client or key; ``failures`` counts wrong credentials by address.

A client's hundred sessions may log in or end at one moment. From ``usage`` on each process counts:
``usage`` is a fifth more than the promised 5,000 a second for one organisation, ``batch`` 10,000
records a second. A record over its limit is sent again by its client.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the service."""

    store: StoreLocation
    config_path: Path | None = None
    data_dir: Path = Path("data")
    signing_keys: SecretLocation | None = None
    """``None``: in the data folder, as for the pepper."""
    pepper: SecretLocation | None = None
    provisioning_key: str | None = None
    api_limits_per_minute: Mapping[str, int] = field(default_factory=dict)
    """Empty if the API's limits are off."""
    aggregator_interval_secs: int | None = None
    """``None``: as the deployment file says."""
    issuer: str = "pricekeeper"
    audience: str = "pricekeeper"
    price_source: PriceLocation | None = None
    log_level: str = "info"
    drain_secs: int = 1
    trusted_proxies: str | None = None
    """Empty: the setting is ``none``; ``None``: not set."""
    refresh_needs_secret: bool = False
    metrics_address: ListenAddress | None = None
    """A separate listener for metrics and health."""
    metrics_token: str | None = None
    connections_max: int = CONNECTIONS_DEFAULT
    event_listeners_max: int = EVENT_LISTENERS_DEFAULT
    """0 turns events off."""
    request_deadline_ms: int = 5_000
    usage_linger_ms: int = 0
    retention_days: int = RETENTION_DAYS_DEFAULT
    audit_retention_days: int = AUDIT_RETENTION_DAYS_DEFAULT
    export_to: ExportLocation | None = None
    exports_before_delete: bool = False
    s3_endpoint: str | None = None
    bedrock: BedrockLocation | None = None
    """``None``: no gateway."""
    gateway_body_mb_max: int = 25
    alert_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Private networks that alerts may be sent to."""
    alert_topics: frozenset[str] = frozenset()
    """SNS topics that channels may name."""
    org_admins_set_budgets: bool = False
    """Whether they may raise the organisation's hard budgets and quotas."""
    serves_api: bool = True
    serves_gateway: bool = True

    def __repr__(self) -> str:
        """Leave the key out, because settings get into logs."""
        key = None if self.provisioning_key is None else "..."
        return f"Settings(store={self.store!r}, data_dir={self.data_dir!r}, key={key!r})"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read an environment; a settings file adds what it leaves open."""
    given = {**_settings_file(environment.get(SETTINGS_FILE)), **environment}

    def text(name: str) -> str:
        """The text, or the table's default if missing or empty."""
        return given.get(name) or _DEFAULTS[name]

    def whole(name: str, allowed: range) -> int:
        return _whole(name, text(name), allowed)

    config, key, prices = (given.get(name) for name in (CONFIG, PROVISIONING_KEY, PRICE_SOURCE))
    if key and not _SENDABLE.fullmatch(key):
        raise SettingsError(
            PROVISIONING_KEY,
            "must be what a header can carry: ASCII, no line breaks, no blanks at the ends",
        )
    store = parse_store_location(given.get(STORE, STORE_DEFAULT))
    region = store.region if isinstance(store, DynamoDbLocation) else None
    export_to = given.get(EXPORT_TO)
    return Settings(
        store=store,
        config_path=Path(config) if config else None,
        data_dir=Path(text(DATA_DIR)),
        signing_keys=parse_secret_location(SIGNING_KEYS, given.get(SIGNING_KEYS, ""), region),
        pepper=parse_secret_location(PEPPER, given.get(PEPPER, ""), region),
        provisioning_key=key or None,
        api_limits_per_minute=_api_limits(given.get(API_RATE_LIMITS, "on")),
        aggregator_interval_secs=(
            _seconds(AGGREGATOR_INTERVAL, given) if AGGREGATOR_INTERVAL in given else None
        ),
        issuer=text(ISSUER),
        audience=text(AUDIENCE),
        price_source=parse_price_location(prices) if prices else None,
        log_level=_one_of(LOG_LEVEL, given.get(LOG_LEVEL, "info").lower(), *LOG_LEVELS),
        trusted_proxies=_proxies(given.get(TRUSTED_PROXIES) or None),
        refresh_needs_secret=(
            _one_of(REFRESH_AUTH, text(REFRESH_AUTH), "optional", "required") == "required"
        ),
        drain_secs=_seconds(DRAIN, given),
        metrics_address=parse_listen_address(given.get(METRICS_PORT)),
        metrics_token=_metrics_token(given.get(METRICS_TOKEN)),
        connections_max=_whole(
            CONNECTIONS_MAX,
            given.get(CONNECTIONS_MAX, _DEFAULTS[CONNECTIONS_MAX]),
            _CONNECTIONS_RANGE,
        ),
        event_listeners_max=whole(EVENT_LISTENERS, _LISTENERS_RANGE),
        request_deadline_ms=1000 * whole(REQUEST_DEADLINE, _DEADLINE_RANGE),
        usage_linger_ms=whole(USAGE_LINGER, _LINGER_RANGE),
        retention_days=whole(RETENTION, RETENTION_RANGE),
        audit_retention_days=whole(AUDIT_RETENTION, RETENTION_RANGE),
        export_to=parse_export_location(export_to) if export_to else None,
        exports_before_delete=_exports_before_delete(text(EXPORT_BEFORE_DELETE), store, export_to),
        s3_endpoint=parse_s3_endpoint(given.get(S3_ENDPOINT)),
        bedrock=parse_bedrock_location(given.get(BEDROCK_UPSTREAM), given.get(BEDROCK_REGION)),
        gateway_body_mb_max=whole(GATEWAY_BODY, _BODY_MB_RANGE),
        alert_networks=_networks(ALERT_NETWORKS, text(ALERT_NETWORKS)),
        alert_topics=_topics(text(ALERT_TOPICS)),
        org_admins_set_budgets=(
            _one_of(ORG_ADMINS_SET_BUDGETS, text(ORG_ADMINS_SET_BUDGETS), "0", "1") == "1"
        ),
        serves_api=_serves(text(SERVE_ONLY), "api"),
        serves_gateway=_serves(text(SERVE_ONLY), "gateway"),
    )


def _one_of(setting: str, text: str, *options: str) -> str:
    if text not in options:
        raise SettingsError(setting, f"must be {', '.join(options[:-1])} or {options[-1]}")
    return text


def _serves(only: str, part: str) -> bool:
    return not only or _one_of(SERVE_ONLY, only, "api", "gateway") == part


def _metrics_token(text: str | None) -> str | None:
    if text and (len(text) < TOKEN_LENGTH_MIN or not _SENDABLE.fullmatch(text)):
        raise SettingsError(
            METRICS_TOKEN,
            f"needs at least {TOKEN_LENGTH_MIN} characters that a header can carry: ASCII, no line "
            "breaks, no blanks at the ends; openssl rand -hex 32 makes one",
        )
    return text or None


def _settings_file(path: str | None) -> dict[str, str]:
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
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or name not in IN_A_FILE:
            message = f"; {name} is no setting{suggest_setting(name)}" if separator else ""
            raise SettingsError(SETTINGS_FILE, f"{path}, line {number}: want NAME=value{message}")
        made[name] = value
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


def _proxies(text: str | None) -> str | None:
    """Parse comma-separated addresses and networks, or ``*`` for all."""
    if text is None or text == "*":
        return text
    if text.lower() == NO_PROXIES:
        return ""
    _networks(TRUSTED_PROXIES, text)
    return ",".join(part.strip() for part in text.split(","))


def _networks(setting: str, text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    networks = []
    for one in (part.strip() for part in text.split(",")) if text else ():
        try:
            networks.append(ip_network(one))
        except ValueError as error:
            message = f"{one!r} is no address and no network such as 10.0.0.0/16 ({error})"
            raise SettingsError(setting, message) from None
    return tuple(networks)


def _topics(text: str) -> frozenset[str]:
    topics = frozenset(one.strip() for one in text.split(",") if one.strip())
    for one in sorted(topics):
        if not one.startswith("arn:aws") or ":sns:" not in one:
            message = f"{one!r} is no ARN of a topic, such as {_TOPIC_EXAMPLE}"
            raise SettingsError(ALERT_TOPICS, message)
    return topics


def _seconds(setting: str, given: Mapping[str, str]) -> int:
    text = given.get(setting, _DEFAULTS[setting])
    if not text.isascii() or not text.isdigit() or int(text) > _SECONDS_MAX:
        raise SettingsError(setting, f"{text!r} is not a number of seconds up to {_SECONDS_MAX}")
    return int(text)


def _exports_before_delete(text: str, store: StoreLocation, export_to: str | None) -> bool:
    if _one_of(EXPORT_BEFORE_DELETE, text, "0", "1") == "0":
        return False
    if isinstance(store, DynamoDbLocation):
        message = (
            "DynamoDB deletes expired items by itself; docs/deploy.md says how Streams and "
            "exports to S3 keep them"
        )
        raise SettingsError(EXPORT_BEFORE_DELETE, message)
    if not export_to:
        raise SettingsError(EXPORT_BEFORE_DELETE, f"set {EXPORT_TO} too, or nothing is exported")
    return True


def _whole(setting: str, text: str, allowed: range) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:9]) not in allowed:
        raise SettingsError(setting, f"{text!r} is no number from {allowed[0]} to {allowed[-1]}")
    return int(text)
