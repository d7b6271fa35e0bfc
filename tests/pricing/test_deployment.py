"""The deployment file: what it can say, and every way in which it is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pricekeeper.errors import DeploymentFileError
from pricekeeper.pricing import Catalogue, ModelRef, load_catalogue
from pricekeeper.pricing.deployment import parse_catalogue
from pricekeeper.pricing.model_ids import RateScope
from pricekeeper.pricing.prices import Component, RateCard, Step

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"
INPUT, OUTPUT = "input_price_usd_micros_per_1m", "output_price_usd_micros_per_1m"
CACHE_READ = "cache_read_price_usd_micros_per_1m"


def document() -> dict[str, Any]:
    """A small file that is right, as plain data."""
    return {
        "version": 1,
        "models": {
            "premium": {
                "bedrock_model_id": "us.anthropic.claude-opus-5-5",
                "family": "claude-5.5",
                "tier": "premium",
                "description": "Claude Opus 5.5",
                "default_pricing": {INPUT: 4_400_000, OUTPUT: 22_000_000},
            }
        },
    }


def parse(data: Any) -> Catalogue:
    return parse_catalogue(json.dumps(data), "a test")  # JSON is YAML


def refused(data: Any) -> dict[str, str]:
    """Every field that was refused, and why."""
    with pytest.raises(DeploymentFileError) as caught:
        parse(data)
    return {error.field: error.message for error in caught.value.errors}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The right file with one place made different; ``None`` removes it."""
    data = document()
    *parents, last = path.split(".")
    place = data
    for name in parents:
        place = place.setdefault(name, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return data


def test_the_smallest_file() -> None:
    """Everything that may be left out has a stated meaning."""
    model = parse(document()).model("premium")

    assert model.bedrock_model_id == "us.anthropic.claude-opus-5-5"
    assert model.ref == ModelRef("anthropic.claude-opus-5-5", geography="us")
    assert (model.family, model.tier) == ("claude-5.5", "premium")
    assert model.default_pricing == RateCard(input=4_400_000, output=22_000_000)
    assert model.input_includes_cache_tokens is False
    assert model.burn_down_factor_permille == 1000
    assert (model.context_window_tokens, model.max_output_tokens) == (1_000_000, 128_000)
    assert model.aliases == model.price_list_names == frozenset()
    table = model.table()
    assert (table.priority, table.flex, table.reserved, table.batch) == (None, None, None, None)


def test_everything_that_a_file_can_say() -> None:
    """The example has one of each: tiers, batch, steps, flags, a global profile and an alias."""
    catalogue = load_catalogue(EXAMPLE)

    nova = catalogue.model("nova").table()
    assert nova.priority == RateCard(
        input=1_400_000, output=5_600_000, cache_read=350_000, cache_write_5m=0
    )
    assert nova.flex == RateCard(input=400_000, output=1_600_000)
    assert nova.batch is not None
    assert (nova.batch.input, nova.batch.output) == (400_000, 1_600_000)
    assert nova.reserved is None
    assert catalogue.model("standard-global").ref.scope is RateScope.GLOBAL
    gpt = catalogue.model("gpt")
    assert gpt.input_includes_cache_tokens
    assert [step.over_input_tokens for step in gpt.default_pricing.long_context] == [272_000]
    assert (gpt.context_window_tokens, gpt.max_output_tokens) == (1_000_000, 128_000)
    sonnet = catalogue.model("sonnet-3-5")
    assert (sonnet.context_window_tokens, sonnet.max_output_tokens) == (200_000, 8_192)
    assert sonnet.ref == ModelRef("anthropic.claude-3-5-sonnet-20241022-v2:0")
    assert sonnet.default_pricing.input == 3_000_000
    assert sonnet.default_pricing.output == 15_000_000
    assert len(sonnet.aliases) == 1


def test_without_a_file_there_is_one() -> None:
    """Premium, standard and economy; the example begins with the same three."""
    built_in, example = load_catalogue(), load_catalogue(EXAMPLE)

    assert built_in.labels == ("premium", "standard", "economy")
    assert built_in.origin == "built-in"
    for model in built_in:
        assert example.model(model.label) == model
    economy = built_in.model("economy").default_pricing
    assert economy.long_context == (
        Step(
            over_input_tokens=100_000,
            input=550_000,
            output=2_750_000,
            cache_read=55_000,
            cache_write_5m=687_500,
            cache_write_1h=1_100_000,
        ),
    )


def test_the_example_explains_every_field() -> None:
    """A field without an example is a field that users do not find."""
    text = EXAMPLE.read_text(encoding="utf-8")
    known = refused(changed("models.premium.colour", "red"))["models.premium.colour"]

    fields = known.removeprefix("is unknown; there may be ").split(", ")
    assert "default_pricing" in fields
    assert [name for name in fields if not re.search(rf"^\s+{name}:", text, re.MULTILINE)] == []


M = "models.premium"
P = f"{M}.default_pricing"
STEPS = f"{P}.long_context"
BOTH = {"multiplier_permille": 500, "pricing": {INPUT: 1, OUTPUT: 1}}
BELOW_ZERO = {"pricing": {INPUT: 1, OUTPUT: 2, CACHE_READ: -3}}
STEP = {"over_input_tokens": 200_000, INPUT: 6_000_000, OUTPUT: 22_000_000}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, "invalid enum value 2"),
        ("version", None, "is required"),
        ("extra", 1, "is unknown; there may be version, models"),
        ("models", [], "expected object, got array"),
        ("models", {}, "must have 1 to 200 models, not 0"),
        (f"{M}.colour", "red", "is unknown"),
        (f"{M}.family", None, "is required"),
        (f"{M}.family", 5.5, "expected str, got float"),
        (f"{M}.tier", "", "must have 1 to 1024 characters"),
        (f"{M}.description", "x" * 1025, "must have 1 to 1024 characters"),
        (f"{M}.bedrock_model_id", "opus", "must name a model"),
        (f"{M}.bedrock_model_id", "arn:aws:bedrock:us-east-1:1:prompt/x", "in priced_as"),
        (f"{M}.priced_as", "opus", "must name a model"),
        (f"{M}.default_pricing", 3, "must be a mapping"),
        (f"{P}.{INPUT}", None, "is required"),
        (f"{P}.{OUTPUT}", None, "is required"),
        (f"{P}.{INPUT}", 4.4, "expected int, got float"),
        (f"{P}.{INPUT}", 4_400_000.0, "got float"),
        (f"{P}.{INPUT}", "4400000", "got str"),
        (f"{P}.{INPUT}", True, "got bool"),
        (f"{P}.{INPUT}", -1, "must be from 0 to 10000000000"),
        (f"{P}.{INPUT}", 10_000_000_001, "must be from 0 to 10000000000"),
        (f"{P}.{INPUT}", 3, "3 dollars per million tokens are written 3000000"),
        (f"{P}.{OUTPUT}", 15, "next to nothing"),
        (f"{P}.{CACHE_READ}", -1, "must be from 0"),
        (f"{P}.input", 1, "is unknown; there may be"),
        (f"{P}.long_context", STEP, "expected array, got object"),
        (f"{M}.service_tiers.turbo", {}, "is unknown; there may be priority, flex, reserved"),
        (f"{M}.batch.multiplier_permille", 0.5, "got float"),
        (f"{M}.batch.multiplier_permille", 0, "must be from 1 to 100000"),
        (f"{M}.input_includes_cache_tokens", "yes", "expected bool, got str"),
        (f"{M}.burn_down_factor_permille", 0, "must be from 1 to 100000"),
        (f"{M}.burn_down_factor_permille", 5.0, "expected int, got float"),
        (f"{M}.context_window_tokens", 0, "must be from 1 to 100000000"),
        (f"{M}.context_window_tokens", 100_000_001, "must be from 1 to 100000000"),
        (f"{M}.max_output_tokens", 0, "must be from 1 to 100000000"),
        (f"{M}.max_output_tokens", "8k", "expected int, got str"),
        (f"{M}.aliases", "x", "expected array, got str"),
    ],
)
def test_a_bad_field_is_named_with_its_path(path: str, value: Any, message: str) -> None:
    """One thing is wrong, so one thing is reported, where it is."""
    errors = refused(changed(path, value))

    assert list(errors) == [path]
    assert message in errors[path]


