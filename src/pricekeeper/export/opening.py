"""Opens the destination at a location. No other module knows which there are."""

from __future__ import annotations

from pricekeeper.clock import Clock
from pricekeeper.export.destination import Destination
from pricekeeper.export.folder import FolderDestination
from pricekeeper.settings import ExportLocation, FolderLocation


def open_destination(
    location: ExportLocation, clock: Clock, *, s3_endpoint: str | None = None
) -> Destination:
    """Open it. The module for S3 is imported here, because few processes need it."""
    if isinstance(location, FolderLocation):
        return FolderDestination(location.path)
    from pricekeeper.export.s3 import S3Destination  # noqa: PLC0415

    return S3Destination(location, clock, endpoint=s3_endpoint)
