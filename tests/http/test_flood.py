"""One app floods the service with batches: it waits, and its neighbours do not.

Over real sockets, all at once, on both stores.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fault_proxy import FaultProxy
from http_fixtures import ENVIRONMENT, FORCED, Api, Reply, Tenant, dynamodb_url, usage
from pricekeeper.metering.committer import PENDING_MAX
from scraping import scrape
from serving import Server, running_server

BATCHES = 250
RECORDS = 100
NEIGHBOURS = 3
SHARE = PENDING_MAX // 2 // RECORDS
"""Batches of an organisation that is alone."""


def record() -> dict[str, Any]:
    """A record that costs a whole number of micro-dollars."""
    return usage(model_label="economy", input_tokens=1_000, output_tokens=0)


@dataclass
class Sender:
    """Requests of one tenant, each on its own connection, any number at once."""

    tenant: Tenant

    async def post(self, path: str, body: Any) -> Reply:
        return await self.ask("POST", f"{self.tenant.app}/{path}", json.dumps(body).encode())

    async def announce(self, path: str) -> Reply:
        """Send only the head of a request with a body."""
        return await self.ask("POST", f"{self.tenant.app}/{path}", declared_bytes=10_000)

    async def ask(
        self, method: str, path: str, data: bytes = b"", declared_bytes: int | None = None
    ) -> Reply:
        place = urlsplit(self.tenant.api.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.tenant.app_token}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {declared_bytes or len(data)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + data)
            answer = await reader.read()
        finally:
            writer.close()
        lines, _, body = answer.partition(b"\r\n\r\n")
        status, *fields = lines.decode().split("\r\n")
        headers = dict(field.lower().split(": ", 1) for field in fields)
        return Reply(int(status.split()[1]), headers, body)


def check_spent(tenant: Tenant, cost_usd_micros: int) -> None:
    """Ask until the sum includes all records; sums are cached for seconds."""
    until = time.monotonic() + 30
    spent = -1
    while spent < cost_usd_micros and time.monotonic() < until:
        reply = tenant.select(FORCED)
        assert reply.status == 200, reply.data
        spent = reply.json["quota_status"]["models_status"]["economy"]["spend_usd_micros"]
    assert spent == cost_usd_micros


async def test_a_flood_is_refused_and_its_neighbours_are_not(api: Api) -> None:
    """25,000 records at once: what does not fit is refused whole, with a retry time."""
    tenants = [Tenant(api).register() for _ in range(NEIGHBOURS + 1)]
    flood, *neighbours = (Sender(tenant) for tenant in tenants)
    bodies = [{"requests": [record() for _ in range(RECORDS)]} for _ in range(BATCHES)]
    sending = asyncio.gather(*(flood.post("usage/batch", body) for body in bodies))

    async def work(sender: Sender) -> list[Reply]:
        """Record call after call, and ask for health, during the flood."""
        replies = [await sender.post("usage", record())]
        while not sending.done():
            replies.append(await sender.post("usage", record()))
            health = await sender.ask("GET", "/healthz")
            assert health.status == 200
        return replies

    worked = await asyncio.gather(*(work(sender) for sender in neighbours))
    replies = await sending

    assert all(reply.status == 202 for answers in worked for reply in answers)
    assert all(len(answers) > 2 for answers in worked)
    assert {reply.status for reply in replies} <= {207, 503}
    for reply in replies:
        if reply.status == 503:
            assert reply.code == "STORE_UNAVAILABLE"
            assert int(reply.headers["retry-after"]) >= 1
        else:
            assert (reply.json["accepted"], reply.json["failed"]) == (RECORDS, 0)
    taken = [body for body, reply in zip(bodies, replies, strict=True) if reply.status == 207]
    refused = [body for body, reply in zip(bodies, replies, strict=True) if reply.status == 503]
    cost_usd_micros = worked[0][0].json["cost_usd_micros"]
    check_spent(flood.tenant, len(taken) * RECORDS * cost_usd_micros)

    for body in (*refused[:3], *taken[:3]):  # sent again when there is room
        again = await flood.post("usage/batch", body)
        assert again.status == 207
        outcomes = [again.json[name] for name in ("accepted", "duplicates", "failed")]
        assert outcomes == ([RECORDS, 0, 0] if body in refused else [0, RECORDS, 0])
    counted = (len(taken) + len(refused[:3])) * RECORDS
    check_spent(flood.tenant, counted * cost_usd_micros)


@asynccontextmanager
async def stuck_sqlite(folder: Path) -> AsyncIterator[tuple[Server, Callable[[], None]]]:
    """A server, and what locks its file for writing, as another process could, or unlocks it."""
    with running_server(folder, environment=ENVIRONMENT) as server:
        file = sqlite3.connect(folder / "store.db", isolation_level=None)

        def toggle() -> None:
            file.execute("ROLLBACK" if file.in_transaction else "BEGIN IMMEDIATE")

        try:
            yield server, toggle
        finally:
            file.close()


@asynccontextmanager
async def stuck_dynamodb(
    folder: Path, engine: str
) -> AsyncIterator[tuple[Server, Callable[[], None]]]:
    """A server, and what holds its writes on the wire, or lets them go."""
    open_ = asyncio.Event()
    open_.set()

    def toggle() -> None:
        if open_.is_set():
            open_.clear()
        else:
            open_.set()

    async with FaultProxy(engine) as proxy:
        for action in ("TransactWriteItems", "PutItem", "UpdateItem"):
            proxy.next(action, *[open_.wait] * 20_000)
        store = dynamodb_url(proxy.endpoint)
        running = running_server(folder, environment=ENVIRONMENT, store=store)
        server = await asyncio.to_thread(running.__enter__)
        try:
            yield server, toggle
        finally:
            open_.set()
            await asyncio.to_thread(running.__exit__, None, None, None)


@pytest.mark.parametrize("kind", ["sqlite-file", "dynoxide"])
async def test_a_share_that_is_full_refuses_at_once_and_the_rest_waits(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """With a stuck store, exactly what fits waits, and is counted when the store continues."""
    stuck = stuck_sqlite(tmp_path)
    if kind == "dynoxide":
        stuck = stuck_dynamodb(tmp_path, request.getfixturevalue("dynoxide"))
    async with stuck as (server, toggle):
        api = Api(server.url)
        tenants = [await asyncio.to_thread(Tenant(api).register) for _ in range(2)]
        flood, neighbour = (Sender(tenant) for tenant in tenants)
        for sender in (flood, neighbour):
            assert (await sender.post("usage", record())).status == 202
        toggle()
        bodies = [{"requests": [record() for _ in range(RECORDS)]} for _ in range(SHARE + 10)]
        waiting = {asyncio.create_task(flood.post("usage/batch", body)) for body in bodies}
        refused: list[Reply] = []
        while len(refused) < 10:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused += [task.result() for task in done]
        refused += [await flood.post("usage", record()), await flood.post("usage/batch", bodies[0])]
        refused.append(await flood.announce("usage/batch"))  # before the body has come
        for reply in refused:
            assert (reply.status, reply.code) == (503, "STORE_UNAVAILABLE")
            assert int(reply.headers["retry-after"]) >= 1
        assert len(waiting) == SHARE

        theirs = [
            asyncio.create_task(neighbour.post("usage", record())),
            asyncio.create_task(neighbour.post("usage/batch", {"requests": [record()] * 2})),
        ]
        assert (await neighbour.ask("GET", "/healthz")).status == 200
        toggle()
        counted = await asyncio.gather(*waiting)
        assert [reply.json["accepted"] for reply in counted] == [RECORDS] * SHARE
        assert [(await task).status for task in theirs] == [202, 207]
        metrics = await asyncio.to_thread(scrape, api)
        assert metrics['pricekeeper_problems_total{code="OVERLOADED"}'] == 13
        assert "Traceback" not in server.output()
