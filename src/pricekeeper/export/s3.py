"""Exports in S3, or in what speaks its language: PUT, GET, HEAD and DELETE of single objects.

An object is there as a whole or not at all, so files need no other name before. Each carries its
sha256, which S3 checks while it arrives (the signature covers it) and tells again later. Every
request may be sent again: the same object twice is the same object.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import quote, urlsplit

import aiohttp
import yarl

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import ExportError, StoreMisconfiguredError, StoreUnavailableError
from pricekeeper.export.files import WrittenFile
from pricekeeper.export.folder import ScratchFolder
from pricekeeper.export.manifest import FileEntry
from pricekeeper.settings import S3Location
from pricekeeper.sigv4 import signed_headers
from pricekeeper.storage.dynamodb.credentials import CredentialSource

ATTEMPTS_MAX: Final = 5
_BACKOFF: Final = Backoff(200, 5_000)
CONNECT_SECS: Final = 5
SILENCE_SECS: Final = 60
"""How long nothing may arrive; how long a large file takes depends on its size."""
BYTES_MAX: Final = 5 * 2**30
"""What one PUT may carry."""
_SHA256: Final = "x-amz-meta-sha256"
_NOTHING: Final = sha256(b"").hexdigest()
_OK: Final = range(200, 300)
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = range(500, 600)
_TEXT_MAX: Final = 300
_AUTO_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class _S3Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes


class S3Destination:
    """Objects of one bucket under one prefix."""

    def __init__(
        self, location: S3Location, clock: Clock, *, endpoint: str, region: str, is_aws: bool
    ) -> None:
        self._location = location
        self._clock = clock
        self._region = region
        self._credentials = CredentialSource(None, clock)
        self._random = random.Random()  # noqa: S311  # spreads attempts, no secret
        parts = urlsplit(endpoint)
        in_host = is_aws and "." not in location.bucket  # a dot is in no wildcard certificate
        self._host = f"{location.bucket}.{parts.netloc}" if in_host else parts.netloc
        self._origin = f"{parts.scheme}://{self._host}"
        self._root = [
            part for part in ("" if in_host else location.bucket, location.prefix) if part
        ]
        self._scratch = ScratchFolder(Path(tempfile.gettempdir()))
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTO_HEADERS,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECS, sock_read=SILENCE_SECS
            ),
        )

    @classmethod
    async def open(cls, location: S3Location, clock: Clock, *, endpoint: str | None = None) -> Self:
        """Find region and endpoint the way every AWS tool does, unless an endpoint is said."""
        region, found = await asyncio.to_thread(_find, endpoint)
        return cls(location, clock, endpoint=found, region=region, is_aws=endpoint is None)

    @property
    def scratch(self) -> Path:
        """Where files are written before they are sent."""
        return self._scratch.path

    async def put_file(self, path: str, written: WrittenFile) -> None:
        """Send a file of the scratch folder, and remove it there."""
        if written.bytes > BYTES_MAX:
            raise ExportError(f"{path} has {written.bytes} bytes, and one PUT carries {BYTES_MAX}")
        await self._put(path, written.path, written.bytes, written.sha256)
        written.path.unlink()

    async def put_bytes(self, path: str, content: bytes) -> None:
        """Send these bytes."""
        await self._put(path, content, len(content), sha256(content).hexdigest())

    async def read(self, path: str) -> bytes | None:
        """What is there."""
        answer = await self._call("GET", path)
        return None if answer.status == _NOT_FOUND else answer.content

    async def has(self, file: FileEntry) -> bool:
        """Whether exactly that file is there, as S3 knows it."""
        answer = await self._call("HEAD", file.path)
        found = (answer.headers.get(_SHA256), answer.headers.get("Content-Length"))
        return answer.status != _NOT_FOUND and found == (file.sha256, str(file.bytes))

    async def remove(self, path: str) -> None:
        """Remove what is there."""
        await self._call("DELETE", path)

    async def close(self) -> None:
        """Close the connections, and remove the scratch folder."""
        await self._session.close()
        self._scratch.close()

    async def _put(self, path: str, body: Path | bytes, size: int, digest: str) -> None:
        headers = {_SHA256: digest, "content-length": str(size)}
        await self._call("PUT", path, body, digest, headers)

    async def _call(
        self,
        method: str,
        path: str,
        body: Path | bytes = b"",
        digest: str = _NOTHING,
        headers: Mapping[str, str] | None = None,
    ) -> _S3Answer:
        """Send a request, again if need be; an answer is a success, or that nothing is there."""
        url_path = encoded_path(*self._root, path)
        problem = ""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                answer = await self._send(method, url_path, body, digest, headers or {})
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            except StoreUnavailableError as error:  # credentials could not be renewed
                problem = str(error)
            else:
                if answer.status in _OK or (answer.status == _NOT_FOUND and method != "PUT"):
                    return answer
                if answer.status not in _SERVER_ERRORS and answer.status != _TOO_MANY:
                    raise self._refused(method, path, answer)
                problem = f"HTTP {answer.status}"
            if attempt < ATTEMPTS_MAX:
                await self._clock.sleep_ms(_BACKOFF.pause_ms(attempt, self._random.randrange))
        raise ExportError(f"{method} of {path} at {self._origin} failed: {problem}")

    async def _send(
        self, method: str, path: str, body: Path | bytes, digest: str, headers: Mapping[str, str]
    ) -> _S3Answer:
        try:
            keys = self._credentials.current() or await self._credentials.renew()
        except StoreMisconfiguredError as error:
            raise ExportError(str(error)) from error
        sent = signed_headers(
            keys,
            service="s3",
            method=method,
            host=self._host,
            path=path,
            region=self._region,
            content_sha256=digest,
            now_epoch=self._clock.now_ms() // 1000,
            headers=headers,
        )
        url = yarl.URL(self._origin + path, encoded=True)
        data = body.open("rb") if isinstance(body, Path) else body
        try:
            async with self._session.request(
                method, url, data=data or None, headers=sent, allow_redirects=False
            ) as response:
                return _S3Answer(response.status, response.headers, await response.read())
        finally:
            if not isinstance(data, bytes):
                data.close()

    def _refused(self, method: str, path: str, answer: _S3Answer) -> ExportError:
        text = " ".join(answer.content[:_TEXT_MAX].decode("utf-8", "replace").split())
        return ExportError(
            f"{method} of {path} in {self._location.bucket} at {self._origin} was refused: "
            f"HTTP {answer.status} {text}"
        )


def _find(endpoint: str | None) -> tuple[str, str]:
    """The region, and the endpoint if none is said, by botocore."""
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - slow to import
    from botocore.session import Session  # noqa: PLC0415

    session = Session()
    try:
        region = session.get_config_variable("region") or "us-east-1"
        if endpoint is not None:
            return region, endpoint
        client = session.create_client("s3", region_name=region)
    except (BotoCoreError, ValueError) as error:
        raise ExportError(f"no S3 endpoint: {error}") from error
    return region, client.meta.endpoint_url


def encoded_path(*parts: str) -> str:
    """The path of an object as it is sent and signed: S3 wants it encoded once."""
    return "/" + quote("/".join(parts), safe="/-_.~")
