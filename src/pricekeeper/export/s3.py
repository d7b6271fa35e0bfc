"""Exports to S3 or a server with its API.

An object appears whole or not at all, and requests may be repeated. S3 checks its sha256, which
`has` compares later.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from pricekeeper.aws import AwsCallError, AwsClient
from pricekeeper.clock import Clock
from pricekeeper.errors import ExportError
from pricekeeper.export.files import WrittenFile
from pricekeeper.export.folder import ScratchFolder
from pricekeeper.export.manifest import FileEntry
from pricekeeper.settings import S3Location

ATTEMPTS_MAX: Final = 5
SILENCE_SECS: Final = 60
"""Until the next byte; a file's time depends on its size."""
BYTES_MAX: Final = 5 * 2**30
_SHA256: Final = "sha256"
_NOT_FOUND: Final = 404
_NEXT_STEPS: Final = {
    "AccessDenied": "; grant s3:PutObject, s3:GetObject and s3:DeleteObject on the prefix",
    "NoSuchBucket": "; create the bucket, or name another one",
}
_Read = TypeVar("_Read")


class S3Destination:
    """Objects of one bucket under one prefix."""

    def __init__(self, location: S3Location, clock: Clock, *, endpoint: str | None = None) -> None:
        self._bucket = location.bucket
        self._folder = f"{location.prefix}/" if location.prefix else ""
        self._client = AwsClient(
            "s3",
            clock,
            attempts_max=ATTEMPTS_MAX,
            silence_secs=SILENCE_SECS,
            endpoint=endpoint,
            # Every S3 server checks the signed hash; few know AWS's newer checksums.
            s3={"payload_signing_enabled": True},
        )
        self._scratch = ScratchFolder(Path(tempfile.gettempdir()))

    @property
    def scratch(self) -> Path:
        return self._scratch.path

    async def put_file(self, path: str, written: WrittenFile) -> None:
        if written.bytes > BYTES_MAX:
            raise ExportError(f"{path} has {written.bytes} bytes, and one PUT carries {BYTES_MAX}")
        with written.path.open("rb") as body:  # a cancellation closes it, which ends the upload
            await self._put(path, body, written.sha256)
        written.path.unlink()

    async def put_bytes(self, path: str, content: bytes) -> None:
        await self._put(path, content, sha256(content).hexdigest())

    async def read(self, path: str) -> bytes | None:
        return await self._call("get_object", path, lambda reply: bytes(reply["Body"].read()))

    async def has(self, file: FileEntry) -> bool:
        found = await self._call(
            "head_object",
            file.path,
            lambda reply: (reply["Metadata"].get(_SHA256), reply.get("ContentLength")),
        )
        return found == (file.sha256, file.bytes)

    async def remove(self, path: str) -> None:
        await self._call("delete_object", path, dict)

    async def close(self) -> None:
        self._client.close()
        self._scratch.close()

    async def _put(self, path: str, body: BinaryIO | bytes, digest: str) -> None:
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        await self._call(
            "put_object",
            path,
            dict,
            Body=body,
            ChecksumSHA256=checksum,
            Metadata={_SHA256: digest},
        )

    async def _call(
        self,
        operation: str,
        path: str,
        read: Callable[[dict[str, Any]], _Read],
        **parameters: Any,
    ) -> _Read | None:
        """Call an operation; ``None`` if the object does not exist."""
        try:
            return await self._client.call(
                operation, read, Bucket=self._bucket, Key=f"{self._folder}{path}", **parameters
            )
        except AwsCallError as error:
            if error.status == _NOT_FOUND and operation != "put_object":
                return None
            next_step = _NEXT_STEPS.get(error.code, "")
            raise ExportError(
                f"{operation} of {path} in the bucket {self._bucket} failed: {error}{next_step}"
            ) from error
