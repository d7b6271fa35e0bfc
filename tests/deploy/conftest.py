"""What is shipped for deploying, and an engine whose every request is seen."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fault_proxy import FaultProxy

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture
def prefix() -> str:
    """A prefix that the shipped policies allow, and under which there are no tables yet."""
    return f"pricekeeper-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
async def proxy(dynamodb_local: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(dynamodb_local) as proxy:
        yield proxy
