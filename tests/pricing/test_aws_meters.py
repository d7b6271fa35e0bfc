"""What the usage types of AWS's price list charge for, and which are not plain tokens."""

import pytest

from pricekeeper.pricing.model_ids import RateScope
from pricekeeper.pricing.prices import Component, Variant
from pricekeeper.pricing.sources.aws_price_list import Meter, read_usage_type

IN, OUT = Component.INPUT, Component.OUTPUT
READ, W5M, W1H = Component.CACHE_READ, Component.CACHE_WRITE_5M, Component.CACHE_WRITE_1H
GLOBAL, REGIONAL = RateScope.GLOBAL, RateScope.REGIONAL
DEFAULT, BATCH, FLEX, PRIORITY = Variant.DEFAULT, Variant.BATCH, Variant.FLEX, Variant.PRIORITY


@pytest.mark.parametrize(
    ("usage_type", "name", "meter"),
    [
        ("USE1-MP:USE1_InputTokenCount-Units", "", Meter(IN)),
        ("EU-MP:EU_OutputTokenCount_Geo-Units", "", Meter(OUT)),
        ("USE1-MP:USE1_InputTokenCount_Global-Units", "", Meter(IN, scope=GLOBAL)),
        ("USE1-MP:USE1_InputTokenCount_Batch-Units", "", Meter(IN, BATCH)),
        ("USE1-MP:USE1_InputTokenCount_Global_Batch-Units", "", Meter(IN, BATCH, GLOBAL)),
        ("USE1-MP:USE1_InputTokenCount_LCtx-Units", "", Meter(IN, long_context=True)),
        ("USE1-MP:USE1_OutputTokenCount_LCtx_Global-Units", "", Meter(OUT, DEFAULT, GLOBAL, True)),
        ("USE1-MP:USE1_CacheReadInputTokenCount-Units", "", Meter(READ)),
        ("USE1-MP:USE1_CacheWriteInputTokenCount-Units", "", Meter(W5M)),
        ("USE1-MP:USE1_CacheWrite1hInputTokenCount_Global-Units", "", Meter(W1H, scope=GLOBAL)),
        ("USW2-MP:USW2_input_tokens_standard-Units", "", Meter(IN)),
        ("USW2-MP:USW2_output_tokens_global_standard-Units", "", Meter(OUT, scope=GLOBAL)),
        ("USW2-MP:USW2_input_tokens_batch-Units", "", Meter(IN, BATCH)),
        ("USW2-MP:USW2_cache_read_tokens_standard-Units", "", Meter(READ)),
        ("USW2-MP:USW2_cache_write_tokens_standard-Units", "", Meter(W5M)),
        ("USW2-MP:USW2_cache_write_tokens_5m_standard-Units", "", Meter(W5M)),
        ("USW2-MP:USW2_cache_write_tokens_1h_standard-Units", "", Meter(W1H)),
        ("USW2-MP:USW2_input_tokens_long_ctx_flex-Units", "", Meter(IN, FLEX, REGIONAL, True)),
        ("USE1-MP:input_tokens_priority-Units", "", Meter(IN, PRIORITY)),
        ("USE1-NovaPro-input-tokens", "NovaPro", Meter(IN)),
        ("USE1-NovaPro-cache-read-input-token-count", "NovaPro", Meter(READ)),
        ("USE1-NovaPro-cache-write-input-token-count", "NovaPro", Meter(W5M)),
        ("USE1-Llama4-Maverick-17B-output-tokens-batch", "Llama4-Maverick-17B", Meter(OUT, BATCH)),
        ("USE1-Nova2.0Lite-input-tokens-flex", "Nova2.0Lite", Meter(IN, FLEX)),
        ("USE1-Nova2.0Pro-text-input-tokens-priority-cross-region-global", "Nova2.0Pro",
         Meter(IN, PRIORITY, GLOBAL)),
        ("USE1-Nova2.0Lite-input-tokens-cross-region-global-batch", "Nova2.0Lite",
         Meter(IN, BATCH, GLOBAL)),
        ("USE1-Claude4Sonnet-cache-read-input-token-count-long-context-cross-region-global",
         "Claude4Sonnet", Meter(READ, DEFAULT, GLOBAL, True)),
        ("USE1-openai.gpt-oss-120b-mantle-input-tokens-standard", "openai.gpt-oss-120b", Meter(IN)),
        ("USE1-xai.grok-4.3-mantle-cache-read-tokens-flex", "xai.grok-4.3", Meter(READ, FLEX)),
        ("UGW1-openai.gpt-5.6-terra-mantle-input-tokens-long-ctx-standard", "openai.gpt-5.6-terra",
         Meter(IN, long_context=True)),
    ],
)  # fmt: skip
def test_a_meter_of_plain_tokens(usage_type: str, name: str, meter: Meter) -> None:
    """Each spelling tells kind, tier, scope and length."""
    assert read_usage_type(usage_type) == (name, meter)


@pytest.mark.parametrize(
    "usage_type",
    [
        "USE1-MP:USE1_InputTokenCount_LatencyOptimized-Units",
        "USE1-MP:USE1_Reserved_1Month_InputTPM_Geo-Units",
        "USE1-MP:USE1_ProvisionedThroughput_NoCommit_ModelUnits_Usage-Units",
        "USE1-MP:USE1_CacheWrite30mInputTokenCount-Units",
        "USE1-MP:USE1_cache_write_tokens_30m_standard-Units",
        "USE1-MP:USE1_input_tokens_1h_standard-Units",
        "USE1-MP:USE1_input_tokens_batch_flex-Units",
        "USE1-MP:USE1_input_tokens_something_new-Units",
        "USE1-MP:USE1_search_units-Units",
        "USE1-NovaPro-input-tokens-latency-optimized",
        "USE1-NovaPro-input-tokens-custom-model",
        "USE1-NovaPro-Customization-Training",
        "USE1-Nova2.0Omni-input-audio-token-count",
        "USE1-NovaSonic-speech-understanding-input-token",
        "EU-Claude4.5Sonnet-reserved-1-month-input-tokens-per-minute-cross-region-global",
        "USE1-openai.gpt-5.6-terra-mantle-cache-write-tokens-30m-standard",
        "USE1-NovaCanvas-T2I-1024-Standard",
        "",
    ],
)
def test_a_meter_of_something_else_is_not_read(usage_type: str) -> None:
    """A word that is not known is not skipped over: it may make another price of it."""
    assert read_usage_type(usage_type) is None


def test_a_word_before_the_meter_makes_another_name() -> None:
    """Speech, or a cache that AWS may rename, can't be taken for the model's plain tokens."""
    assert read_usage_type("USE1-NovaSonic-speech-input-tokens") == ("NovaSonic-speech", Meter(IN))
    odd = read_usage_type("USE1-Claude5-cache-write-1h-input-token-count")
    assert odd is not None
    assert odd[0] != "Claude5"
