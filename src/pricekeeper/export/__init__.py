"""Usage in files: the records and totals of a day, by organisation, in a folder or in S3.

`Exporter` writes a day; `DailyExports` does it for every day, once it can no longer change.
"""

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