@pytest.mark.parametrize(
    ("path", "value", "bad", "message"),
    [
        (f"{M}.batch", {}, "", "either multiplier_permille or pricing"),
        (f"{M}.batch", BOTH, "", "either multiplier_permille or pricing"),
        (f"{M}.batch", {"pricing": {INPUT: 1}}, f".pricing.{OUTPUT}", "is required"),
        (f"{M}.service_tiers.flex", BELOW_ZERO, f".pricing.{CACHE_READ}", "must be from 0"),
        (f"{M}.aliases", ["a", ""], "[1]", "must have 1 to 1024 characters"),
        (f"{M}.aliases", ["a", 7], "[1]", "expected str, got int"),
        (STEPS, [STEP, STEP], "[1].over_input_tokens", "must be more than in the step before"),
        (STEPS, [STEP | {"over_input_tokens": 0}], "[0].over_input_tokens", "must be"),
        (STEPS, [{"over_input_tokens": 200_000, OUTPUT: 1}], f"[0].{INPUT}", "is required"),
        (STEPS, [STEP | {"beyond": 1}], "[0].beyond", "is unknown"),
    ],
)
def test_a_bad_field_deeper_down(path: str, value: Any, bad: str, message: str) -> None:
    """Inside variants, lists and steps as well."""
    assert message in refused(changed(path, value))[path + bad]


