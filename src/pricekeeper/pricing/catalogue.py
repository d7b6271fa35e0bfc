"""The models of a deployment: label, Bedrock model, prices and limits.

The label decides the price. If the reported model contradicts it, a configuration is wrong, and
`Model.require` refuses the usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import ModelMismatchError, UnknownModelLabelError
from pricekeeper.pricing.model_ids import (
    MODEL_ID_LENGTH_MAX,
    ModelRef,
    OpaqueId,
    normalise_model_id,
)
from pricekeeper.pricing.prices import PERMILLE, PriceTable, RateCard, Variant, laid_over, scaled
from pricekeeper.values import ModelLabel

CONTEXT_WINDOW_TOKENS: Final = 1_000_000
MODEL_OUTPUT_TOKENS: Final = 128_000
MATCHING_MAX: Final = 1_024
AGGREGATOR_INTERVAL_SECS: Final = 60


class VariantPricing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of a tier or of batch: a multiple of the default prices, or its own."""

    multiplier_permille: int | None = None
    pricing: RateCard | None = None

    def card(self, default: RateCard) -> RateCard | None:
        if self.multiplier_permille is not None:
            return scaled(default, self.multiplier_permille)
        return self.pricing


class StatedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a model in the deployment file that are used as stated."""

    bedrock_model_id: str
    family: str
    tier: str
    description: str
    default_pricing: RateCard
    batch: VariantPricing | None = None
    input_includes_cache_tokens: bool = False
    burn_down_factor_permille: int = PERMILLE
    context_window_tokens: int = CONTEXT_WINDOW_TOKENS
    max_output_tokens: int = MODEL_OUTPUT_TOKENS
    counts_tokens: bool = False
    """Whether the gateway asks Bedrock to count the prompt before it reserves."""
    units: dict[str, int] = {}
    """Micro-dollars for 1,000 units of features that Bedrock bills beside tokens; calls with other
    features are refused. Not yet reserved or counted.
    """


class Model(StatedModel, frozen=True, kw_only=True):
    """One labelled model of the deployment."""

    label: ModelLabel
    ref: ModelRef
    writes_text: bool = True
    """False for models that return vectors, rankings or pictures."""
    priority: VariantPricing | None = None
    flex: VariantPricing | None = None
    reserved: VariantPricing | None = None
    aliases: frozenset[str] = frozenset()
    price_list_names: frozenset[str] = frozenset()

    def table(self, stated: PriceTable | None = None) -> PriceTable:
        """The file's prices, overlaid with those of a source; multipliers apply to the result."""
        default = self.default_pricing
        if stated is not None:
            default = laid_over(default, stated.default)
        return PriceTable(
            default=default,
            priority=self._card(Variant.PRIORITY, default, stated),
            flex=self._card(Variant.FLEX, default, stated),
            reserved=self._card(Variant.RESERVED, default, stated),
            batch=self._card(Variant.BATCH, default, stated),
        )

    def require(self, reported_model_id: str) -> None:
        """Raise if the id is another model's, or this model's at another rate."""
        if reported_model_id == self.bedrock_model_id or reported_model_id in self.aliases:
            return
        reported = normalise_model_id(reported_model_id)
        if isinstance(reported, OpaqueId):
            self._refuse(
                reported_model_id,
                f"an id of the kind '{reported.kind}' does not say which model it is; if it is "
                f"{self.bedrock_model_id}, add it to the aliases of '{self.label}'",
            )
        elif reported.base != self.ref.base:
            self._refuse(
                reported_model_id,
                f"'{self.label}' is {self.ref.base}, not {reported.base}; report the label of the "
                "model that was called",
            )
        elif not reported.same_rate(self.ref):
            self._refuse(
                reported_model_id,
                f"'{self.label}' has the {self.ref.scope} rate of {self.ref.base}, but the "
                f"{reported.scope} one was called; give the other rate a label of its own",
            )

    def is_meant_by(self, text: str) -> bool:
        if text == self.bedrock_model_id or text in self.aliases:
            return True
        ref = normalise_model_id(text)
        return not isinstance(ref, OpaqueId) and ref.same_rate(self.ref)

    def is_multiple(self, variant: Variant) -> bool:
        pricing: VariantPricing | None = getattr(self, variant.value)
        return pricing is not None and pricing.multiplier_permille is not None

    def _card(
        self, variant: Variant, default: RateCard, stated: PriceTable | None
    ) -> RateCard | None:
        pricing: VariantPricing | None = getattr(self, variant.value)
        below = None if pricing is None else pricing.card(default)
        above = None if stated is None else stated.card(variant)
        return laid_over(below, above) if below and above else above or below

    def _refuse(self, reported: str, message: str) -> None:
        raise ModelMismatchError(self.label, self.bedrock_model_id, reported, message)


class Catalogue:
    """The models by label, in the file's order. It never changes."""

    __slots__ = ("_matching", "_models", "aggregator_interval_secs", "origin")

    def __init__(
        self,
        models: Mapping[ModelLabel, Model],
        origin: str,
        aggregator_interval_secs: int = AGGREGATOR_INTERVAL_SECS,
    ) -> None:
        self._models = MappingProxyType(dict(models))
        self.origin = origin
        self.aggregator_interval_secs = aggregator_interval_secs
        """The only setting in the file that is not about models."""
        self._matching: BoundedCache[str, tuple[ModelLabel, ...]] = BoundedCache(MATCHING_MAX)

    @property
    def labels(self) -> tuple[ModelLabel, ...]:
        return tuple(self._models)

    def model(self, label: str) -> Model:
        model = self._models.get(ModelLabel(label))
        if model is None:
            raise UnknownModelLabelError(label, self.labels)
        return model

    def labels_of(self, model_id: str) -> tuple[ModelLabel, ...]:
        found = self._matching.get(model_id)
        if found is None:
            found = tuple(one.label for one in self if one.is_meant_by(model_id))
            if len(model_id) <= MODEL_ID_LENGTH_MAX:
                self._matching.put(model_id, found)
        return found

    def skipped_by_auto(self, ordering: Sequence[str]) -> frozenset[str]:
        """The labels that `auto` skips: they write no text, while others of the ordering do."""
        known = [self._models[ModelLabel(label)] for label in ordering if label in self]
        without_text = frozenset(model.label for model in known if not model.writes_text)
        return without_text if len(without_text) < len(known) else frozenset()

    def __contains__(self, label: object) -> bool:
        return label in self._models

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)
