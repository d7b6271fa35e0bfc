"""Settings: the environment, read once into a frozen value.

This is the only module that looks at environment variables. A location of a store is
parsed here too, so that a typo is told at start and not at the first request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pricekeeper.errors import SettingsError

STORE: Final = "PRICEKEEPER_STORE"
MEMORY: Final = ":memory:"
STORE_DEFAULT: Final = "sqlite:///data/pricekeeper.db"
PREFIX_DEFAULT: Final = "pricekeeper-"

_STORE_EXAMPLES: Final = (
    "use sqlite:///path/to/file.db, sqlite://:memory: "
    "or dynamodb://REGION?prefix=NAME-&endpoint=http://127.0.0.1:8000"
)
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
class Settings:
    """Everything that can be configured from outside."""

    store: StoreLocation


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that this environment asks for."""
    return Settings(store=parse_store_location(environment.get(STORE, STORE_DEFAULT)))


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


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # read to have it checked
    except ValueError as error:
        raise SettingsError(STORE, f"{url!r} is not a URL ({error}); {_STORE_EXAMPLES}") from error
    return parts
