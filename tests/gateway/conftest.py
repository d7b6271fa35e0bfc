"""A service with a gateway to a stand-in, for each module; and worlds of a test's own."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.wire import Answer, Upstream, hang_up, running_upstream, sending, whole
from gateway.world import App, World, running_world
from http_fixtures import Reply
from pricekeeper.standin import Running, running

MakeWorld = Callable[..., World]
ScriptedWorld = Callable[..., AbstractContextManager[tuple[World, Upstream, App]]]
SentOn = Callable[..., tuple[Reply, Any]]


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty store of each kind, as the address that a service is started with."""
    if request.param == "sqlite-file":
        return f"sqlite:///{tmp_path_factory.mktemp('store')}/store.db"
    endpoint: str = request.getfixturevalue("dynoxide")
    return f"dynamodb://us-east-1?prefix=gateway-{uuid.uuid4().hex[:8]}-&endpoint={endpoint}"


@pytest.fixture(scope="module")
def module_standin() -> Iterator[Running]:
    with running() as standin:
        yield standin


@pytest.fixture(scope="module")
def module_world(
    module_standin: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_world(folder, module_standin.url, module_standin.ledger) as world:
        yield world


@pytest.fixture
def world(module_world: World) -> World:
    """A world whose stand-in has billed nothing yet."""
    module_world.ledger.clear()
    return module_world


@pytest.fixture
def app(world: World) -> App:
    """An app that has called nothing yet."""
    return App(world.api).register()


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    """Make worlds of this test's own, with another upstream or other settings."""
    with ExitStack() as opened:

        def make(upstream: str = "", **changes: Any) -> World:
            ledger = None
            if not upstream:
                standin = opened.enter_context(running())
                upstream, ledger = standin.url, standin.ledger
            return opened.enter_context(
                running_world(tmp_path / f"world-{len(list(tmp_path.iterdir()))}", upstream,
                              ledger, **changes)
            )  # fmt: skip

        yield make


@pytest.fixture(scope="module")
def module_own_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        running() as standin,
        running_world(tmp_path_factory.mktemp("own"), standin.url, standin.ledger) as world,
    ):
        yield world


@pytest.fixture
def own_world(module_own_world: World) -> World:
    """A world whose clock a test may set forward: it is ahead of ours from then on."""
    module_own_world.ledger.clear()
    return module_own_world


@pytest.fixture
def own_app(own_world: World) -> App:
    return App(own_world.api).register()


@pytest.fixture(scope="module")
def module_scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Upstream]]:
    with (
        running_upstream(lambda _, peer, __: hang_up(peer)) as upstream,
        running_world(tmp_path_factory.mktemp("scripted"), upstream.url) as world,
    ):
        yield world, upstream


@pytest.fixture
def scripted(module_scripted: tuple[World, Upstream]) -> ScriptedWorld:
    """A world and an app whose upstream answers as a test says; its clock may be set."""
    world, upstream = module_scripted

    @contextmanager
    def use(answer: Answer, **settings: Any) -> Iterator[tuple[World, Upstream, App]]:
        upstream.begin(answer)
        try:
            yield world, upstream, App(world.api).register(**settings)
        finally:
            upstream.end()

    return use


@pytest.fixture
def sent_on(scripted: ScriptedWorld) -> SentOn:
    """Make a call; returns the reply, and the body that Bedrock was sent."""

    def call(path: str, body: dict[str, Any], **settings: Any) -> tuple[Reply, Any]:
        with scripted(sending(whole(b"{}")), **settings) as (world, upstream, app):
            reply = world.post(path, body, app)
            assert reply.status == 200, reply.data
            return reply, upstream.requests[0].json

    return call
