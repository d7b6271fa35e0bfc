"""Bounds and defaults of request fields, also for the features that enforce them."""

from __future__ import annotations

from typing import Final

PAGE_MAX: Final = 100
AUDIT_FILTER_LENGTH_MAX: Final = 256
AUDIT_CURSOR: Final = (
    "([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})-([1-9][0-9]{0,11})"
)
"""The id of an entry, and its number."""
BATCH_MAX: Final = 100
CAPTURES_MAX: Final = 100
CONSUME_MAX: Final = 16
HOLD_SECS_RANGE: Final = (10, 3_600)
HOLD_SECS_DEFAULT: Final = 900
GRACE_HOURS_MAX: Final = 168
"""How long a secret or key works beside its successor."""

KEY_NAME_LENGTH_MAX: Final = 64
KEY_ORGS_MAX: Final = 100
"""An admin key that covers more covers all."""

CHANNEL_NAME: Final = "^[a-z0-9][a-z0-9-]{0,31}$"
CHANNEL_SECRET_LENGTHS: Final = (16, 256)
RECIPIENTS_MAX: Final = 10
MAILBOX_LENGTH_MAX: Final = 254
URL_LENGTH_MAX: Final = 2_048

NAME_LENGTH_MAX: Final = 200
ORDERING_LENGTH_MAX: Final = 64
QUOTA_USD_MICROS_MAX: Final = 10**15
SHARD_COUNT_DEFAULT: Final = 8
TIGHT_PCT_RANGE: Final = (50, 100)
TIGHT_PCT_DEFAULT: Final = 95
REFRESH_SECS_RANGE: Final = (1, 86_400)
REFRESH_NORMAL_SECS_DEFAULT: Final = 300
REFRESH_TIGHT_SECS_DEFAULT: Final = 60
SESSION_LIMIT_RANGE: Final = (1, 100)
SESSION_LIMIT_DEFAULT: Final = 5
OUTPUT_CAP_RANGE: Final = (1, 100_000_000)
"""The upper bound is also that of a deployment file."""

TAG_KEYS_MAX: Final = 4
TAG_KEY_LENGTH_MAX: Final = 64

LIMITS_PER_LABEL_MAX: Final = 16
LIMIT_AMOUNT_MAX: Final = 10**12
LIMIT_PERIOD_MS_MAX: Final = 31 * 86_400_000
LIMIT_FILLING_MS_MAX: Final = 10 * 366 * 86_400_000
"""From empty to full."""

BUDGETS_MAX: Final = 16
BUDGET_NAME: Final = "^(?!quota-)[a-z0-9-]{1,32}$"
BUDGET_LABELS_MAX: Final = 64
BUDGET_USD_MICROS_MAX: Final = 10**15

THRESHOLDS_MAX: Final = 16
THRESHOLD_PCT_RANGE: Final = (1, 200)
QUOTA_AT_PCT_DEFAULT: Final = (80, 100)
SHARE_PCT_RANGE: Final = (0, 100)
DENIED_PCT_DEFAULT: Final = 50
UNSETTLED_PCT_DEFAULT: Final = 10
ANOMALY_PCT_RANGE: Final = (0, 10_000)
ANOMALY_PCT_DEFAULT: Final = 300
SECRET_DAYS_RANGE: Final = (0, 3_650)
SECRET_DAYS_DEFAULT: Final = 90