def test_every_bad_field_is_named_at_once() -> None:
    """A file has not to be corrected one mistake at a time."""
    data = document()
    data["models"]["premium"]["default_pricing"] = {INPUT: 4.4, "typo": 1}
    data["models"]["premium"]["tier"] = 1
    data["models"]["second"] = {"family": "x", "batch": {"multiplier": 2}}
    del data["version"]

    assert set(refused(data)) == {
        f"{P}.{INPUT}",
        f"{P}.typo",
        f"{M}.tier",
        "models.second.bedrock_model_id",
        "models.second.tier",
        "models.second.description",
        "models.second.default_pricing",
        "models.second.batch.multiplier",
        "version",
    }


def test_every_unclear_meaning_is_named_at_once() -> None:
    """Well-formed, but wrong in three models."""
    data = document()
    entry = data["models"]["premium"]
    data["models"]["Gold"] = entry | {"bedrock_model_id": "us.anthropic.gold"}
    data["models"]["twin"] = entry
    poor = {"bedrock_model_id": "us.anthropic.poor", "default_pricing": {INPUT: 3, OUTPUT: 15}}
    data["models"]["poor"] = entry | poor

    assert set(refused(data)) == {
        "models.Gold",
        "models.twin",
        f"models.poor.default_pricing.{INPUT}",
        f"models.poor.default_pricing.{OUTPUT}",
    }


def test_an_id_has_one_label() -> None:
    """Prices are kept per id, so an id or alias that two labels share is refused."""
    data = document()
    entry = data["models"]["premium"]
    data["models"]["other"] = entry | {
        "bedrock_model_id": "us.anthropic.other",
        "aliases": ["us.anthropic.claude-opus-5-5"],
    }

    assert "belongs to 'premium' already" in refused(data)["models.other"]


def test_a_tier_with_prices_of_its_own_says_its_steps_too() -> None:
    """Otherwise the price of a long prompt would be unknown there."""
    data = changed(f"{P}.long_context", [STEP])
    flex = {"pricing": {INPUT: 1_000_000, OUTPUT: 2_000_000}}
    data["models"]["premium"]["service_tiers"] = {"flex": flex}

    assert refused(data) == {
        f"{M}.service_tiers.flex.pricing.long_context": (
            "must be given, as the default prices have steps"
        )
    }


@pytest.mark.parametrize("free", [INPUT, OUTPUT, CACHE_READ])
def test_what_is_free_can_be_said(free: str) -> None:
    """A whole model, the output of an embedding model, or a cache."""
    data = changed(f"{P}.{OUTPUT}", 0)
    data["models"]["premium"]["default_pricing"][free] = 0

    card = parse(data).model("premium").default_pricing
    assert card.of(Component(free.removesuffix("_price_usd_micros_per_1m"))) == 0


