"""Usage in files: a day's records and totals by organisation, in a folder or in S3."""

from pricekeeper.export.daily import DailyExports, ExportState
from pricekeeper.export.destination import open_destination
from pricekeeper.export.manifest import FileFormat, Manifest
from pricekeeper.export.service import Exporter, Progress

__all__ = [
    "DailyExports",
    "ExportState",
    "Exporter",
    "FileFormat",
    "Manifest",
    "Progress",
    "open_destination",
]
