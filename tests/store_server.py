"""A real server, and where its store is, so that a test can write into it from outside."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from http_fixtures import ENVIRONMENT, Api, store_url
from serving import Server, running_server


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def location(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return store_url(request, request.param, tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def server(location: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("server")
    with running_server(folder, environment=ENVIRONMENT, store=location) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: Server) -> Api:
    return Api(server.url)
