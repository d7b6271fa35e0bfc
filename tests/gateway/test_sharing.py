"""One client of the gateway holds its share of what is finite, and its neighbour is served."""

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.conftest import ScriptedWorld
from gateway.wire import PATIENCE_SECS, Caller, Received, Upstream, running_upstream, whole
from gateway.world import App, World, converse_body, running_world
from pricekeeper.bedrock.reading import SHORT_BODY_BYTES
from pricekeeper.gateway import planning, relay, sharing
from pricekeeper.gateway.counting import AT_ONCE_MAX
from pricekeeper.gateway.relay import BODIES_BYTES, LARGE_CALLS_MAX
from scraping import scrape, until

MEGABYTE = 1 << 20
PATH = "/model/premium/converse"
COUNT = "/model/premium/count-tokens"
USAGE = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12}
ANSWER = whole(json.dumps({"usage": USAGE}).encode())
BODY = converse_body(inferenceConfig={"maxTokens": 10})
SHORT_SECS = 0.05


class Thinking:
    """An upstream that answers a call once it may, or at once if the call says so."""

    def __init__(self, opened: ExitStack) -> None:
        self.may_answer = threading.Event()
        self.opened = opened

    def callers(
        self, world: World, app: App, count: int, path: str = PATH, body: Any = BODY
    ) -> list[Caller]:
        """So many connections, with a call on each."""
        made = [self.opened.enter_context(Caller(world)) for _ in range(count)]
        for caller in made:
            caller.send(app, path, body)
        return made

    def statuses(self, callers: list[Caller]) -> set[int]:
        """Answer all calls; returns what the callers get."""
        self.may_answer.set()
        return {status_of(caller.read_until(b"\r\n\r\n")) for caller in callers}

    def __call__(self, upstream: Upstream, peer: socket.socket, received: Received) -> None:
        if b"at once" not in received.body:
            while not self.may_answer.wait(0.05) and not upstream.over.is_set():
                pass
        peer.sendall(ANSWER)


@contextmanager
def thinking_world(folder: Path, **changes: Any) -> Iterator[tuple[World, Upstream, Thinking]]:
    """A world of a test's own whose model thinks until it may answer."""
    with (
        ExitStack() as opened,
        running_upstream(thinking := Thinking(opened)) as upstream,
        running_world(folder / "world", upstream.url, **changes) as world,
    ):
        try:
            yield world, upstream, thinking
        finally:
            thinking.may_answer.set()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "WAIT_SECS", SHORT_SECS)


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def freeze(world: World, app: App) -> None:
    assert (
        world.api.provision("PUT", f"{app.path}/freeze", {"reason": "it runs wild"}).status == 200
    )


def share_lines(world: World, app: App, of: str) -> dict[str, float]:
    """What the metrics say of the app's organisation, by the end of the family's name."""
    start, end = "pricekeeper_gateway_share_", f'{{of="{of}",org="Acme",org_id="{app.org_id}"}}'
    return {
        name.removeprefix(start).removesuffix(end): value
        for name, value in scrape(world.api).items()
        if name.startswith(start) and name.endswith(end)
    }


def share_of(world: World, family: str, app: App, of: str) -> float:
    return share_lines(world, app, of).get(family, 0)


@pytest.mark.parametrize("path", [PATH, COUNT, "/openai/v1/chat/completions"])
def test_a_frozen_app_is_refused_by_its_head(scripted: ScriptedWorld, path: str) -> None:
    """Before its body has come: reading and judging it costs the worker time."""
    with scripted(lambda _, __, ___: None) as (world, upstream, app):
        freeze(world, app)
        with Caller(world) as caller:
            caller.send(app, path, b"{", "x-more: 1")  # the rest of the body does not come
        with Caller(world) as caller:
            head = f"POST /bedrock{path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {app.pair}"
            caller.socket.sendall(f"{head}\r\ncontent-length: {20 * MEGABYTE}\r\n\r\n{{".encode())
            assert status_of(caller.read_until(b"\r\n\r\n")) == 403
    assert upstream.requests == []


