"""A stand-in for Amazon Bedrock's runtime: the same wire protocol, no model, and a ledger.

The demo's gateway has it as its upstream, and tests and benches ask its ledger what a call has
really cost. It knows nothing of the rest of Price Keeper: a judge must not share its arithmetic.
"""

from pricekeeper.standin.ledger import BilledCall, Ledger, Statement, TokenCounts
from pricekeeper.standin.script import Script
from pricekeeper.standin.serving import Running, running

__all__ = ["BilledCall", "Ledger", "Running", "Script", "Statement", "TokenCounts", "running"]
