"""The shell around every operation: answers, logs and counts when something goes wrong."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from exchanges import Written, exchange
from pricekeeper.bootstrap import open_services
from pricekeeper.clock import ManualClock
from pricekeeper.concurrency.deadline import DEADLINES, Deadlines
from pricekeeper.errors import NotFoundError, PriceKeeperError, StoreUnavailableError
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.operation import Answer, Call, route
from pricekeeper.http.serving import AccessLog, Shell
from pricekeeper.limiter import Limiter
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.telemetry.logs import configure_logging
from pricekeeper.tokens import Principal
from pricekeeper.values import OrgId
from pricekeeper.wire.operation import Access, Operation
from scraping import read_samples

OTHER = Principal(
    org_id=OrgId("11111111-2222-4333-8444-555555555555"),
    app_id=None,
    client_id="org-11111111-2222-4333-8444-555555555555",
    scopes=frozenset(),
    session_id="session",
    token_id="token",
    issued_at_epoch=0,
    expires_at_epoch=0,
)


async def handler(call: Call) -> Answer:
    """Does what the path says."""
    match call.path["what"]:
        case "bug":
            raise ZeroDivisionError
        case "unavailable":
            raise StoreUnavailableError("10.0.0.1 refused the connection")
        case "missing":
            raise NotFoundError("x")
        case "not-yours":
            call.principal = OTHER
            raise NotFoundError("x")
        case "unspeakable":
            return Answer(200, object())
        case _:
            return Answer(200, {"fine": True})


def lifespan() -> AbstractAsyncContextManager[dict[str, Any]]:
    raise AssertionError("nothing but HTTP is asked here")


class Served:
    """The shell, with requests as a connection begins them."""

    def __init__(self, state: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        get = Operation("get", "GET", "/{what}", dict, Access.PUBLIC, "", limit="selection")
        put = Operation("put", "PUT", "/{what}", dict, Access.PUBLIC, "", body=dict)
        routes = [route(get, handler), route(put, handler)]
        self._shell = Shell(routes, lifespan, AccessLog(enabled=True))
        self._state = state
        self._capsys = capsys

    async def __call__(
        self, path: str, method: str = "GET", *, leaves: bool = False
    ) -> tuple[int, set[bytes], bytes] | None:
        """Status, header names and body of the answer; ``None`` without one."""
        transport, tasks = Written(), set[asyncio.Task[None]]()
        one = exchange(
            transport,
            method,
            tasks=tasks,
            path=path,
            raw_path=path.encode(),
            query_string=b"",
            headers=[(b"content-type", b"application/json"), (b"x-request-id", b"r-1")],
            client=("127.0.0.1", 1),
            state=self._state,
        )
        one.more_body = leaves
        self._shell.begin(one)
        if leaves:
            one.body += b'{"a"'
            one.give_up()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)  # the access log writes at the end of the loop's turn
        if not transport.writes:
            return None
        head, _, body = b"".join(transport.writes).partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        return int(first.split()[1]), {line.partition(b":")[0] for line in lines}, body

    def logged(self, event: str) -> list[dict[str, Any]]:
        """All lines of that event since the last call."""
        lines = [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]
        return [line for line in lines if line["event"] == event]

    def counted(self, name: str) -> float:
        metrics: Metrics = self._state["metrics"]
        return read_samples(metrics.render_exposition().decode()).get(name, 0)


@pytest.fixture
async def served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # other tests have their own
    configure_logging("info", for_good=False)
    settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path / "data")
    async with (
        open_services(settings, clock=ManualClock()) as services,
        Limiter(services.store, clock=services.clock) as limiter,
    ):
        limits, metrics = ApiLimits(limiter, {"selection": 600}), Metrics(services.meter)
        state = {"services": services, "api_limits": limits, "metrics": metrics}
        with closing(Deadlines(services.settings.request_deadline_ms)) as deadlines:
            yield Served({**state, DEADLINES: deadlines}, capsys)
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("path", "status", "code", "event"),
    [
        ("/bug", 500, PriceKeeperError.code, "unhandled"),
        ("/unspeakable", 500, PriceKeeperError.code, "unhandled"),
        ("/unavailable", 503, "STORE_UNAVAILABLE", "problem"),
    ],
)
async def test_our_own_faults_are_told_without_a_word_and_logged_whole(
    served: Served, path: str, status: int, code: str, event: str
) -> None:
    """A problem with the request's id; the log has the cause under that id."""
    answered, _, body = await served(path) or pytest.fail("no answer")
    problem = json.loads(body)
    (line,) = served.logged(event)

    assert (answered, problem["status"], problem["request_id"]) == (status, status, "r-1")
    assert "10.0.0.1" not in body.decode()
    assert line["request_id"] == "r-1"
    assert "Error" in line["exception"]
    assert served.counted(f'pricekeeper_problems_total{{code="{code}"}}') == 1


async def test_a_mistake_of_the_callers_is_no_line_in_the_log(served: Served) -> None:
    await served("/missing")
    assert served.logged("problem") == []
    assert served.counted('pricekeeper_problems_total{code="NOT_FOUND"}') == 1


async def test_what_is_left_of_a_limit_is_told_unless_it_could_tell_tenants_apart(
    served: Served,
) -> None:
    """Else headers would tell a missing resource from another tenant's."""
    for path in ("/fine", "/missing", "/bug"):
        _, names, _ = await served(path) or pytest.fail("no answer")
        assert b"ratelimit-remaining" in names
    _, names, _ = await served("/not-yours") or pytest.fail("no answer")
    assert not {name for name in names if name.startswith(b"ratelimit")}


async def test_who_leaves_before_the_body_has_come_is_noted_and_not_answered(
    served: Served,
) -> None:
    """As 499, in the log and the metrics."""
    assert await served("/fine", "PUT", leaves=True) is None
    (line,) = served.logged("request")
    assert (line["status"], line["route"]) == (499, "/{what}")
    counted = 'pricekeeper_request_seconds_count{method="PUT",route="/{what}",status="499"}'
    assert served.counted(counted) == 1