def test_bytes_of_one_client_leave_room_for_another(tmp_path: Path) -> None:
    """Requests that are not whole hold the bytes they announce; their client waits for more."""
    with thinking_world(tmp_path, gateway_body_mb_max=1) as (world, _, thinking):
        thinking.may_answer.set()
        greedy, neighbour = App(world.api).register(), App(world.api).register()
        share = (BODIES_BYTES + LARGE_CALLS_MAX * MEGABYTE) // 3 // MEGABYTE
        head = f"POST /bedrock{PATH} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {greedy.pair}"
        announced = f"{head}\r\ncontent-length: {MEGABYTE}\r\n\r\n{{".encode()
        holding = [thinking.opened.enter_context(Caller(world)) for _ in range(share)]
        for caller in holding:
            caller.socket.sendall(announced)
        until(lambda: share_of(world, "used", greedy, "bytes") > (share - 1) * MEGABYTE)
        with Caller(world) as late:
            late.socket.sendall(announced)
            refused = late.read_until(b"\r\n\r\n")
        assert status_of(refused) == 503
        assert b"retry-after" in refused.lower()
        assert share_of(world, "waits_total", greedy, "bytes") >= 1
        assert share_of(world, "refusals_total", greedy, "bytes") >= 1
        assert world.post(PATH, BODY, neighbour).status == 200
        for caller in holding:
            caller.hang_up()
        until(lambda: share_of(world, "used", greedy, "bytes") == 0)
        assert world.post(PATH, BODY, greedy).status == 200


def test_bytes_that_were_sent_are_held_no_longer(tmp_path: Path) -> None:
    """While the model thinks, a client may have more bodies under way than its share of bytes."""
    with thinking_world(tmp_path, gateway_body_mb_max=1) as (world, upstream, thinking):
        app = App(world.api).register()
        share = (BODIES_BYTES + LARGE_CALLS_MAX * MEGABYTE) // 3 // MEGABYTE
        body, callers = converse_body("a" * (MEGABYTE - 200)), list[Caller]()
        for number in range(share + 5):
            callers += thinking.callers(world, app, 1, body=body)
            until(lambda count=number: len(upstream.requests) > count)  # type: ignore[misc]
        until(lambda: share_of(world, "used", app, "bytes") < MEGABYTE)
        assert share_of(world, "used", app, "calls") == len(callers)
        assert thinking.statuses(callers) == {200}
        until(lambda: share_of(world, "used", app, "calls") == 0)


def test_calls_under_way_of_one_client_leave_room_for_another(tmp_path: Path) -> None:
    """A call above the share waits for a moment, then it is refused, and nothing is held for it."""
    with thinking_world(tmp_path, connections_max=48) as (world, upstream, thinking):
        greedy, neighbour = App(world.api).register(), App(world.api).register()
        share = 48 * 3 // 4 // 3
        callers = thinking.callers(world, greedy, share)
        until(lambda: len(upstream.requests) == share)
        until(lambda: share_of(world, "used", greedy, "calls") == share)
        held = greedy.books().held
        refused = world.post(PATH, BODY, greedy)
        assert (refused.status, greedy.books().held) == (503, held)
        assert refused.headers["retry-after"] == "1"
        assert share_of(world, "refusals_total", greedy, "calls") == 1
        assert world.post(PATH, converse_body("at once"), neighbour).status == 200
        assert len(upstream.requests) == share + 1
        assert thinking.statuses(callers) == {200}
        assert world.post(PATH, BODY, greedy).status == 200


def test_a_call_that_waits_is_admitted_when_another_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who was frozen while it waited is refused."""
    monkeypatch.setattr(sharing, "WAIT_SECS", 60)
    with thinking_world(tmp_path, connections_max=48) as (world, upstream, thinking):
        app, share = App(world.api).register(), 12
        callers = thinking.callers(world, app, share)
        until(lambda: len(upstream.requests) == share)
        late = thinking.callers(world, app, 1)
        until(lambda: share_of(world, "waits_total", app, "calls") == 1)
        freeze(world, app)
        assert thinking.statuses(callers) == {200}
        assert thinking.statuses(late) == {403}
        assert len(upstream.requests) == share


def test_prompts_that_a_client_has_counted_are_bounded(tmp_path: Path) -> None:
    """Bedrock throttles CountTokens for the whole account, so no app may use it up."""
    body = {"input": {"converse": BODY}}
    with thinking_world(tmp_path) as (world, upstream, thinking):
        greedy, neighbour = App(world.api).register(), App(world.api).register()
        callers = thinking.callers(world, greedy, AT_ONCE_MAX, COUNT, body)
        until(lambda: len(upstream.requests) == AT_ONCE_MAX)
        refused = world.post(COUNT, body, greedy)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert "prompts counted at once" in refused.json["message"]
        assert share_of(world, "used", greedy, "counts") == AT_ONCE_MAX
        assert share_of(world, "refusals_total", greedy, "counts") == 1
        counted = {"input": {"converse": converse_body("at once")}}
        assert world.post(COUNT, counted, neighbour).status == 200
        assert thinking.statuses(callers) == {200}


def test_refusals_that_wait_give_their_connections_to_newcomers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every connection is taken by calls of a frozen app, whose refusals are spread over time."""
    monkeypatch.setattr(sharing, "REFUSALS_A_SEC", 1)
    connections = 16
    with thinking_world(tmp_path, connections_max=connections) as (world, _, thinking):
        thinking.may_answer.set()
        frozen, neighbour = App(world.api).register(), App(world.api).register()
        freeze(world, frozen)
        until(lambda: world.post(PATH, BODY, frozen).status == 403)
        thinking.callers(world, frozen, connections)
        assert world.post(PATH, BODY, neighbour).status == 200


