"""The environment and a settings file, checked at the start and read into a frozen value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Final

from pricekeeper.errors import SettingsError
from pricekeeper.settings import table
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
from pricekeeper.values import parse_whole

_DEFAULTS: Final = {one.name: one.default for one in table.SETTINGS}
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_SECONDS_RANGE: Final = range(86_401)
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
    metrics_token: str | None = None
    connections_max: int = table.CONNECTIONS_DEFAULT
    event_listeners_max: int = table.EVENT_LISTENERS_DEFAULT
    """0 turns events off."""
    request_deadline_ms: int = 5_000
    usage_linger_ms: int = 0
    retention_days: int = table.RETENTION_DAYS_DEFAULT
    audit_retention_days: int = table.AUDIT_RETENTION_DAYS_DEFAULT
    export_to: ExportLocation | None = None
    exports_before_delete: bool = False
    s3_endpoint: str | None = None
    bedrock: BedrockLocation | None = None
    """``None``: no gateway."""
    gateway_body_mb_max: int = 25
    alert_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    alert_topics: frozenset[str] = frozenset()
    org_admins_set_budgets: bool = False
    serves_api: bool = True
    serves_gateway: bool = True

    def __repr__(self) -> str:
        """Leave the key out, because settings get into logs."""
        key = None if self.provisioning_key is None else "..."
        return f"Settings(store={self.store!r}, data_dir={self.data_dir!r}, key={key!r})"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read an environment; a settings file adds what it leaves open."""
    given = {**_settings_file(environment.get(table.SETTINGS_FILE)), **environment}

    def text(name: str) -> str:
        """The text, or the table's default if missing or empty."""
        return given.get(name) or _DEFAULTS[name]

    def chosen(name: str, *options: str) -> str:
        return _one_of(name, text(name), *options)

    def whole(name: str, allowed: range) -> int:
        number = parse_whole(text(name))
        if number is None or number not in allowed:
            message = f"{text(name)!r} is no number from {allowed[0]} to {allowed[-1]}"
            raise SettingsError(name, message)
        return number

    def secret(name: str) -> SecretLocation | None:
        return parse_secret_location(name, given.get(name, ""), region)

    config, key = given.get(table.CONFIG), given.get(table.PROVISIONING_KEY)
    prices, export_to = given.get(table.PRICE_SOURCE), given.get(table.EXPORT_TO)
    if key and not _SENDABLE.fullmatch(key):
        raise SettingsError(
            table.PROVISIONING_KEY,
            "must be what a header can carry: ASCII, no line breaks, no blanks at the ends",
        )
    store = parse_store_location(given.get(table.STORE, table.STORE_DEFAULT))
    region = store.region if isinstance(store, DynamoDbLocation) else None
    return Settings(
        store=store,
        config_path=Path(config) if config else None,
        data_dir=Path(text(table.DATA_DIR)),
        signing_keys=secret(table.SIGNING_KEYS),
        pepper=secret(table.PEPPER),
        provisioning_key=key or None,
        api_limits_per_minute=_api_limits(given.get(table.API_RATE_LIMITS, "on")),
        aggregator_interval_secs=(
            whole(table.AGGREGATOR_INTERVAL, _SECONDS_RANGE)
            if given.get(table.AGGREGATOR_INTERVAL)
            else None
        ),
        issuer=text(table.ISSUER),
        audience=text(table.AUDIENCE),
        price_source=parse_price_location(prices) if prices else None,
        log_level=_one_of(table.LOG_LEVEL, given.get(table.LOG_LEVEL, "info").lower(), *LOG_LEVELS),
        trusted_proxies=_proxies(given.get(table.TRUSTED_PROXIES) or None),
        refresh_needs_secret=chosen(table.REFRESH_AUTH, "optional", "required") == "required",
        drain_secs=whole(table.DRAIN, _SECONDS_RANGE),
        metrics_address=parse_listen_address(given.get(table.METRICS_PORT)),
        metrics_token=_metrics_token(given.get(table.METRICS_TOKEN)),
        connections_max=whole(table.CONNECTIONS_MAX, _CONNECTIONS_RANGE),
        event_listeners_max=whole(table.EVENT_LISTENERS, _LISTENERS_RANGE),
        request_deadline_ms=1000 * whole(table.REQUEST_DEADLINE, _DEADLINE_RANGE),
        usage_linger_ms=whole(table.USAGE_LINGER, _LINGER_RANGE),
        retention_days=whole(table.RETENTION, RETENTION_RANGE),
        audit_retention_days=whole(table.AUDIT_RETENTION, RETENTION_RANGE),
        export_to=parse_export_location(export_to) if export_to else None,
        exports_before_delete=chosen(table.EXPORT_BEFORE_DELETE, "0", "1") == "1"
        and _check_exports(store, export_to),
        s3_endpoint=parse_s3_endpoint(given.get(table.S3_ENDPOINT)),
        bedrock=parse_bedrock_location(
            given.get(table.BEDROCK_UPSTREAM), given.get(table.BEDROCK_REGION)
        ),
        gateway_body_mb_max=whole(table.GATEWAY_BODY, _BODY_MB_RANGE),
        alert_networks=_networks(table.ALERT_NETWORKS, text(table.ALERT_NETWORKS)),
        alert_topics=_topics(text(table.ALERT_TOPICS)),
        org_admins_set_budgets=chosen(table.ORG_ADMINS_SET_BUDGETS, "0", "1") == "1",
        serves_api=_serves(text(table.SERVE_ONLY), "api"),
        serves_gateway=_serves(text(table.SERVE_ONLY), "gateway"),
    )


