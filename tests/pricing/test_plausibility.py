"""Records that can't be true are refused; no record that can be true ever is."""

from typing import Any

import pytest

from pricekeeper.errors import InvalidValueError
from pricekeeper.pricing import Model, TokenUsage, check_plausible, load_catalogue
from pricekeeper.pricing.plausibility import TIMES_MAX
from pricing.conftest import a_model

MODEL = a_model(context_window_tokens=200_000, max_output_tokens=8_000)
LARGEST_WINDOW = 10_000_000
"""Of any model that Bedrock has."""


def tokens(**counts: int) -> TokenUsage:
    fields: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0, **counts}
    return TokenUsage(**fields)


def refused_field(model: Model, usage: TokenUsage) -> str:
    with pytest.raises(InvalidValueError) as refused:
        check_plausible(model, usage)
    assert model.label in refused.value.message
    assert "each call by itself" in refused.value.message
    return refused.value.field


@pytest.mark.parametrize(
    "field", ["input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens"]
)
def test_a_prompt_has_a_bound_by_whatever_field(field: str) -> None:
    """Ten times the window passes, one token more names the field."""
    check_plausible(MODEL, tokens(**{field: TIMES_MAX * 200_000}))
    assert refused_field(MODEL, tokens(**{field: TIMES_MAX * 200_000 + 1})) == field


def test_an_answer_has_a_bound_of_its_own() -> None:
    """It is not part of the prompt."""
    check_plausible(
        MODEL, tokens(input_tokens=TIMES_MAX * 200_000, output_tokens=TIMES_MAX * 8_000)
    )
    assert refused_field(MODEL, tokens(output_tokens=TIMES_MAX * 8_000 + 1)) == "output_tokens"


def test_input_and_cache_count_together() -> None:
    """Each may be fine by itself; the largest is named."""
    usage = tokens(input_tokens=600_000, cache_read_tokens=700_000, cache_write_5m_tokens=700_001)
    assert refused_field(MODEL, usage) == "cache_write_5m_tokens"


def test_cache_tokens_that_are_part_of_the_input_do_not_count_twice() -> None:
    """Some models report them so."""
    model = a_model(context_window_tokens=200_000, input_includes_cache_tokens=True)
    check_plausible(model, tokens(input_tokens=2_000_000, cache_read_tokens=2_000_000))
    usage = tokens(input_tokens=2_000_001, cache_read_tokens=1)
    assert refused_field(model, usage) == "input_tokens"


@pytest.mark.parametrize("label", ["premium", "standard", "economy"])
def test_the_built_in_models_take_every_true_record(label: str) -> None:
    """A full window and the longest answer pass; ten times as much is refused."""
    model = load_catalogue().model(label)
    true: dict[str, Any] = {"input_tokens": 10_000, "cache_read_tokens": 990_000}
    check_plausible(model, tokens(**true, output_tokens=128_000))
    assert refused_field(model, tokens(input_tokens=10**9)) == "input_tokens"
    assert refused_field(model, tokens(output_tokens=10**9)) == "output_tokens"


def test_a_model_without_stated_bounds_takes_the_largest_window_there_is() -> None:
    """The file's default applies."""
    check_plausible(a_model(), tokens(input_tokens=LARGEST_WINDOW))