def test_a_refusal_that_is_alone_does_not_wait(
    scripted: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only above a rate of their organisation do refusals wait."""
    monkeypatch.setattr(sharing, "REFUSALS_A_SEC", 1 / 3_600)
    monkeypatch.setattr(sharing, "PACED_SECS_MAX", 7_200)
    with scripted(lambda _, __, ___: None) as (world, _, first):
        for app in (first, App(world.api).register()):
            freeze(world, app)
            assert world.post(PATH, BODY, app).status == 403


def test_calls_that_wait_for_the_store_do_not_keep_a_neighbour_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One organisation's budgets may take seconds to open; turns are for processor time alone."""
    arrived = threading.Semaphore(0)

    async def authorize_late(services: Any, policy: Any, plan: Any) -> Any:
        if policy.org_id == stuck.org_id:
            arrived.release()
            await asyncio.to_thread(may_go_on.wait, PATIENCE_SECS)
        return await planning.authorize(services, policy, plan)

    with thinking_world(tmp_path) as (world, _, thinking):
        thinking.may_answer.set()
        may_go_on = threading.Event()
        stuck, neighbour = App(world.api).register(), App(world.api).register()
        monkeypatch.setattr(relay, "authorize", authorize_late)
        callers = thinking.callers(world, stuck, 40)
        for _ in callers:
            assert arrived.acquire(timeout=PATIENCE_SECS)
        assert world.post(PATH, BODY, neighbour).status == 200
        may_go_on.set()
        assert thinking.statuses(callers) == {200}


async def test_few_calls_are_planned_in_one_turn_of_the_event_loop() -> None:
    """And clients take turns, however many calls of one came first."""
    shared = sharing.Sharing(1_000, 1_000)
    loop_turn, turns = 0, []

    async def plan(org_id: str) -> None:
        policy: Any = SimpleNamespace(org_id=org_id, client_id=f"{org_id}-app")
        await shared.take_turn(policy)
        turns.append((loop_turn, org_id))

    flood = [asyncio.create_task(plan("flood")) for _ in range(100)]
    late = asyncio.create_task(plan("neighbour"))
    while not all(one.done() for one in (*flood, late)):
        await asyncio.sleep(0)
        loop_turn += 1
    by_turn = Counter(turn for turn, _ in turns)
    assert max(by_turn.values()) <= sharing.PLANNED_AT_ONCE
    assert [org for _, org in turns].index("neighbour") <= 2 * sharing.PLANNED_AT_ONCE


def test_long_bodies_are_counted_while_they_are_judged(world: World, app: App) -> None:
    """By organisation, so that a flood of them has a name."""
    long = converse_body("a" * (2 * SHORT_BODY_BYTES), inferenceConfig={"maxTokens": 10})
    assert share_lines(world, app, "judging") == {}
    assert world.post(PATH, long, app).status == 200
    assert share_lines(world, app, "judging") == {"used": 0, "waits_total": 0}


def test_a_long_body_that_finds_the_judge_busy_is_a_wait() -> None:
    policy: Any = SimpleNamespace(org_id="org", org_name="Acme", client_id="org-app")
    shared = sharing.Sharing(10, 10)
    line = ("Acme", "org", "judging")
    with sharing.CallShare(shared, policy).using(sharing.JUDGING, waits=True):
        assert (shared.meter.used[line], shared.meter.waits[line]) == (1, 1)
    assert (shared.meter.used[line], shared.meter.waits[line]) == (0, 1)
