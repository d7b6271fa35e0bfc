"""Stores that fail while a call is settled: it is tried again, and else it stays at its hold."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gateway.models import cost_of
from gateway.world import App, World, converse_body, directive
from pricekeeper.authorizations import Authorizations
from pricekeeper.errors import (
    ConflictError,
    OutcomeUnknownError,
    OverloadedError,
    PriceKeeperError,
    StoreUnavailableError,
    ThrottledError,
)
from pricekeeper.ledger.draft import Draft
from pricekeeper.ledger.log import OrgLog
from scraping import scrape, until


def unsettled(world: World) -> float:
    return scrape(world.api)["pricekeeper_gateway_unsettled_total"]


def failing(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: Callable[[], BaseException],
    *,
    times: int,
    is_applied: bool = False,
) -> list[int]:
    """Have the first attempts at a settlement fail, before or after they were applied."""
    original = getattr(Authorizations, name)
    attempts: list[int] = []

    async def fail(*arguments: Any, **options: Any) -> Any:
        attempts.append(1)
        if len(attempts) > times:
            return await original(*arguments, **options)
        if is_applied:
            await original(*arguments, **options)
        raise error()

    monkeypatch.setattr(Authorizations, name, fail)
    return attempts


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that take no time."""
    monkeypatch.setattr("pricekeeper.gateway.settling.PAUSE_MS", 1)
    monkeypatch.setattr("pricekeeper.gateway.settling.SECS_MAX", 0.2)


ERRORS: dict[str, Callable[[], BaseException]] = {
    "unavailable": lambda: StoreUnavailableError("it is not there"),
    "throttled": lambda: ThrottledError("slow down"),
    "unknown": lambda: OutcomeUnknownError("who knows"),
    "overloaded": OverloadedError,
    "timeout": TimeoutError,
}


@pytest.mark.parametrize("error", list(ERRORS))
@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_capture_that_fails_is_tried_again(
    world: World,
    app: App,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    error: str,
    is_applied: bool,
) -> None:
    """The caller has its answer; the call counts once, whether or not it was applied already."""
    attempts = failing(monkeypatch, "capture", ERRORS[error], times=3, is_applied=is_applied)
    reply = world.post(f"/model/premium/{operation}", converse_body(), app)
    assert reply.status == 200
    assert "x-pricekeeper-cost-usd-micros" not in reply.headers
    world.assert_equal(app)
    until(lambda: len(attempts) == 4)
    assert len(app.usage()) == 1


@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_capture_that_nobody_waits_for_is_tried_again(
    world: World, app: App, monkeypatch: pytest.MonkeyPatch, operation: str, times: int
) -> None:
    """An app's second call is answered before it is written what it costs, and counts."""
    assert world.converse(app).status == 200
    world.assert_equal(app)
    original, attempts = OrgLog.append, list[int]()

    async def fail(log: OrgLog, draft: Draft, *more: Any) -> None:
        if draft.outcomes:
            attempts.append(1)
            if len(attempts) <= times:
                raise StoreUnavailableError("it is not there")
        await original(log, draft, *more)

    monkeypatch.setattr(OrgLog, "append", fail)
    reply = world.post(f"/model/premium/{operation}", converse_body(), app)
    assert reply.status == 200
    if operation == "converse":
        cost = int(reply.headers["x-pricekeeper-cost-usd-micros"])
        assert cost == cost_of(world.ledger.entries[-1])
    until(lambda: len(attempts) == times + 1)
    world.assert_equal(app)
    assert len(app.usage()) == 2


def test_a_capture_that_nobody_waits_for_and_that_fails_is_unsettled(
    own_world: World, own_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has its answer, and the call is charged at its hold in the end."""
    assert own_world.converse(own_app).status == 200
    own_world.assert_equal(own_app)
    before, original = unsettled(own_world), OrgLog.append

    async def fail(log: OrgLog, draft: Draft, *more: Any) -> None:
        if draft.outcomes:
            raise StoreUnavailableError("it is not there")
        await original(log, draft, *more)

    with monkeypatch.context() as patched:
        patched.setattr(OrgLog, "append", fail)
        assert own_world.converse(own_app).status == 200
        until(lambda: unsettled(own_world) == before + 1)
    own_world.assert_unsettled(own_app)


def test_a_capture_that_fails_to_the_end_leaves_the_call_at_its_hold(
    own_world: World, own_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many attempts and no more; then it is counted as unsettled."""
    before = unsettled(own_world)
    attempts = failing(monkeypatch, "capture", ERRORS["unavailable"], times=99)
    assert own_world.converse(own_app).status == 200
    until(lambda: unsettled(own_world) == before + 1)
    assert len(attempts) == 6
    own_world.assert_unsettled(own_app)


def test_a_capture_that_is_refused_is_not_repeated(
    own_world: World, own_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not the store's fault stays at its hold, and the caller has its answer."""

    def refuse() -> PriceKeeperError:
        return ConflictError("usage", "makes no sense")

    attempts = failing(monkeypatch, "capture", refuse, times=99)
    assert own_world.converse(own_app).status == 200
    assert len(attempts) == 1
    own_world.assert_unsettled(own_app)


def test_an_answer_does_not_wait_for_a_store_that_hangs(
    world: World, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller would time out, call again and pay again."""
    original, begun = Authorizations.capture, []

    async def hang(*arguments: Any, **options: Any) -> Any:
        begun.append(1)
        if len(begun) == 1:
            await asyncio.Event().wait()
        return await original(*arguments, **options)

    monkeypatch.setattr(Authorizations, "capture", hang)
    assert world.converse(app).status == 200
    world.assert_equal(app)


@pytest.mark.parametrize("error", list(ERRORS))
def test_a_void_that_fails_is_tried_again_and_the_refusal_is_passed_on(
    world: World, app: App, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    attempts = failing(monkeypatch, "void", ERRORS[error], times=2)
    reply = world.converse(app, text=directive(fate="ThrottlingException"))
    assert reply.headers["x-amzn-errortype"] == "ThrottlingException"
    world.assert_equal(app)
    until(lambda: len(attempts) == 3)


def test_a_service_that_stops_settles_what_is_under_way(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that is put off is carried out before the store is closed."""
    monkeypatch.setattr("pricekeeper.gateway.settling.PAUSE_MS", 100)
    world = make_world()
    app = App(world.api).register()
    attempts = failing(monkeypatch, "capture", ERRORS["unavailable"], times=2)
    assert world.converse(app).status == 200
    until(lambda: len(attempts) >= 1)
    world.stop()
    assert len(attempts) == 3


def test_a_call_under_way_is_finished_when_the_service_stops(make_world: Any) -> None:
    """A stream whose caller has left, too: the server waits for what it has accepted."""
    world = make_world()
    app = App(world.api).register()
    reply: list[Any] = []
    body = converse_body(directive(delay_ms=400, output_tokens=9))
    thread = threading.Thread(
        target=lambda: reply.append(world.post("/model/premium/converse", body, app))
    )
    thread.start()
    assert world.ledger.wait_until(lambda entries: len(entries) == 1)
    world.stop()
    thread.join()
    assert reply[0].status == 200
    cost = int(reply[0].headers["x-pricekeeper-cost-usd-micros"])
    assert cost == cost_of(world.ledger.entries[0])
