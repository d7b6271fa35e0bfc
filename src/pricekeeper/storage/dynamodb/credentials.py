"""Finds AWS credentials and DynamoDB's endpoint, and signs requests.

botocore searches like every AWS tool. It may use the network, so it runs in a thread, at opening
and when credentials expire. The signer has what one service with one URL needs of Signature Version
4.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pricekeeper.aws import SETUP
from pricekeeper.clock import Clock
from pricekeeper.errors import StoreMisconfiguredError, StoreUnavailableError
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.sigv4 import ALGORITHM, AwsKeys, key_of_day, stamp_of

if TYPE_CHECKING:
    from botocore.session import Session

_LOOK_AGAIN_MS: Final = 10_000
"""How long the frozen copy is used before a look at its expiry; botocore renews fifteen minutes
early.
"""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class CredentialSource:
    """The current credentials, renewed off the event loop before they expire."""

    def __init__(self, found: Any, clock: Clock) -> None:
        self._found = found
        self._clock = clock
        self._frozen: AwsKeys | None = None
        self._look_again_ms = 0
        self._renewing = asyncio.Lock()

    def current(self) -> AwsKeys | None:
        if self._frozen is not None and self._clock.monotonic_ms() >= self._look_again_ms:
            refresh_needed = getattr(self._found, "refresh_needed", None)  # not if they never end
            if refresh_needed is not None and refresh_needed():
                return None
            self._look_again_ms = self._clock.monotonic_ms() + _LOOK_AGAIN_MS
        return self._frozen

    def discard(self, refused: AwsKeys) -> None:
        """Drop keys that AWS refuses, so that the next request searches again."""
        if self._frozen is refused:  # and not if another caller has renewed it since
            self._frozen = self._found = None

    async def renew(self) -> AwsKeys:
        """Renew the keys; simultaneous callers share the result."""
        async with self._renewing:
            if (renewed := self.current()) is not None:
                return renewed
            if self._found is None:
                self._found = await asyncio.to_thread(_find_credentials)
            self._frozen = await asyncio.to_thread(_freeze, self._found)
            # Also if botocore kept the old ones because a renewal failed while they still work.
            self._look_again_ms = self._clock.monotonic_ms() + _LOOK_AGAIN_MS
            return self._frozen


@dataclass(frozen=True, slots=True)
class AwsAccess:
    """How to reach DynamoDB in one region."""

    region: str
    endpoint: str
    credentials: CredentialSource
    ca_bundle: str | None = None

    @property
    def host(self) -> str:
        """The signed Host header: without the usual port."""
        parts = urlsplit(self.endpoint)
        name = parts.hostname or ""
        host = f"[{name}]" if ":" in name else name
        if parts.port is None or parts.port == _DEFAULT_PORTS[parts.scheme]:
            return host
        return f"{host}:{parts.port}"

    @property
    def trust(self) -> ssl.SSLContext | bool:
        """The machine's certificates, or the AWS configuration's; none without TLS."""
        if self.ca_bundle is None or not self.endpoint.startswith("https:"):
            return True
        return ssl.create_default_context(cafile=self.ca_bundle)


async def find_access(location: DynamoDbLocation, clock: Clock) -> AwsAccess:
    """Find credentials and, unless the location names it, the endpoint."""
    found, url, ca_bundle = await asyncio.to_thread(_find, location)
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query:
        raise StoreMisconfiguredError(f"the endpoint of DynamoDB, {url}, must have no path")
    source = CredentialSource(found, clock)
    await source.renew()
    return AwsAccess(location.region, url.rstrip("/"), source, ca_bundle)


def _find(location: DynamoDbLocation) -> tuple[Any, str, str | None]:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    session, region = _session(), location.region
    found = _find_credentials(session)
    ca_bundle = session.get_config_variable("ca_bundle")
    if location.endpoint is not None:
        return found, location.endpoint, ca_bundle
    try:
        client = session.create_client("dynamodb", region_name=region)
    except (BotoCoreError, ValueError) as error:
        raise StoreMisconfiguredError(f"no endpoint of DynamoDB in {region}: {error}") from error
    return found, client.meta.endpoint_url, ca_bundle


def _session() -> Session:
    from botocore.session import Session  # noqa: PLC0415

    return Session()


def _find_credentials(session: Session | None = None) -> Any:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    try:
        found = (session or _session()).get_credentials()
    except BotoCoreError as error:
        raise StoreMisconfiguredError(
            f"AWS credentials could not be read: {type(error).__name__}"
        ) from error
    if found is None:
        raise StoreMisconfiguredError(SETUP["NoCredentialsError"])
    return found


def _freeze(found: Any) -> AwsKeys:
    """A consistent copy of the keys; uses the network if botocore finds them too old."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        frozen = found.get_frozen_credentials()
    except (BotoCoreError, ClientError) as error:
        # Not "misconfigured": the metadata service or STS may answer the next call.
        raise StoreUnavailableError(
            f"AWS credentials could not be renewed: {type(error).__name__}"
        ) from error
    return AwsKeys(frozen.access_key, frozen.secret_key, frozen.token or None)


CONTENT_TYPE: Final = "application/x-amz-json-1.0"

_SERVICE: Final = "dynamodb"
_SIGNED: Final = "content-type;host;x-amz-date;x-amz-target"
_SIGNED_SESSION: Final = "content-type;host;x-amz-date;x-amz-security-token;x-amz-target"


class Signer:
    """Makes the headers of requests to one host in one region."""

    __slots__ = ("_host", "_region", "_second", "_stamp")

    def __init__(self, region: str, host: str) -> None:
        self._region = region
        self._host = host
        self._second = -1
        self._stamp = ""

    @property
    def constant_headers(self) -> dict[str, str]:
        return {"Host": self._host, "Accept-Encoding": "identity", "Content-Type": CONTENT_TYPE}

    def headers(
        self, credentials: AwsKeys, target: str, body: bytes, now_epoch: int
    ) -> dict[str, str]:
        if now_epoch != self._second:
            self._stamp = stamp_of(now_epoch)
            self._second = now_epoch
        stamp = self._stamp
        day = stamp[:8]
        token = credentials.session_token
        signed = _SIGNED_SESSION if token else _SIGNED
        token_line = f"x-amz-security-token:{token}\n" if token else ""
        canonical = (
            f"POST\n/\n\ncontent-type:{CONTENT_TYPE}\nhost:{self._host}\nx-amz-date:{stamp}\n"
            f"{token_line}x-amz-target:{target}\n\n{signed}\n{sha256(body).hexdigest()}"
        )
        scope = f"{day}/{self._region}/{_SERVICE}/aws4_request"
        to_sign = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        key = key_of_day(credentials.secret_key, day, self._region, _SERVICE)
        headers = {
            "X-Amz-Target": target,
            "X-Amz-Date": stamp,
            "Authorization": (
                f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
                f"SignedHeaders={signed}, Signature={key.sign(to_sign.encode())}"
            ),
        }
        if token:
            headers["X-Amz-Security-Token"] = token
        return headers
