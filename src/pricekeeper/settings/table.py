"""The table of settings, and warnings about misspelt names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

STORE: Final = "PRICEKEEPER_STORE"
CONFIG: Final = "PRICEKEEPER_CONFIG"
DATA_DIR: Final = "PRICEKEEPER_DATA_DIR"
SIGNING_KEYS: Final = "PRICEKEEPER_SIGNING_KEYS"
PEPPER: Final = "PRICEKEEPER_PEPPER"
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
EVENT_LISTENERS: Final = "PRICEKEEPER_EVENT_LISTENERS_MAX"
USAGE_LINGER: Final = "PRICEKEEPER_USAGE_LINGER_MS"
REQUEST_DEADLINE: Final = "PRICEKEEPER_REQUEST_DEADLINE_SECS"
RETENTION: Final = "PRICEKEEPER_RETENTION_DAYS"
AUDIT_RETENTION: Final = "PRICEKEEPER_AUDIT_RETENTION_DAYS"
EXPORT_TO: Final = "PRICEKEEPER_EXPORT_TO"
EXPORT_BEFORE_DELETE: Final = "PRICEKEEPER_EXPORT_BEFORE_DELETE"
S3_ENDPOINT: Final = "PRICEKEEPER_S3_ENDPOINT"
BEDROCK_UPSTREAM: Final = "PRICEKEEPER_BEDROCK_UPSTREAM"
BEDROCK_REGION: Final = "PRICEKEEPER_BEDROCK_REGION"
GATEWAY_BODY: Final = "PRICEKEEPER_GATEWAY_BODY_MB_MAX"
SERVE_ONLY: Final = "PRICEKEEPER_SERVE_ONLY"
ALERT_NETWORKS: Final = "PRICEKEEPER_ALERT_NETWORKS"
ALERT_TOPICS: Final = "PRICEKEEPER_ALERT_TOPICS"
ORG_ADMINS_SET_BUDGETS: Final = "PRICEKEEPER_ORG_ADMINS_SET_BUDGETS"
SETTINGS_FILE: Final = "PRICEKEEPER_SETTINGS"
URL: Final = "PRICEKEEPER_URL"
ADMIN_KEY: Final = "PRICEKEEPER_ADMIN_KEY"
CLIENT_ID: Final = "PRICEKEEPER_CLIENT_ID"
CLIENT_SECRET: Final = "PRICEKEEPER_CLIENT_SECRET"  # noqa: S105 - its name
CLIENT_DEADLINE: Final = "PRICEKEEPER_DEADLINE_MS"
CLIENT_ON_UNAVAILABLE: Final = "PRICEKEEPER_ON_UNAVAILABLE"
CLIENT_ALLOWANCE: Final = "PRICEKEEPER_ALLOWANCE_USD_MICROS"
CLIENT_SPOOL: Final = "PRICEKEEPER_SPOOL_DIR"
CLIENT_MAX_OUTPUT: Final = "PRICEKEEPER_MAX_OUTPUT_TOKENS"
CLIENT_UNAVAILABLE_MODELS: Final = "PRICEKEEPER_UNAVAILABLE_MODELS"
RETRIEVAL_TOKEN: Final = "PRICEKEEPER_RETRIEVAL_TOKEN"  # noqa: S105 - its name

NO_PROXIES: Final = "none"
STORE_DEFAULT: Final = "sqlite:///data/pricekeeper.db"
TOKEN_LENGTH_MIN: Final = 16
CONNECTIONS_DEFAULT: Final = 4_096
EVENT_LISTENERS_DEFAULT: Final = 256
RETENTION_DAYS_DEFAULT: Final = 90
AUDIT_RETENTION_DAYS_DEFAULT: Final = 400


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, as the documentation shows it."""

    name: str
    default: str
    meaning: str


