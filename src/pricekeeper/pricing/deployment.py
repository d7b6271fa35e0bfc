"""Reads the deployment file: from YAML to a `Catalogue`, or a list of every mistake.

It is read once, at start, and refused as a whole. The built-in one is the default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, cast

import msgspec

from pricekeeper.bedrock import answers_with_text
from pricekeeper.errors import DeploymentFileError, FieldError, InvalidValueError
from pricekeeper.pricing.catalogue import (
    AGGREGATOR_INTERVAL_SECS,
    Catalogue,
    Model,
    StatedModel,
    VariantPricing,
)
from pricekeeper.pricing.model_ids import ModelRef, normalise_model_id
from pricekeeper.pricing.prices import COMPONENTS, Component, RateCard, Rates
from pricekeeper.pricing.strict_yaml import InvalidYamlError, load_strict_yaml
from pricekeeper.shapes import OF_A_FILE, shape_errors
from pricekeeper.values import ModelLabel, parse_model_label

BUILT_IN: Final = "default_config.yaml"
MODELS_MAX: Final = 200
PRICE_USD_MICROS_PER_1M_MAX: Final = 10_000_000_000
PERMILLE_MAX: Final = 100_000
TEXT_LENGTH_MAX: Final = 1024

UNITS: Final = (
    "image, video_second, audio_input_token, audio_output_token, search_query, guardrail_image, "
    "guardrail_text_unit:POLICY, tool_call:NAME"
)
_UNIT: Final = re.compile(
    r"image|video_second|audio_(in|out)put_token|search_query|guardrail_image"
    r"|(guardrail_text_unit|tool_call):[A-Za-z0-9_.-]{1,64}"
)
_UNIT_USD_MICROS_MAX: Final = 10**12
_CENTS_OF_A_CENT: Final = 1_000
"""Bedrock has no lower price per million tokens; a smaller number was meant in dollars."""
_SECONDS_MAX: Final = 86_400
_STEP_TOKENS_MAX: Final = 1_000_000_000
_MODEL_TOKENS_MAX: Final = 100_000_000
"""Ten times the largest existing window; a larger number is a typing error."""


class _Tiers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    priority: VariantPricing | None = None
    flex: VariantPricing | None = None
    reserved: VariantPricing | None = None


class _ModelEntry(StatedModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    priced_as: str | None = None
    writes_text: bool | None = None
    service_tiers: _Tiers = _Tiers()
    aliases: tuple[str, ...] = ()
    price_list_names: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    models: dict[str, _ModelEntry]
    aggregator_interval_secs: int = AGGREGATOR_INTERVAL_SECS


def load_catalogue(path: Path | None = None) -> Catalogue:
    """The models of the file at that path, or the built-in ones."""
    if path is None:
        text = files(__package__).joinpath(BUILT_IN).read_text(encoding="utf-8")
        return parse_catalogue(text, "built-in")
    try:
        return parse_catalogue(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        reason = f"can't be read: {error.strerror}"
        raise DeploymentFileError(str(path), [FieldError("file", reason)]) from error
    except UnicodeDecodeError as error:
        raise DeploymentFileError(str(path), [FieldError("file", "is not UTF-8")]) from error


def parse_catalogue(text: str, origin: str) -> Catalogue:
    """The models of the text; raises `DeploymentFileError` with every mistake."""
    try:
        document = load_strict_yaml(text)
    except InvalidYamlError as error:
        raise DeploymentFileError(origin, [FieldError("file", str(error))]) from error
    if problems := list(shape_errors(document, _File, wording=OF_A_FILE)):
        errors = [FieldError(error.field or "file", error.message) for error in problems]
        raise DeploymentFileError(origin, errors)
    file = msgspec.convert(document, _File)
    entries, interval_secs = file.models, file.aggregator_interval_secs
    if problems := [
        *_meaning_errors(entries),
        *_range_errors("aggregator_interval_secs", interval_secs, 0, _SECONDS_MAX),
    ]:
        raise DeploymentFileError(origin, problems)
    models = (_model(ModelLabel(label), entry) for label, entry in entries.items())
    return Catalogue({model.label: model for model in models}, origin, interval_secs)


def _model(label: ModelLabel, entry: _ModelEntry) -> Model:
    stated = {name: getattr(entry, name) for name in StatedModel.__struct_fields__}
    ref, writes_text = cast(ModelRef, _ref(entry)), entry.writes_text  # checked before
    return Model(
        **stated,
        label=label,
        ref=ref,
        writes_text=answers_with_text(ref.base) if writes_text is None else writes_text,
        **msgspec.structs.asdict(entry.service_tiers),
        aliases=frozenset(entry.aliases),
        price_list_names=frozenset(entry.price_list_names),
    )


def _ref(entry: _ModelEntry) -> ModelRef | None:
    ref = normalise_model_id(entry.priced_as or entry.bedrock_model_id)
    return ref if isinstance(ref, ModelRef) else None


def _meaning_errors(entries: dict[str, _ModelEntry]) -> Iterator[FieldError]:
    if not 1 <= len(entries) <= MODELS_MAX:
        yield FieldError("models", f"must have 1 to {MODELS_MAX} models, not {len(entries)}")
    owners: dict[str, str] = {}
    for label, entry in entries.items():
        path = f"models.{label}"
        try:
            parse_model_label(label, path)
        except InvalidValueError as error:
            yield FieldError(error.field, error.message)
        yield from _identity_errors(entry, path)
        for name in (entry.bedrock_model_id, *entry.aliases):
            if owners.setdefault(name, label) != label:
                yield FieldError(path, f"'{name}' belongs to '{owners[name]}' already")
        yield from _pricing_errors(entry, path)
        yield from _range_errors(
            f"{path}.burn_down_factor_permille", entry.burn_down_factor_permille, 1, PERMILLE_MAX
        )
        for field in ("context_window_tokens", "max_output_tokens"):
            tokens = getattr(entry, field)
            yield from _range_errors(f"{path}.{field}", tokens, 1, _MODEL_TOKENS_MAX)
        for unit, price in entry.units.items():
            if not _UNIT.fullmatch(unit):
                yield FieldError(f"{path}.units", f"{unit!r} is no unit; one of {UNITS}")
            yield from _range_errors(f"{path}.units.{unit}", price, 0, _UNIT_USD_MICROS_MAX)


def _identity_errors(entry: _ModelEntry, path: str) -> Iterator[FieldError]:
    if _ref(entry) is None:
        field, advice = (
            ("bedrock_model_id", "; if it is an alias, name its model in priced_as")
            if entry.priced_as is None
            else ("priced_as", "")
        )
        yield FieldError(
            f"{path}.{field}",
            "must name a model, such as us.anthropic.claude-sonnet-4-5-20250929-v1:0" + advice,
        )
    texts = {name: getattr(entry, name) for name in ("family", "tier", "description")}
    for kind in ("aliases", "price_list_names"):
        texts |= {f"{kind}[{index}]": text for index, text in enumerate(getattr(entry, kind))}
    for field, text in texts.items():
        if not 1 <= len(text) <= TEXT_LENGTH_MAX:
            yield FieldError(f"{path}.{field}", f"must have 1 to {TEXT_LENGTH_MAX} characters")


def _pricing_errors(entry: _ModelEntry, path: str) -> Iterator[FieldError]:
    default = entry.default_pricing
    yield from _card_errors(default, f"{path}.default_pricing")
    for component in (Component.INPUT, Component.OUTPUT):
        yield from _unit_errors(default, component, f"{path}.default_pricing")
    tiers = msgspec.structs.asdict(entry.service_tiers)
    priced = {f"service_tiers.{tier}": variant for tier, variant in tiers.items()}
    for field, variant in {**priced, "batch": entry.batch}.items():
        if variant is not None:
            yield from _variant_errors(variant, default, f"{path}.{field}")


def _unit_errors(default: RateCard, component: Component, path: str) -> Iterator[FieldError]:
    """A tiny price was meant in dollars; 0 states that the unit is free."""
    price = default.of(component)
    if price is not None and 0 < price < _CENTS_OF_A_CENT:
        yield FieldError(
            f"{path}.{component.price_field}",
            f"{price} micro-dollars per million tokens is next to nothing; "
            "3 dollars per million tokens are written 3000000",
        )


def _variant_errors(variant: VariantPricing, default: RateCard, path: str) -> Iterator[FieldError]:
    if (variant.multiplier_permille is None) == (variant.pricing is None):
        yield FieldError(path, "must have either multiplier_permille or pricing")
    if variant.multiplier_permille is not None:
        yield from _range_errors(
            f"{path}.multiplier_permille", variant.multiplier_permille, 1, PERMILLE_MAX
        )
    if variant.pricing is not None:
        yield from _card_errors(variant.pricing, f"{path}.pricing")
        if default.long_context and not variant.pricing.long_context:
            yield FieldError(
                f"{path}.pricing.long_context", "must be given, as the default prices have steps"
            )


def _card_errors(card: RateCard, path: str) -> Iterator[FieldError]:
    yield from _rates_errors(card, path)
    over_tokens = 0
    for index, step in enumerate(card.long_context):
        step_path = f"{path}.long_context[{index}]"
        yield from _rates_errors(step, step_path)
        yield from _range_errors(
            f"{step_path}.over_input_tokens", step.over_input_tokens, 1, _STEP_TOKENS_MAX
        )
        if step.over_input_tokens <= over_tokens:
            yield FieldError(
                f"{step_path}.over_input_tokens", "must be more than in the step before"
            )
        over_tokens = step.over_input_tokens


def _rates_errors(rates: Rates, path: str) -> Iterator[FieldError]:
    for component in COMPONENTS:
        field, price = f"{path}.{component.price_field}", rates.of(component)
        if price is not None:
            yield from _range_errors(field, price, 0, PRICE_USD_MICROS_PER_1M_MAX)
        elif component in (Component.INPUT, Component.OUTPUT):
            yield FieldError(field, "is required")


def _range_errors(field: str, number: int, least: int, most: int) -> Iterable[FieldError]:
    if not least <= number <= most:
        yield FieldError(field, f"must be from {least} to {most}")
