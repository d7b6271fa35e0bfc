"""``watch``: the screen of a real organisation, on a store and against a service."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attribution import BY
from cli.conftest import MISSING_ORG, ORG, Cli
from cli.terminals import CTRL_C, hear_ctrl_c, in_a_terminal
from pricekeeper.bootstrap import Services, open_services
from pricekeeper.cli.local import LocalBackend
from pricekeeper.cli.terminal import make_console
from pricekeeper.cli.watch import frames
from pricekeeper.client import Api
from pricekeeper.clock import Clock, ManualClock
from pricekeeper.errors import InvalidValueError, PriceKeeperError, StoreUnavailableError
from pricekeeper.metering import Usage
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.tenants import Client
from pricekeeper.values import AppId, OrgId
from slowness import slow

LONG = "a-chat-with-an-id-that-is-long-enough-to-be-in-the-way-012345678"
DAY_MS = 86_400_000
QUOTAS = {"premium": 50_000_000, "standard": 20_000_000, "economy": 5_000_000}
SETTINGS = {
    "org_name": "Acme",
    "timezone": "Europe/Berlin",
    "quota_scope": "APP",
    "model_ordering": list(QUOTAS),
    "quotas": QUOTAS,
}
PER_MINUTE = {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60_000}


async def spend(services: Services, app_id: str, input_tokens: int) -> None:
    """Let an app use the premium model, and have that in the totals."""
    settings = {"app_name": "Chat", "rate_limits": {"*": {"rpm": PER_MINUTE}}}
    await services.credentials.provision(Client(OrgId(ORG)), SETTINGS, BY)
    policy = (
        await services.credentials.provision(Client(OrgId(ORG), AppId(app_id)), settings, BY)
    ).policy
    record = Usage(
        request_id=str(uuid.uuid4()),
        model_label="premium",
        input_tokens=input_tokens,
        output_tokens=0,
    )
    await services.metering.record(policy, record)
    await services.aggregator.run_once()


@dataclass
class Watched:
    """An organisation at work on a store, and a watch on it."""

    services: Services
    clock: ManualClock

    async def next_frame(self, watching: AsyncIterator[Any]) -> tuple[Any, str]:
        """The answer and the text of the frame that comes after two seconds."""
        coming = asyncio.ensure_future(anext(watching))
        for _ in range(10):  # until it waits for the clock
            await asyncio.sleep(0)
        self.clock.advance_ms(2_000)
        return read(await coming)

    def watch(self, place: Any = None) -> AsyncIterator[Any]:
        return frames(
            place or LocalBackend(self.services, has_pepper=False), ORG, self.clock, 2_000
        )


def read(outcome: Any) -> tuple[Any, str]:
    console = make_console()
    with console.capture() as drawn:
        console.print(outcome.picture, soft_wrap=True)
    return outcome.answer, drawn.get()


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.delenv("COLUMNS", raising=False)
    clock = ManualClock()
    settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path / "data")
    async with open_services(settings, clock=clock) as services:
        yield Watched(services, clock)


async def test_a_frame_has_spend_model_quotas_and_limits(watched: Watched) -> None:
    """Of each app that has spent something; what it says is what the service says."""
    await spend(watched.services, LONG, 5_000_000)
    answer, text = read(await anext(watched.watch()))
    assert answer["apps"][LONG]["models"]["premium"]["quota_pct"] == 44
    assert answer["apps"][LONG]["limits"]["premium"]["rpm"]["remaining"] == 60
    (row,) = [line for line in text.splitlines() if LONG in line]
    assert row.split()[1:4] == ["premium", "44", "%"]
    assert "$22.00" in row
    assert "rpm 60 of 60" in row
    assert ORG in text


async def test_apps_that_share_the_quotas_are_one_row(watched: Watched) -> None:
    """Whose model is the organisation's."""
    await spend(watched.services, "chat", 5_000_000)
    await watched.services.credentials.provision(
        Client(OrgId(ORG)), {**SETTINGS, "quota_scope": "ORG"}, BY
    )
    watched.clock.advance_ms(60_000)
    answer, text = read(await anext(watched.watch()))
    assert answer["apps"] == {}
    assert "all apps" in text


async def test_what_changes_is_told(watched: Watched) -> None:
    """A fallback, and at midnight the way back."""
    await spend(watched.services, "chat", 5_000_000)
    watching = watched.watch()
    assert "→" not in read(await anext(watching))[1]
    await spend(watched.services, "chat", 10_000_000)
    watched.clock.advance_ms(60_000)
    answer, text = await watched.next_frame(watching)
    assert answer["apps"]["chat"]["current_active_model"] == "standard"
    assert "premium → standard" in text
    watched.clock.advance_ms(DAY_MS)
    await spend(watched.services, "chat", 1_000)
    text = (await watched.next_frame(watching))[1]
    assert "quotas reset" in text
    assert "standard → premium" in text
    assert "premium → standard" in text, "earlier news stay"


