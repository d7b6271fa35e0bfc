"""Opens the destination at a location. No other module knows which there are."""

from __future__ import annotations

from pricekeeper.clock import Clock
from pricekeeper.export.destination import Destination
from pricekeeper.export.folder import FolderDestination
from pricekeeper.settings import ExportLocation, FolderLocation


async def open_destination(
    location: ExportLocation, clock: Clock, *, s3_endpoint: str | None = None
) -> Destination:
    """Open it. What S3 needs is imported here, since few processes do."""
    if isinstance(location, FolderLocation):
        return FolderDestination(location.path)
    from pricekeeper.export.s3 import S3Destination  # noqa: PLC0415

    return await S3Destination.open(location, clock, endpoint=s3_endpoint)
