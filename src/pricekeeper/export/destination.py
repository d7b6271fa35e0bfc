"""The interface of destinations, and the choice between a folder and S3."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pricekeeper.clock import Clock
from pricekeeper.export.files import WrittenFile
from pricekeeper.export.folder import FolderDestination
from pricekeeper.export.manifest import FileEntry
from pricekeeper.export.s3 import S3Destination
from pricekeeper.settings import ExportLocation, FolderLocation


class Destination(Protocol):
    """Files under paths. A file appears whole or not at all."""

    @property
    def scratch(self) -> Path:
        """A folder for unfinished files, removed with this object."""
        ...

    async def put_file(self, path: str, written: WrittenFile) -> None:
        """Move a scratch file to the path; it replaces."""
        ...

    async def put_bytes(self, path: str, content: bytes) -> None:
        """Put these bytes at the path; they replace."""
        ...

    async def read(self, path: str) -> bytes | None:
        """``None`` if it does not exist."""
        ...

    async def has(self, file: FileEntry) -> bool: ...

    async def remove(self, path: str) -> None: ...

    async def close(self) -> None: ...


def open_destination(
    location: ExportLocation, clock: Clock, *, s3_endpoint: str | None = None
) -> Destination:
    """Open a folder, or a prefix of a bucket."""
    if isinstance(location, FolderLocation):
        return FolderDestination(location.path)
    return S3Destination(location, clock, endpoint=s3_endpoint)
