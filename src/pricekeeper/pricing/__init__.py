"""How much a model call costs: the deployment's models, their prices, and exact arithmetic.

`load_catalogue` reads the models, a `PriceBook` says which prices are in force, `charge` turns
tokens into pico-dollars. Sources for refreshing the prices are in `pricekeeper.pricing.sources`.
"""

from pricekeeper.pricing.catalogue import Catalogue, Model
from pricekeeper.pricing.cost import (
    PICOS_PER_MICRO,
    TOKENS_MAX,
    Charge,
    TokenUsage,
    charge,
    split_micros,
)
from pricekeeper.pricing.deployment import load_catalogue, parse_catalogue
from pricekeeper.pricing.model_ids import ModelRef, OpaqueId, RateScope, normalise_model_id
from pricekeeper.pricing.plausibility import check_answer_plausible, check_plausible
from pricekeeper.pricing.prices import Component, Prices, PriceTable, RateCard, Rates, Step, Variant
from pricekeeper.pricing.quotes import PriceList, PriceSource, Quote, RegionalQuote, Unmatched
from pricekeeper.pricing.reports import CheckReport, RefreshReport
from pricekeeper.pricing.service import PriceBook
from pricekeeper.pricing.worst_case import (
    CacheWrite,
    WorstCase,
    WorstRates,
    worst_case,
    worst_rates,
)

__all__ = [
    "PICOS_PER_MICRO",
    "TOKENS_MAX",
    "CacheWrite",
    "Catalogue",
    "Charge",
    "CheckReport",
    "Component",
    "Model",
    "ModelRef",
    "OpaqueId",
    "PriceBook",
    "PriceList",
    "PriceSource",
    "PriceTable",
    "Prices",
    "Quote",
    "RateCard",
    "RateScope",
    "Rates",
    "RefreshReport",
    "RegionalQuote",
    "Step",
    "TokenUsage",
    "Unmatched",
    "Variant",
    "WorstCase",
    "WorstRates",
    "charge",
    "check_answer_plausible",
    "check_plausible",
    "load_catalogue",
    "normalise_model_id",
    "parse_catalogue",
    "split_micros",
    "worst_case",
    "worst_rates",
]
