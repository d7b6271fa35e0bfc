"""Where exports go: what a folder and a bucket both offer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pricekeeper.export.files import WrittenFile
from pricekeeper.export.manifest import FileEntry


class Destination(Protocol):
    """Files under paths. A file is there as a whole, or it is not there."""

    @property
    def scratch(self) -> Path:
        """A folder for files that are not finished; it ends with this object."""
        ...

    async def put_file(self, path: str, written: WrittenFile) -> None:
        """Put a file of the scratch folder there, in place of what was there."""
        ...

    async def put_bytes(self, path: str, content: bytes) -> None:
        """Put these bytes there, in place of what was there."""
        ...

    async def read(self, path: str) -> bytes | None:
        """What is there; ``None`` if nothing is."""
        ...

    async def has(self, file: FileEntry) -> bool:
        """Whether exactly that file is there."""
        ...

    async def remove(self, path: str) -> None:
        """Remove what is there, if anything is."""
        ...

    async def close(self) -> None:
        """Remove the scratch folder, and close whatever is open."""
        ...
