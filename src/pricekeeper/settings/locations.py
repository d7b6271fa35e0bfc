"""Parses locations in settings: of the store, prices, exports, secrets, and listeners."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pricekeeper.errors import SettingsError
from pricekeeper.settings import table
from pricekeeper.values import parse_whole

MEMORY: Final = ":memory:"
PREFIX_DEFAULT: Final = "pricekeeper-"
LOOPBACK: Final = "127.0.0.1"

_PORT_MAX: Final = 65_535
_STORE_EXAMPLES: Final = (
    "use sqlite:///path/to/file.db, sqlite://:memory: "
    "or dynamodb://REGION?prefix=NAME-&endpoint=http://127.0.0.1:8000"
)
_SOURCE_EXAMPLES: Final = "use genai-prices, aws:REGION or aws:REGION:FILE_OR_URL[,FILE_OR_URL...]"
_EXPORT_EXAMPLES: Final = "use a folder, or s3://BUCKET/PREFIX"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX_OF_OBJECTS: Final = re.compile(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*")
_PREFIX_LENGTH_MAX: Final = 512
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{0,100}")


@dataclass(frozen=True, slots=True)
class SqliteLocation:
    """An embedded store: a file, or `MEMORY`."""

    path: str


@dataclass(frozen=True, slots=True)
class DynamoDbLocation:
    """Tables of one region with a name prefix."""

    region: str
    prefix: str = PREFIX_DEFAULT
    endpoint: str | None = None


StoreLocation: TypeAlias = SqliteLocation | DynamoDbLocation


@dataclass(frozen=True, slots=True)
class GenaiPackage:
    """Prices from the package ``genai-prices``."""


@dataclass(frozen=True, slots=True)
class AwsPriceLocation:
    """Prices of a region from AWS's offer files, or the named files or URLs."""

    region: str
    sources: tuple[str, ...] = ()


PriceLocation: TypeAlias = GenaiPackage | AwsPriceLocation


@dataclass(frozen=True, slots=True)
class FolderLocation:
    """A folder."""

    path: str


@dataclass(frozen=True, slots=True)
class S3Location:
    """Objects of a bucket, under a prefix if there is one."""

    bucket: str
    prefix: str = ""


ExportLocation: TypeAlias = FolderLocation | S3Location


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen at."""

    host: str
    port: int


def parse_store_location(url: str) -> StoreLocation:
    """Parse ``sqlite:///relative``, ``sqlite:////absolute``, ``sqlite://:memory:``, ``dynamodb://``."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":
        return _sqlite_location(rest)
    if separator and scheme == "dynamodb":
        return _dynamodb_location(url)
    raise SettingsError(table.STORE, f"{url!r} is not a store; {_STORE_EXAMPLES}")


def _sqlite_location(rest: str) -> SqliteLocation:
    if rest == MEMORY:
        return SqliteLocation(MEMORY)
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or path in ("", MEMORY) or "?" in rest or "\0" in path:
        raise SettingsError(table.STORE, f"'sqlite://{rest}' names no file; {_STORE_EXAMPLES}")
    return SqliteLocation(path)