SETTINGS: Final = (
    Setting(STORE, STORE_DEFAULT, "where the data lives"),
    Setting(CONFIG, "built in", "the deployment file with model labels and prices"),
    Setting(DATA_DIR, "data", "signing keys and pepper, unless kept elsewhere; keep it private"),
    Setting(SIGNING_KEYS, "data folder", "file:PATH, aws:SECRET, or the signing keys themselves"),
    Setting(PEPPER, "data folder", "file:PATH, aws:SECRET, or the pepper itself"),
    Setting(PROVISIONING_KEY, "", "the deployment's own key; 128 bits: openssl rand -hex 32"),
    Setting(API_RATE_LIMITS, "on", "off, or changes such as token=120,usage=600 (a minute)"),
    Setting(
        AGGREGATOR_INTERVAL,
        "60",
        "seconds between aggregator runs, else the deployment file's; 0: off here",
    ),
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
    Setting(
        EVENT_LISTENERS,
        str(EVENT_LISTENERS_DEFAULT),
        "streams of events that one worker may have open; 0 turns events off",
    ),
    Setting(REQUEST_DEADLINE, "5", "seconds until a request is answered with 503; 1 to 60"),
    Setting(USAGE_LINGER, "0", "milliseconds that a usage record waits to share a write; 0 to 100"),
    Setting(RETENTION, str(RETENTION_DAYS_DEFAULT), "days that usage is kept; 30 to 3650"),
    Setting(
        AUDIT_RETENTION,
        str(AUDIT_RETENTION_DAYS_DEFAULT),
        "days that entries of the audit trail are kept; 30 to 3650",
    ),
    Setting(EXPORT_TO, "", "FOLDER or s3://BUCKET/PREFIX: every day of usage is exported there"),
    Setting(EXPORT_BEFORE_DELETE, "0", "1: usage that was not exported is kept (SQLite)"),
    Setting(S3_ENDPOINT, "", "the URL of an S3-compatible server; else AWS"),
    Setting(BEDROCK_REGION, "", "the region of Bedrock that /bedrock is a gateway to"),
    Setting(BEDROCK_UPSTREAM, "", "the URL of the gateway's upstream, if it is not AWS's own"),
    Setting(GATEWAY_BODY, "25", "the largest body of a call through the gateway, in megabytes"),
    Setting(SERVE_ONLY, "", "api or gateway, to serve one part alone"),
    Setting(
        ALERT_NETWORKS,
        "",
        "networks that alerts may go to although they are not public, with commas",
    ),
    Setting(ALERT_TOPICS, "", "ARNs of the SNS topics that alert channels may name, with commas"),
    Setting(
        ORG_ADMINS_SET_BUDGETS,
        "0",
        "1: keys of an organisation raise its own hard budgets and quotas",
    ),
    Setting(SETTINGS_FILE, "", "a file of NAME=value lines; the environment goes first"),
)
IN_A_FILE: Final = frozenset(one.name for one in SETTINGS) - {SETTINGS_FILE}
CLIENT_SETTINGS: Final = (
    Setting(URL, "", "where the service is, such as https://keeper.example.com"),
    Setting(ADMIN_KEY, "", "for commands: an administrator's key, instead of the deployment's"),
    Setting(CLIENT_ID, "", "who is calling: org-ORG-app-APP, or org-ORG"),
    Setting(CLIENT_SECRET, "", "its secret"),
    Setting(CLIENT_DEADLINE, "2000", "how long a client waits for the service, in milliseconds"),
    Setting(
        CLIENT_ON_UNAVAILABLE, "deny", "deny, allow or allow-within, if the service is not there"
    ),
    Setting(
        CLIENT_ALLOWANCE, "", "for allow-within: what an app may spend in an hour on a machine"
    ),
    Setting(CLIENT_SPOOL, "state folder", "where usage is kept until it is reported; or memory"),
    Setting(CLIENT_MAX_OUTPUT, "4096", "the longest answer of a call that does not say one"),
    Setting(
        CLIENT_UNAVAILABLE_MODELS,
        "",
        "for allow: what auto and labels are until the service was reached once, auto=ID,LABEL=ID",
    ),
    Setting(RETRIEVAL_TOKEN, "", "for pricekeeper credentials claim: what to claim a secret with"),
)
"""Settings that the service ignores."""

PREFIX: Final = "PRICEKEEPER_"
_OF_DEVELOPMENT: Final = frozenset({f"{PREFIX}REQUIRE_ENGINE", f"{PREFIX}TESTS_OFFLINE"})
_OF_KUBERNETES: Final = re.compile(
    rf"{PREFIX}(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""Kubernetes sets them in every pod if a service is called pricekeeper."""


def unknown_settings(environment: Mapping[str, str]) -> list[str]:
    """Describe variables that look like misspelt settings, without their values."""
    known = {one.name for one in (*SETTINGS, *CLIENT_SETTINGS)} | _OF_DEVELOPMENT
    return [
        f"{name} is not a setting and has no effect{suggest_setting(name)}"
        for name, value in sorted(environment.items())
        if name not in known and _looks_like_a_setting(name, value)
    ]


def _looks_like_a_setting(name: str, value: str) -> bool:
    if _OF_KUBERNETES.fullmatch(name):
        return name == f"{PREFIX}PORT" and "://" not in value  # Kubernetes' own is a URL
    upper = name.upper()
    return upper.startswith(PREFIX) or (upper.startswith("PRICE") and bool(suggest_setting(name)))


def suggest_setting(name: str) -> str:
    """Suggest a similar setting, as the end of a sentence, or return ""."""
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    known, upper = [one.name for one in (*SETTINGS, *CLIENT_SETTINGS)], name.upper()
    if not upper.startswith(PREFIX):
        found = get_close_matches(upper, known, n=1, cutoff=0.9)
    else:  # the common prefix does not count as similar
        ends = [one.removeprefix(PREFIX) for one in known]
        found = [PREFIX + end for end in get_close_matches(upper.removeprefix(PREFIX), ends, n=1)]
    return f"; do you mean {found[0]}?" if found else ""
