"""The warning that a record was counted at an estimated price, because its own is not known.

Somebody has to add the price to the deployment file, so it is said in the log; once a minute for
each label, because the metric counts the records. Labels are the deployment's, so what is kept here
is bounded.
"""

from __future__ import annotations

from typing import Final

import structlog

from pricekeeper.clock import Clock
from pricekeeper.metering.usage import Usage
from pricekeeper.tenants import Policy

QUIET_MS: Final = 60_000

_log = structlog.get_logger(__name__)


class EstimateWarnings:
    """Warns of estimated prices, and not too often."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned_at_ms: dict[str, int] = {}

    def warn(self, policy: Policy, usage: Usage) -> None:
        """Say that this usage has no price of its own, unless its label's was just said."""
        now_ms = self._clock.monotonic_ms()
        warned_at_ms = self._warned_at_ms.get(usage.model_label)
        if warned_at_ms is not None and now_ms - warned_at_ms < QUIET_MS:
            return
        self._warned_at_ms[usage.model_label] = now_ms
        _log.warning(
            "price_estimated",
            label=usage.model_label,
            service_tier=usage.service_tier or "batch",
            org_id=policy.org_id,
            app_id=policy.app_id,
            advice="add the prices of this tier to the deployment file",
        )