def _dynamodb_location(url: str) -> DynamoDbLocation:
    parts = _split(table.STORE, url, f"; {_STORE_EXAMPLES}")
    region = parts.netloc
    if not _REGION.fullmatch(region) or parts.path not in ("", "/"):
        raise SettingsError(table.STORE, f"{region!r} is not an AWS region; {_STORE_EXAMPLES}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - {"prefix", "endpoint"}):
        raise SettingsError(table.STORE, f"unknown option {unknown[0]!r}; {_STORE_EXAMPLES}")
    prefix = options.get("prefix", PREFIX_DEFAULT)
    if not _PREFIX.fullmatch(prefix):
        raise SettingsError(table.STORE, "prefix may have up to 100 of A-Z a-z 0-9 _ . -")
    endpoint = options.get("endpoint")
    if endpoint is not None:
        if not _is_http(_split(table.STORE, endpoint, f"; {_STORE_EXAMPLES}")):
            raise SettingsError(table.STORE, f"endpoint {endpoint!r} is not an http(s) URL")
        endpoint = endpoint.rstrip("/")
    return DynamoDbLocation(region, prefix, endpoint)


def parse_price_location(text: str) -> PriceLocation:
    """Parse ``genai-prices``, ``aws:REGION`` or ``aws:REGION:FILE_OR_URL[,FILE_OR_URL...]``."""
    if text == "genai-prices":
        return GenaiPackage()
    scheme, _, rest = text.partition(":")
    region, named, sources = rest.partition(":")
    if scheme != "aws" or not rest:
        raise SettingsError(
            table.PRICE_SOURCE, f"{text!r} is no source of prices; {_SOURCE_EXAMPLES}"
        )
    if not _REGION.fullmatch(region):
        raise SettingsError(
            table.PRICE_SOURCE, f"{region!r} is not an AWS region; {_SOURCE_EXAMPLES}"
        )
    listed = tuple(sources.split(",")) if named else ()
    for source in listed:
        if not source or ("://" in source and not source.startswith("https://")):
            message = f"{source!r} is no file and no https URL; {_SOURCE_EXAMPLES}"
            raise SettingsError(table.PRICE_SOURCE, message)
    return AwsPriceLocation(region, listed)


def parse_export_location(text: str, setting: str = table.EXPORT_TO) -> ExportLocation:
    """Parse ``FOLDER`` or ``s3://BUCKET/PREFIX``."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text or "\0" in text:
            raise SettingsError(setting, f"{text!r} names no folder; {_EXPORT_EXAMPLES}")
        return FolderLocation(text)
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if scheme != "s3" or not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise SettingsError(setting, f"{text!r} names no bucket; {_EXPORT_EXAMPLES}")
    parts = prefix.split("/")
    if prefix and (
        len(prefix) > _PREFIX_LENGTH_MAX
        or not _PREFIX_OF_OBJECTS.fullmatch(prefix)
        or "." in parts
        or ".." in parts
    ):
        message = f"a prefix has up to {_PREFIX_LENGTH_MAX} of A-Z a-z 0-9 _ . = - /"
        raise SettingsError(setting, f"{text!r}: {message}; {_EXPORT_EXAMPLES}")
    return S3Location(bucket, prefix)


def parse_s3_endpoint(text: str | None) -> str | None:
    """Parse ``http://HOST:PORT`` or ``https://...``, without a path."""
    if not text:
        return None
    parts = _split(table.S3_ENDPOINT, text)
    if (
        not _is_http(parts)
        or parts.username is not None
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
    ):
        raise SettingsError(
            table.S3_ENDPOINT, f"{text!r} is no http(s) URL of a server, without a path"
        )
    return text.rstrip("/")


@dataclass(frozen=True, slots=True)
class BedrockLocation:
    """The gateway's upstream."""

    url: str
    region: str
    signs: bool
    """False for a stand-in, which needs no credentials."""


def parse_bedrock_location(upstream: str | None, region: str | None) -> BedrockLocation | None:
    """Parse the named upstream, or AWS's own in the region; ``None`` without both."""
    if region and not _REGION.fullmatch(region):
        raise SettingsError(table.BEDROCK_REGION, f"{region!r} is no region such as us-east-1")
    if not upstream:
        if not region:
            return None
        url = f"https://bedrock-runtime.{region}.amazonaws.com"
        return BedrockLocation(url, region, signs=True)
    parts = _split(table.BEDROCK_UPSTREAM, upstream)
    if parts.username is not None:  # it is not shown: a password may be in it
        raise SettingsError(table.BEDROCK_UPSTREAM, "has credentials in it; give them as AWS's own")
    if not _is_http(parts) or parts.query or parts.fragment:
        raise SettingsError(table.BEDROCK_UPSTREAM, f"{upstream!r} is no http(s) URL")
    return BedrockLocation(
        upstream.rstrip("/"), region or "us-east-1", signs=parts.scheme == "https" or bool(region)
    )


def _is_http(parts: SplitResult) -> bool:
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _split(setting: str, url: str, examples: str = "") -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # read to have it checked
    except ValueError as error:
        raise SettingsError(setting, f"{url!r} is not a URL ({error}){examples}") from error
    return parts


def parse_listen_address(text: str | None) -> ListenAddress | None:
    """Parse ``PORT`` (on the loopback), ``ADDRESS:PORT`` or ``[ADDRESS]:PORT``."""
    if not text:
        return None
    host, named, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    number = parse_whole(port) or 0
    if not 0 < number <= _PORT_MAX:
        raise SettingsError(
            table.METRICS_PORT, f"{text!r}: want PORT or ADDRESS:PORT, such as 9464"
        )
    if named and (not bare or (":" in bare and bare == host)):
        raise SettingsError(table.METRICS_PORT, f"{text!r}: want ADDRESS:PORT, such as [::1]:9464")
    return ListenAddress(bare or LOOPBACK, number)


_FILE: Final = "file:"
_AWS: Final = "aws:"
_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:secretsmanager:(?P<region>[a-z]{2}(-[a-z]+)+-\d):\d{12}:secret:[!-~]{1,512}"
)
_NAME: Final = re.compile(r"[A-Za-z0-9/_+=.@-]{1,512}")


@dataclass(frozen=True, slots=True)
class GivenSecret:
    """A secret in the setting itself."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "the environment"


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file with the secret, never created here."""

    path: str

    def __str__(self) -> str:
        return f"{_FILE}{self.path}"


@dataclass(frozen=True, slots=True)
class AwsSecret:
    """A secret of AWS Secrets Manager, by name or ARN."""

    secret_id: str
    region: str | None = None

    def __str__(self) -> str:
        return f"{_AWS}{self.secret_id}"


SecretLocation: TypeAlias = GivenSecret | SecretFile | AwsSecret
"""Its text never shows the secret."""


def parse_secret_location(
    setting: str, text: str, region: str | None = None
) -> SecretLocation | None:
    """Parse ``file:PATH``, ``aws:SECRET`` or the secret itself; ``None`` for the data folder."""
    if not text.strip():
        return None
    if text.startswith(_FILE):
        path = text.removeprefix(_FILE)
        if not path or "\0" in path:
            raise SettingsError(setting, "names no file; use file:/path/to/it")
        return SecretFile(path)
    if text.startswith(_AWS):
        return _aws_secret(setting, text.removeprefix(_AWS), region)
    return GivenSecret(text)


def _aws_secret(setting: str, secret_id: str, region: str | None) -> AwsSecret:
    arn = _ARN.fullmatch(secret_id)
    if arn is not None:
        return AwsSecret(secret_id, arn["region"])
    if not _NAME.fullmatch(secret_id):
        raise SettingsError(
            setting,
            f"{secret_id!r} is no secret of Secrets Manager; use aws:NAME or "
            "aws:arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME-SUFFIX",
        )
    return AwsSecret(secret_id, region)