def _one_of(setting: str, text: str, *options: str) -> str:
    if text not in options:
        raise SettingsError(setting, f"must be {', '.join(options[:-1])} or {options[-1]}")
    return text


def _serves(only: str, part: str) -> bool:
    return not only or _one_of(table.SERVE_ONLY, only, "api", "gateway") == part


def _metrics_token(text: str | None) -> str | None:
    if text and (len(text) < table.TOKEN_LENGTH_MIN or not _SENDABLE.fullmatch(text)):
        raise SettingsError(
            table.METRICS_TOKEN,
            f"needs at least {table.TOKEN_LENGTH_MIN} characters that a header can carry: ASCII, "
            "no line breaks, no blanks at the ends; openssl rand -hex 32 makes one",
        )
    return text or None


def _settings_file(path: str | None) -> dict[str, str]:
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(table.SETTINGS_FILE, f"can't read {path}: {error}") from error
    made: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or name not in table.IN_A_FILE:
            message = f"; {name} is no setting{table.suggest_setting(name)}" if separator else ""
            raise SettingsError(
                table.SETTINGS_FILE, f"{path}, line {number}: want NAME=value{message}"
            )
        made[name] = value
    return made


def _api_limits(text: str) -> Mapping[str, int]:
    if text.lower() == "off":
        return {}
    limits = dict(API_LIMITS_PER_MINUTE)
    for change in filter(None, (part.strip() for part in text.split(","))):
        if change.lower() == "on":
            continue
        name, _, stated = change.partition("=")
        number = parse_whole(stated)
        if name not in API_LIMITS_PER_MINUTE or number is None:
            known = ", ".join(sorted(API_LIMITS_PER_MINUTE))
            raise SettingsError(
                table.API_RATE_LIMITS, f"{change!r}: want NAME=NUMBER, NAME of {known}"
            )
        limits[name] = number
    return {name: number for name, number in limits.items() if number}


def _proxies(text: str | None) -> str | None:
    if text is None or text == "*":
        return text
    if text.lower() == table.NO_PROXIES:
        return ""
    _networks(table.TRUSTED_PROXIES, text)
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
            raise SettingsError(table.ALERT_TOPICS, message)
    return topics


def _check_exports(store: StoreLocation, export_to: str | None) -> bool:
    """Whether usage can be exported before it is deleted; raises if not."""
    if isinstance(store, DynamoDbLocation):
        message = (
            "DynamoDB deletes expired items by itself; docs/deploy.md says how Streams and "
            "exports to S3 keep them"
        )
        raise SettingsError(table.EXPORT_BEFORE_DELETE, message)
    if not export_to:
        raise SettingsError(
            table.EXPORT_BEFORE_DELETE, f"set {table.EXPORT_TO} too, or nothing is exported"
        )
    return True
