"""Ids and names: what is one, and what is refused."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import InvalidValueError
from pricekeeper.values import new_request_id, parse_app_id, parse_model_label, parse_org_id

ORG = "550e8400-e29b-41d4-a716-446655440000"
PARSERS: list[Callable[[Any], str]] = [parse_org_id, parse_app_id, parse_model_label]


def test_an_organisation_is_a_uuid_in_lower_case() -> None:
    assert parse_org_id(ORG) == ORG
    assert parse_org_id(ORG.upper()) == ORG


@pytest.mark.parametrize(
    "text",
    [
        "",
        "acme",
        ORG.replace("-", ""),
        f"{{{ORG}}}",
        f"urn:uuid:{ORG}",
        f"{ORG}\n",
        f" {ORG}",
        ORG.replace("550e8400", "５５０e8400"),  # noqa: RUF001  # digits, but not of ASCII
        ORG.replace("5", "_", 1),
        None,
        550,
        ORG.encode(),
    ],
)
def test_other_spellings_of_a_uuid_are_refused(text: Any) -> None:
    """One organisation has one name, not the several that Python's parser would accept."""
    with pytest.raises(InvalidValueError, match="org_id: must be a UUID"):
        parse_org_id(text)


@pytest.mark.parametrize("text", ["a", "Billing.api_v2-eu", "0", "-", "x" * 64])
def test_an_app_is_a_short_plain_name(text: str) -> None:
    assert parse_app_id(text) == text


@pytest.mark.parametrize("text", ["", "x" * 65, "a b", "a#b", "a/b", "é", "a\n", None, 7])
def test_an_app_of_another_shape_is_refused(text: Any) -> None:
    with pytest.raises(InvalidValueError, match="app_id: must be 1 to 64"):
        parse_app_id(text)


@pytest.mark.parametrize("text", ["premium", "nova-1.5", "0", "x" * 64])
def test_a_model_label_is_a_short_lower_case_name(text: str) -> None:
    assert parse_model_label(text) == text


@pytest.mark.parametrize("text", ["", "Premium", "-a", ".a", "x" * 65, "a#b", "a\n", None])
def test_a_model_label_of_another_shape_is_refused(text: Any) -> None:
    """Upper case would make two labels that people read as one."""
    with pytest.raises(InvalidValueError, match="model_label: must be 1 to 64"):
        parse_model_label(text)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text() | st.from_regex(r"[a-z0-9#-]{1,40}"))
def test_no_id_reaches_into_another_key(parse: Callable[[Any], str], text: str) -> None:
    try:
        parsed = parse(text)
    except InvalidValueError:
        return
    assert "#" not in parsed
    assert parse(parsed) == parsed


def test_the_error_names_the_field_that_the_caller_used() -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_app_id("no good", field="parent.app")
    assert caught.value.field == "parent.app"
    assert str(caught.value).startswith("parent.app: ")


def test_a_new_request_id_has_its_time_in_it_and_is_never_the_same() -> None:
    made = {new_request_id(1_700_000_000_123) for _ in range(1_000)}
    assert len(made) == 1_000
    for text in made:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert parsed.int >> 80 == 1_700_000_000_123
