"""The region that a price belongs to, and what a source without regions may change.

Bedrock bills the rate of the region that is called, and the same model costs more in some regions.
A list that has one price for a model has the price of one region, usually of the United States. So
what such a source states may never change a price that the deployment file states: it may fill
gaps, and only for a model whose other prices agree with the file's, because else the source speaks
of another region.
"""

from __future__ import annotations

import re
from typing import Final

from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.model_ids import ModelRef, RateScope, arn_region, normalise_model_id
from pricekeeper.pricing.prices import PriceTable, flattened
from pricekeeper.pricing.reports import PriceChange

WITHOUT_REGIONS: Final = ("genai-prices",)
"""The sources that have one price for all regions, by the names that stored prices carry."""

_LIST_OF_A_REGION: Final = re.compile(r"aws-price-list-(?P<region>[a-z0-9-]{1,32})-\d{4}-\d\d-\d\d")
"""What stored prices from AWS's list of one region carry as their source."""
_CALLED_FROM: Final = {
    "us": ("us-east-", "us-west-", "ca-"),
    "eu": ("eu-",),
    "apac": ("ap-",),
    "au": ("ap-southeast-2", "ap-southeast-4", "ap-southeast-6"),
    "jp": ("ap-northeast-1", "ap-northeast-3"),
    "in": ("ap-south-",),
    "us-gov": ("us-gov-",),
}
"""How the regions begin from which a profile with that prefix can be called. A region that is not
here is one that we are not sure of; its prices are then not taken."""


def knows_regions(source: str) -> bool:
    """Whether what that source states is the price of a known region."""
    return not any(source == blind or source.startswith(f"{blind}-") for blind in WITHOUT_REGIONS)


def regional_reason(model: Model) -> str | None:
    """Why the price of that model depends on a region, as far as its id tells; or ``None``."""
    if region := arn_region(model.bedrock_model_id):
        return f"the id names the region {region}"
    for ref in (model.ref, normalise_model_id(model.bedrock_model_id)):
        if isinstance(ref, ModelRef) and ref.prefix:
            return f"{ref.prefix}. is billed at the rate of the region that is called"
    return None


def region_mismatch(model: Model, region: str) -> str | None:
    """Why that model can't be called in that region, so that its prices there say nothing."""
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
    """The prices of the deployment file that would change if that statement were laid over it."""
    file, combined = flattened(model.table()), flattened(model.table(stated))
    return tuple(
        PriceChange(price, old, combined.get(price))
        for price, old in file.items()
        if combined.get(price) != old
    )


def combined_prices(model: Model, source: str, stated: PriceTable) -> PriceTable:
    """The prices in force where a source has stated these. Only this function decides it."""
    if not knows_regions(source) and (regional_reason(model) or overridden(model, stated)):
        return model.table()
    listed = _LIST_OF_A_REGION.fullmatch(source)
    if listed is not None and region_mismatch(model, listed["region"]):
        return model.table()
    return model.table(stated)
