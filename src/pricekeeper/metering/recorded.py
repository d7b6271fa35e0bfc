"""What a caller is told of a record that it sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from pricekeeper.errors import PriceKeeperError
from pricekeeper.metering.counters import Total
from pricekeeper.metering.receipt import Receipt
from pricekeeper.pricing import split_micros


class Outcome(StrEnum):
    """Whether this submission counted the record, or an earlier one had."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


class Recorded(msgspec.Struct, frozen=True):
    """A record that counts, under its receipt.

    ``daily_total`` is what its scope has spent on its label on its day, as far as this
    process knows; ``None`` if no total could be read. Never a reason to fail the record.
    """

    request_id: str
    outcome: Outcome
    receipt: Receipt
    daily_total: Total | None

    @property
    def cost_usd_micros(self) -> int:
        """What it costs, in whole micro-dollars, for showing."""
        return split_micros(self.receipt.cost_usd_picos)[0]


@dataclass(frozen=True, slots=True)
class Refused:
    """A record of a batch that was not counted; after `OutcomeUnknownError` it may have been."""

    request_id: str
    error: PriceKeeperError

    @property
    def code(self) -> str:
        return self.error.code

    @property
    def detail(self) -> str:
        return str(self.error)
