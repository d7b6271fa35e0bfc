"""Which model, and which of its two rates, an id of Bedrock's names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.pricing import ModelRef, OpaqueId, normalise_model_id
from pricekeeper.pricing.model_ids import RateScope

SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:us-east-1:111122223333:"


@pytest.mark.parametrize(
    "text",
    ["anthropic.claude-3-5-sonnet-20241022-v2:0", "anthropic.claude-opus-5-5", "openai.gpt-5.4",
     "amazon.nova-pro-v1:0", "meta.llama3-3-70b-instruct-v1:0", "mistral.mistral-7b-instruct-v0:2",
     "openai.gpt-oss-120b-1:0", "ai21.jamba-1-5-large-v1:0",
     "anthropic.claude-3-sonnet-20240229-v1:0:200k"],
)  # fmt: skip
def test_a_foundation_model_id_is_its_own_base(text: str) -> None:
    """Dots and colons inside it are part of the name."""
    assert normalise_model_id(text) == ModelRef(text)


@pytest.mark.parametrize("prefix", ["us", "eu", "apac", "au", "jp", "in", "us-gov"])
def test_a_geographic_prefix_bills_the_regional_rate(prefix: str) -> None:
    """The profile's id leads to the model, at the rate of the region that was called."""
    ref = normalise_model_id(f"{prefix}.{SONNET}")

    assert ref == ModelRef(SONNET, RateScope.REGIONAL, prefix)
    assert ref.same_rate(ModelRef(SONNET))


def test_the_global_prefix_has_a_rate_of_its_own() -> None:
    """The same model, but not the same price."""
    ref = normalise_model_id(f"global.{SONNET}")

    assert ref == ModelRef(SONNET, RateScope.GLOBAL)
    assert not ref.same_rate(ModelRef(SONNET))


@pytest.mark.parametrize("prefix", ["ca", "mx", "usa", "regional"])
def test_a_prefix_that_is_not_known_is_not_taken_off(prefix: str) -> None:
    """It contradicts every label, and the error says so; no price is guessed."""
    assert normalise_model_id(f"{prefix}.{SONNET}") == ModelRef(f"{prefix}.{SONNET}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"arn:aws:bedrock:us-east-1::foundation-model/{SONNET}", ModelRef(SONNET)),
        (f"arn:aws-us-gov:bedrock:us-gov-west-1::foundation-model/{SONNET}", ModelRef(SONNET)),
        (f"{ARN}inference-profile/eu.{SONNET}", ModelRef(SONNET, geography="eu")),
        (f"{ARN}inference-profile/global.{SONNET}", ModelRef(SONNET, RateScope.GLOBAL)),
    ],
)
def test_arns_that_name_a_model(text: str, expected: ModelRef) -> None:
    """Foundation models and Bedrock's own inference profiles carry the id."""
    assert normalise_model_id(text) == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{ARN}application-inference-profile/a1", "bedrock application-inference-profile"),
        (f"{ARN}provisioned-model/abcd1234efgh", "bedrock provisioned-model"),
        (f"{ARN}custom-model/amazon.nova-lite-v1:0/abcd1234efgh", "bedrock custom-model"),
        (f"{ARN}custom-model-deployment/abcd1234efgh", "bedrock custom-model-deployment"),
        (f"{ARN}imported-model/abcd1234efgh", "bedrock imported-model"),
        (f"{ARN}prompt/ABCDEF1234:1", "bedrock prompt"),
        (f"{ARN}prompt-router/abcd1234efgh", "bedrock prompt-router"),
        (f"{ARN}default-prompt-router/anthropic.claude:1", "bedrock default-prompt-router"),
        ("arn:aws:sagemaker:us-east-1:111122223333:endpoint/mine", "sagemaker endpoint"),
        ("abcd1234efgh", "no model id"),
        ("", "no model id"),
        (f"{SONNET}#x", "no model id"),
        (SONNET.upper(), "no model id"),
        (f"{SONNET}\n", "no model id"),
        ("anthropic." + "x" * 2048, "an overlong id"),
    ],
)
def test_everything_else_is_opaque(text: str, kind: str) -> None:
    """It may mean any model, so it means none until the file names one."""
    assert normalise_model_id(text) == OpaqueId(kind)


@given(st.text(max_size=60) | st.from_regex(r"(arn:aws:bedrock:)?[a-z0-9.:/-]{0,40}"))
def test_no_text_is_too_strange(text: str) -> None:
    """For any claim of a client, the answer is a model or none, and a base stays itself."""
    ref = normalise_model_id(text)
    if isinstance(ref, ModelRef) and not ref.geography and ref.scope is RateScope.REGIONAL:
        assert normalise_model_id(ref.base) == ref
