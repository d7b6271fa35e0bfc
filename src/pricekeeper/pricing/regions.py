"""The region of a price, and what a source without regions may change.

Bedrock bills the called region's rate, and some cost more. A source without regions never changes a
price of the deployment file; it may fill gaps of a model whose other prices agree.
"""

from __future__ import annotations

import re
from typing import Final

from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.model_ids import ModelRef, RateScope, arn_region, normalise_model_id
from pricekeeper.pricing.prices import PriceTable, flattened
from pricekeeper.pricing.reports import PriceChange

WITHOUT_REGIONS: Final = ("genai-prices",)
"""Sources with one price for all regions, by their names in stored prices."""

_LIST_OF_A_REGION: Final = re.compile(r"aws-price-list-(?P<region>[a-z0-9-]{1,32})-\d{4}-\d\d-\d\d")
_CALLED_FROM: Final = {
    "us": ("us-east-", "us-west-", "ca-"),
    "eu": ("eu-",),
    "apac": ("ap-",),
    "au": ("ap-southeast-2", "ap-southeast-4", "ap-southeast-6"),
    "jp": ("ap-northeast-1", "ap-northeast-3"),
    "in": ("ap-south-",),
    "us-gov": ("us-gov-",),
}
"""The regions, by prefix, from which a geographic profile can be called."""


def knows_regions(source: str) -> bool:
    """Whether the source states prices of a known region."""
    return not any(source == blind or source.startswith(f"{blind}-") for blind in WITHOUT_REGIONS)


def regional_reason(model: Model) -> str | None:
    """Why the model's price depends on a region, as far as its id shows, or ``None``."""
    if region := arn_region(model.bedrock_model_id):
        return f"the id names the region {region}"
    for ref in (model.ref, normalise_model_id(model.bedrock_model_id)):
        if isinstance(ref, ModelRef) and ref.prefix:
            return f"{ref.prefix}. is billed at the rate of the region that is called"
    return None


def region_mismatch(model: Model, region: str) -> str | None:
    """Why the model can't be called in that region, or ``None``."""
    named = arn_region(model.bedrock_model_id)
    if named and named != region:
        return f"the id names the region {named}, and the list is of {region}"
    for ref in (model.ref, normalise_model_id(model.bedrock_model_id)):
        if not isinstance(ref, ModelRef) or ref.scope is RateScope.GLOBAL or not ref.geography:
            continue
        if not region.startswith(_CALLED_FROM[ref.geography]):
            return f"{ref.geography}. is not called from {region}, whose prices the list has"
    return None


def overridden(model: Model, stated: PriceTable) -> tuple[PriceChange, ...]:
    """The prices of the deployment file that the statement would change."""
    file, combined = flattened(model.table()), flattened(model.table(stated))
    return tuple(
        PriceChange(price, old, combined.get(price))
        for price, old in file.items()
        if combined.get(price) != old
    )


def combined_prices(model: Model, source: str, stated: PriceTable) -> PriceTable:
    """The prices in force given a source's statement. Only this function decides it."""
    if not knows_regions(source) and (regional_reason(model) or overridden(model, stated)):
        return model.table()
    listed = _LIST_OF_A_REGION.fullmatch(source)
    if listed is not None and region_mismatch(model, listed["region"]):
        return model.table()
    return model.table(stated)
