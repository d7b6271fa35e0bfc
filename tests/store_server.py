"""A real server, and where its store is, so that a test can write into it from outside."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_fixtures import ENVIRONMENT, Api
from serving import Server, running_server


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def location(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{tmp_path_factory.mktemp('store')}/store.db"
    endpoint = request.getfixturevalue("dynoxide")
    prefix = f"outside-{uuid.uuid4().hex[:8]}-"
    return f"dynamodb://us-east-1?prefix={prefix}&endpoint={endpoint}"


@pytest.fixture(scope="module")
def server(location: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("server")
    with running_server(folder, environment=ENVIRONMENT, store=location) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: Server) -> Api:
    return Api(server.url)
