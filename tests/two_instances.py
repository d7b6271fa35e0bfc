"""Two instances of the service on one store, over their sockets, and a clock that a test moves."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from http_fixtures import KEY, Api
from pricekeeper.cli.demo import demo_settings
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.testing.serving import running_service
from tokens.conftest import MovableClock

HALF_A_MINUTE_MS = 30_000


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def instances(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Api, Api, MovableClock]]:
    folder: Path = tmp_path_factory.mktemp("elsewhere")
    settings = replace(
        demo_settings(folder),
        provisioning_key=KEY,
        api_limits_per_minute={},
        aggregator_interval_secs=0,
    )
    if request.param == "dynoxide":
        endpoint: str = request.getfixturevalue("dynoxide")
        prefix = f"elsewhere-{uuid.uuid4().hex[:8]}-"
        settings = replace(settings, store=DynamoDbLocation("us-east-1", prefix, endpoint))
    clock = MovableClock()
    with ExitStack() as running:
        here, there = (
            Api(running.enter_context(running_service(settings, clock))) for _ in range(2)
        )
        yield here, there, clock
