"""A stand-in for Amazon Bedrock's runtime: the same wire protocol, no model, and a ledger.

It imports nothing else of Price Keeper, so that the judge does not share its arithmetic.
"""

from pricekeeper.standin.ledger import BilledCall, Ledger, Statement, TokenCounts
from pricekeeper.standin.script import Script
from pricekeeper.standin.serving import Running, running

__all__ = ["BilledCall", "Ledger", "Running", "Script", "Statement", "TokenCounts", "running"]