class Failing:
    """A place whose next answer is an error."""

    def __init__(self, services: Services) -> None:
        self._local = LocalBackend(services, has_pepper=False)
        self.error: PriceKeeperError | None = None

    def reader(self, client: Client) -> Any:
        keeper = self._local.reader(client)
        usage = keeper.usage

        async def fail_or_ask(**more: Any) -> Any:
            error, self.error = self.error, None
            if error is not None:
                raise error
            return await usage(**more)

        keeper.usage = fail_or_ask  # type: ignore[method-assign,assignment]
        return keeper


async def test_a_store_that_does_not_answer_is_news_and_the_watch_goes_on(
    watched: Watched,
) -> None:
    """The last frame stays on the screen. Other errors end it, and so does a first one."""
    await spend(watched.services, "chat", 5_000_000)
    place = Failing(watched.services)
    place.error = StoreUnavailableError("away")
    with pytest.raises(StoreUnavailableError):
        await anext(watched.watch(place))
    watching = watched.watch(place)
    await anext(watching)
    place.error = StoreUnavailableError("no answer")
    for _ in range(2):
        answer, text = await watched.next_frame(watching)
        assert "no answer" in text
        assert "$22.00" in text
    assert "chat" in answer["apps"]
    place.error = InvalidValueError("org_id", "is wrong")
    with pytest.raises(InvalidValueError):
        await watched.next_frame(watching)


def fill(folder: Path, clock: Clock | None = None) -> None:
    """The store of the commands, with two apps that have spent."""
    settings = Settings(SqliteLocation(str(folder / "demo.db")), data_dir=folder / "data")

    async def main() -> None:
        async with open_services(settings, clock=clock) as services:
            for app_id in ("chat", LONG):
                await spend(services, app_id, 5_000_000)

    asyncio.run(main())


def test_the_store_and_a_service_say_the_same(service: Cli) -> None:
    """With the key, and without."""
    fill(service.folder)
    remote, local = service.ok("watch", ORG, "--once"), service.ok("watch", ORG, "--once", place=())
    assert list(remote["apps"]) == [LONG, "chat"]
    assert remote["apps"]["chat"]["models"] == local["apps"]["chat"]["models"]
    assert service("watch", MISSING_ORG, "--once").code == 3
    assert service("watch", MISSING_ORG, "--once", place=()).code == 3


def test_an_organisations_own_credentials_take_one_session(service: Cli) -> None:
    """However many apps there are: the organisation's own sessions are not to be evicted."""
    fill(service.folder)
    service.become(service.claim(service.ok("credentials", "rotate", ORG)))
    service.monkeypatch.delenv("PRICEKEEPER_PROVISIONING_KEY")
    opened: list[Api] = []
    begin = Api.__init__

    def count(keeper: Api, *arguments: Any, **more: Any) -> None:
        opened.append(keeper)
        begin(keeper, *arguments, **more)

    service.monkeypatch.setattr(Api, "__init__", count)
    assert len(service.ok("watch", ORG, "--once")["apps"]) == 2
    assert len(opened) == 1


@pytest.fixture
def environment(cli: Cli) -> Mapping[str, str]:
    fill(cli.folder)
    cli.monkeypatch.delenv("COLUMNS")
    return cli.environment


@pytest.mark.parametrize("columns", [80, *slow(50, 200)])
def test_a_screen_is_whole_and_ends_with_ctrl_c(
    environment: Mapping[str, str], columns: int
) -> None:
    """Ids and amounts are not broken, and there is nothing but the screen when it ends."""
    words = ("watch", ORG, "--every", "1")
    with in_a_terminal(*words, columns=columns, environment=environment) as terminal:
        terminal.read_until("rpm 60 of 60")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    for text in (ORG, LONG, "$22.00", "$44.00", "44 %"):
        assert text in terminal.printed
    assert "Traceback" not in terminal.printed


@pytest.mark.slow
def test_a_pipe_gets_one_frame_after_the_other(environment: Mapping[str, str]) -> None:
    """Without control codes, until it is interrupted."""
    process = subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-m", "pricekeeper", "watch", ORG, "--every", "1"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,  # noqa: PLW1509  # no threads are running
    )
    assert process.stdout is not None
    seen = ""
    while seen.count(ORG) < 2:
        line = process.stdout.readline()
        assert line, process.stderr
        seen += line
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, "\x1b" in seen, "Traceback" in told) == (130, False, False)
