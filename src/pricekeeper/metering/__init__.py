"""Metering: counts usage exactly once, and totals it by day."""

from pricekeeper.days import day_start_ms, next_midnight_ms, org_day
from pricekeeper.metering.admission import GROUP_RECORDS, BatchPlaces
from pricekeeper.metering.aggregation_report import AggregationReport
from pricekeeper.metering.aggregator import Aggregator
from pricekeeper.metering.counters import Account, Counters, Total
from pricekeeper.metering.journal_reading import WindowSpend
from pricekeeper.metering.receipt import Outcome, Receipt, Recorded, Refused
from pricekeeper.metering.service import Metering
from pricekeeper.metering.submission import RecordOnSheet, RecordUnderWay, Submission
from pricekeeper.metering.totals import Readings, total_keys, totals_from
from pricekeeper.metering.usage import Usage, UsageStatus
from pricekeeper.metering.voiding import Voider

__all__ = [
    "GROUP_RECORDS",
    "Account",
    "AggregationReport",
    "Aggregator",
    "BatchPlaces",
    "Counters",
    "Metering",
    "Outcome",
    "Readings",
    "Receipt",
    "RecordOnSheet",
    "RecordUnderWay",
    "Recorded",
    "Refused",
    "Submission",
    "Total",
    "Usage",
    "UsageStatus",
    "Voider",
    "WindowSpend",
    "day_start_ms",
    "next_midnight_ms",
    "org_day",
    "total_keys",
    "totals_from",
]
