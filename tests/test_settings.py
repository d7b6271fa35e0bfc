"""Settings: the environment, read once; a typo is told at start."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import SettingsError
from pricekeeper.settings import (
    MEMORY,
    PREFIX_DEFAULT,
    DynamoDbLocation,
    SqliteLocation,
    StoreLocation,
    parse_store_location,
    read_settings,
)

LOOPBACK = "http://127.0.0.1:8000"


def test_without_an_environment_there_is_a_file() -> None:
    """A newcomer gets an embedded store in the working directory."""
    assert read_settings({}).store == SqliteLocation("data/pricekeeper.db")


def test_the_store_is_chosen_by_one_variable() -> None:
    """PRICEKEEPER_STORE decides; other variables are not ours."""
    environment = {"PRICEKEEPER_STORE": "sqlite://:memory:", "HOME": "/nowhere"}

    assert read_settings(environment).store == SqliteLocation(MEMORY)


def test_settings_cannot_be_changed() -> None:
    """They are read once and then only handed around."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        read_settings({}).store = SqliteLocation("other.db")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("sqlite://:memory:", SqliteLocation(MEMORY)),
        ("sqlite:///relative/file.db", SqliteLocation("relative/file.db")),
        ("sqlite:////absolute/file.db", SqliteLocation("/absolute/file.db")),
        ("sqlite:///with%20space.db", SqliteLocation("with space.db")),
        ("sqlite:///what%3F.db", SqliteLocation("what?.db")),
        ("dynamodb://eu-central-1", DynamoDbLocation("eu-central-1", PREFIX_DEFAULT, None)),
        ("dynamodb://us-gov-west-1/", DynamoDbLocation("us-gov-west-1")),
        ("dynamodb://us-east-1?prefix=", DynamoDbLocation("us-east-1", "")),
        ("dynamodb://us-east-1?prefix=team-a.", DynamoDbLocation("us-east-1", "team-a.")),
        (
            f"dynamodb://us-east-1?prefix=t-&endpoint={LOOPBACK}/",
            DynamoDbLocation("us-east-1", "t-", LOOPBACK),
        ),
    ],
)
def test_a_store_is_named_by_a_url(url: str, location: StoreLocation) -> None:
    """Three slashes are a relative path, four an absolute one; options follow the region."""
    assert parse_store_location(url) == location


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is not a store"),
        ("pricekeeper.db", "is not a store"),
        ("SQLITE:///a.db", "is not a store"),
        ("postgres://host/db", "is not a store"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://file.db", "names no file"),
        ("sqlite:///file.db?mode=ro", "names no file"),
        ("sqlite:///a%00b", "names no file"),
        ("dynamodb://", "is not an AWS region"),
        ("dynamodb://nowhere", "is not an AWS region"),
        ("dynamodb://us-east-1/table", "is not an AWS region"),
        ("dynamodb://us-east-1?table=x", "unknown option 'table'"),
        ("dynamodb://us-east-1?prefix=a/b", "prefix may have"),
        (f"dynamodb://us-east-1?prefix={'x' * 101}", "prefix may have"),
        ("dynamodb://us-east-1?endpoint=localhost:8000", "is not an http"),
        ("dynamodb://us-east-1?endpoint=http://", "is not an http"),
        ("dynamodb://us-east-1?endpoint=", "is not an http"),
    ],
)
def test_a_typo_is_told_with_the_name_of_the_variable(url: str, message: str) -> None:
    """The message names the variable, so that an operator knows where to look."""
    with pytest.raises(SettingsError, match=message) as caught:
        parse_store_location(url)

    assert caught.value.setting == "PRICEKEEPER_STORE"


@given(
    scheme=st.sampled_from(["", "sqlite://", "dynamodb://", "dynamodb://us-east-1?endpoint="]),
    rest=st.text() | st.text(alphabet="[]:/?&=%#@.0aé"),
)
def test_any_text_is_a_store_or_a_settings_error(scheme: str, rest: str) -> None:
    """No spelling, however odd, ends in another error than ours."""
    try:
        location = parse_store_location(scheme + rest)
    except SettingsError:
        return
    assert isinstance(location, SqliteLocation | DynamoDbLocation)
