"""The cost of a model call: the deployment's models, their prices, and exact arithmetic."""

from pricekeeper.pricing.catalogue import Catalogue, Model
from pricekeeper.pricing.cost import PICOS_PER_MICRO, TOKENS_MAX, TokenUsage, charge, split_micros
from pricekeeper.pricing.deployment import load_catalogue
from pricekeeper.pricing.model_ids import ModelRef, OpaqueId, normalise_model_id
from pricekeeper.pricing.plausibility import answer_tokens, check_plausible, require_text, too_short
from pricekeeper.pricing.prices import Prices, Rates
from pricekeeper.pricing.quotes import PriceSource
from pricekeeper.pricing.reports import CheckReport, RefreshReport
from pricekeeper.pricing.service import PriceBook
from pricekeeper.pricing.worst_case import WorstCase, WorstRates, check_covered, worst_rates

__all__ = [
    "PICOS_PER_MICRO",
    "TOKENS_MAX",
    "Catalogue",
    "CheckReport",
    "Model",
    "ModelRef",
    "OpaqueId",
    "PriceBook",
    "PriceSource",
    "Prices",
    "Rates",
    "RefreshReport",
    "TokenUsage",
    "WorstCase",
    "WorstRates",
    "answer_tokens",
    "charge",
    "check_covered",
    "check_plausible",
    "load_catalogue",
    "normalise_model_id",
    "require_text",
    "split_micros",
    "too_short",
    "worst_rates",
]