def test_more_models_than_anybody_needs() -> None:
    """There is a bound, and the message states it."""
    entry = document()["models"]["premium"]
    models = {f"m{n}": entry | {"bedrock_model_id": f"a.m{n}"} for n in range(201)}

    assert refused({"version": 1, "models": models}) == {
        "models": "must have 1 to 200 models, not 201"
    }


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda _: None, "can't be read: No such file"),
        (lambda path: path.mkdir(), "can't be read: Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\xfa"), "is not UTF-8"),
        (lambda path: path.write_text(""), "must be a mapping"),
        (lambda path: path.write_text("a: ["), "line 1"),
        (lambda path: path.write_text("version: 1\nversion: 1"), "there twice"),
    ],
)
def test_a_file_that_can_not_be_read(
    tmp_path: Path, write: Callable[[Path], Any], message: str
) -> None:
    """The message names the file, and what is the matter with it."""
    path = tmp_path / "config.yaml"
    write(path)

    with pytest.raises(DeploymentFileError, match=re.escape(str(path))) as caught:
        load_catalogue(path)

    (error,) = caught.value.errors
    assert error.field == "file"
    assert message in error.message


WRITING = (
    "us.anthropic.claude-opus-5-5", "amazon.titan-text-premier-v1:0", "amazon.nova-lite-v1:0",
    "cohere.command-r-plus-v1:0", "mistral.pixtral-large-2502-v1:0", "twelvelabs.pegasus-1-2-v1:0",
)  # fmt: skip


@pytest.mark.parametrize(
    "model_id",
    [
        *WRITING,
        "amazon.titan-embed-text-v2:0", "amazon.titan-image-generator-v2:0",
        "amazon.nova-2-multimodal-embeddings-v1:0", "us.amazon.nova-canvas-v1:0",
        "amazon.nova-reel-v1:1", "amazon.nova-2-sonic-v1:0", "amazon.rerank-v1:0",
        "cohere.rerank-v3-5:0", "global.cohere.embed-v4:0", "us.stability.stable-image-core-v1:1",
        "luma.ray-v2:0", "us.twelvelabs.marengo-embed-3-0-v1:0",
    ],
)  # fmt: skip
def test_a_models_id_says_whether_it_writes_text(model_id: str) -> None:
    """The file may say otherwise, for a model whose id does not tell."""
    stated = changed("models.premium.bedrock_model_id", model_id)
    assert parse(stated).model("premium").writes_text is (model_id in WRITING)
    for said in (True, False):
        stated["models"]["premium"]["writes_text"] = said
        assert parse(stated).model("premium").writes_text is said


def test_what_stands_behind_a_profile_says_whether_it_writes_text() -> None:
    """The opaque id of an application profile tells nothing."""
    profile = "arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/abcd"
    stated = changed("models.premium.bedrock_model_id", profile)
    stated["models"]["premium"]["priced_as"] = "amazon.titan-embed-text-v2:0"
    assert parse(stated).model("premium").writes_text is False


def test_auto_skips_models_without_text_where_others_write_it() -> None:
    text = document()["models"]["premium"]
    vectors = {**text, "bedrock_model_id": "amazon.titan-embed-text-v2:0"}
    catalogue = parse({"version": 1, "models": {"premium": text, "vectors": vectors}})
    assert catalogue.skipped_by_auto(["vectors", "unknown", "premium"]) == {"vectors"}
    assert catalogue.skipped_by_auto(["vectors", "unknown"]) == frozenset()
    assert catalogue.skipped_by_auto(["premium"]) == frozenset()


def test_the_file_may_say_how_often_totals_are_aggregated() -> None:
    """A minute if it does not; more than a day is a mistake."""
    text = EXAMPLE.read_text("utf-8")
    assert parse_catalogue(text, "example").aggregator_interval_secs == 60
    changed = text.replace("aggregator_interval_secs: 60", "aggregator_interval_secs: 15")
    assert parse_catalogue(changed, "changed").aggregator_interval_secs == 15
    with pytest.raises(DeploymentFileError, match="aggregator_interval_secs: must be from 0"):
        parse_catalogue(changed.replace("15", "90000"), "slow")
