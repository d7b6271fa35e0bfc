"""The stores that the contract is checked on, behind one fixture: all that there are."""

import uuid
from pathlib import Path

import pytest

from pricekeeper.settings import StoreLocation
from pricekeeper.storage import Key
from stores import STORES, clock, location_of, meter, store, table_prefix

__all__ = ["clock", "meter", "store", "table_prefix"]

ALL_STORES = (*STORES, pytest.param("dynamodb-local", marks=pytest.mark.slow))
"""The adapter's own tests run on DynamoDB Local in the quick suite, too."""


class Place:
    """Keys that no other test has used: the engine's tables outlive a test."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex

    def key(self, pk: str = "a", sk: str = "1") -> Key:
        return Key(f"{self.run}#{pk}", sk)

    def pk(self, pk: str = "a") -> str:
        return f"{self.run}#{pk}"


@pytest.fixture(params=ALL_STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> StoreLocation:
    return location_of(request.param, request, tmp_path, table_prefix)


@pytest.fixture
def at() -> Place:
    return Place()
