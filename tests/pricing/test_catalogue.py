"""The models of a deployment, and whether a client's model is the label's."""

import pytest

from pricekeeper.errors import ModelMismatchError, UnknownModelLabelError
from pricing.conftest import a_catalogue, a_model

BASE = "anthropic.claude-sonnet-5-5"
ARN = "arn:aws:bedrock:us-east-1:111122223333:"
PROFILE = f"{ARN}application-inference-profile/abcd1234efgh"
PROVISIONED = f"{ARN}provisioned-model/abcd1234efgh"


@pytest.mark.parametrize(
    "reported",
    [
        f"us.{BASE}",
        f"eu.{BASE}",
        BASE,
        f"arn:aws:bedrock:us-east-1::foundation-model/{BASE}",
        f"{ARN}inference-profile/us.{BASE}",
        PROFILE,
    ],
)
def test_the_labels_model_in_any_spelling(reported: str) -> None:
    """A geographic prefix, an ARN of it, or an alias that the file lists is no contradiction."""
    a_model(bedrock_model_id=f"us.{BASE}", aliases=frozenset({PROFILE})).require(reported)


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        ("us.anthropic.claude-opus-5-5", "'premium' is anthropic.claude-sonnet-5-5, not anthropic"),
        (f"{BASE}-v1:0", "report the label of the model that was called"),
        (f"global.{BASE}", "has the regional rate of .* but the global one was called"),
        (f"{ARN}inference-profile/global.{BASE}", "give the other rate a label of its own"),
        (f"mx.{BASE}", "is anthropic.claude-sonnet-5-5, not mx.anthropic"),
        (PROFILE, "'bedrock application-inference-profile' does not say which model it is"),
        (PROVISIONED, "if it is us.anthropic.claude-sonnet-5-5, add it to the aliases"),
        ("something", "'no model id' does not say which model"),
        ("", "'no model id' does not say which model"),
    ],
)
def test_another_model_contradicts_the_label(reported: str, message: str) -> None:
    """Also the same model at another rate, and an id that does not say what it is."""
    model = a_model(bedrock_model_id=f"us.{BASE}")

    with pytest.raises(ModelMismatchError, match=message) as caught:
        model.require(reported)

    assert caught.value.field == "bedrock_model_id"
    assert caught.value.expected == f"us.{BASE}"
    assert caught.value.reported == reported


def test_a_global_label_is_not_the_regional_model() -> None:
    """Its rate is lower, so a regional call may not be charged by it."""
    with pytest.raises(ModelMismatchError, match="has the global rate"):
        a_model(bedrock_model_id=f"global.{BASE}").require(f"us.{BASE}")


def test_an_opaque_id_of_the_deployment_is_what_it_is_priced_as() -> None:
    """The file names the model of an application profile."""
    model = a_model(bedrock_model_id=PROFILE, priced_as=f"us.{BASE}")

    model.require(PROFILE)
    model.require(BASE)
    with pytest.raises(ModelMismatchError):
        model.require(f"global.{BASE}")


def test_a_catalogue_knows_its_labels_in_order() -> None:
    """And says them when it is asked for another."""
    first, second = a_model(label="premium"), a_model(label="economy")
    catalogue = a_catalogue(first, second)

    assert catalogue.labels == ("premium", "economy")
    assert list(catalogue) == [first, second]
    assert len(catalogue) == 2
    assert "premium" in catalogue
    assert "gold" not in catalogue
    assert catalogue.model("economy") is second
    with pytest.raises(UnknownModelLabelError, match="'gold' is not one of premium, economy") as no:
        catalogue.model("gold")
    assert no.value.valid_labels == ("premium", "economy")
