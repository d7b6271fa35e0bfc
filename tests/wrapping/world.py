"""The real service, a stand-in for Bedrock, and a program between them that is judged by both."""

import asyncio
import itertools
import json
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config

from pricekeeper import AsyncPriceKeeper, PriceKeeper, wrap
from pricekeeper.client import Admin
from pricekeeper.client.telling import VOID_UNKNOWN_MS
from pricekeeper.client.wrapping import async_streams, streams
from pricekeeper.standin import Ledger, Running
from scraping import until
from tokens.conftest import MovableClock
from wrapping.deployment import MODELS, bill_usd_micros

T = TypeVar("T")

APP = "chat"
HOLD_MS = 900_000
"""How long a call is held by default."""
PLENTY_USD_MICROS = 10**12
REGION = "us-east-1"
_numbers = itertools.count()


def run_apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a loop in its own thread: a test may have a loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


@dataclass
class World:
    """A service and a stand-in, which outlive a test."""

    url: str
    key: str
    clock: MovableClock
    standin: Running


@dataclass
class Books:
    """The state of a program's budget, in micro-dollars."""

    spent: int
    held: int
    unsettled: int


@dataclass
class Program:
    """An app with a budget of its own, and the clients that it has made."""

    world: World
    folder: Path
    limit_usd_micros: int = PLENTY_USD_MICROS
    app: dict[str, Any] = field(default_factory=dict)
    """More settings of the app."""
    org: dict[str, Any] = field(default_factory=dict)
    """Other settings of its organisation."""
    org_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    secret: str = ""
    _keeper: PriceKeeper | None = None
    _clients: list[Any] = field(default_factory=list)

    @property
    def client_id(self) -> str:
        return f"org-{self.org_id}-app-{APP}"

    @property
    def ledger(self) -> Ledger:
        return self.world.standin.ledger

    @property
    def keeper(self) -> PriceKeeper:
        if self._keeper is None:
            self._keeper = PriceKeeper(**self.credentials)
        return self._keeper

    @property
    def credentials(self) -> dict[str, Any]:
        return {
            "url": self.world.url,
            "client_id": self.client_id,
            "client_secret": self.secret,
            "spool_dir": self.folder,
            "clock": self.world.clock,
            "deadline_ms": 10_000,
        }

    def async_keeper(self) -> AsyncPriceKeeper:
        return AsyncPriceKeeper.beside(self.keeper)

    def register(self) -> None:
        """Make the organisation and the app."""
        run_apart(self._register)

    async def _register(self) -> None:
        org = {
            "org_name": "Acme",
            "timezone": "UTC",
            "quota_scope": "APP",
            "model_ordering": list(MODELS),
            "quotas": dict.fromkeys(MODELS, PLENTY_USD_MICROS),
            **self.org,
        }
        async with Admin(self.world.url, self.world.key, clock=self.world.clock) as admin:
            await admin.put_org(self.org_id, org)
            made = await admin.put_app(self.org_id, APP, self._app_body())
            claimed = await admin.claim(made["secret_retrieval"]["token"])
            self.secret = claimed["client_secret"]

    def _app_body(self) -> dict[str, Any]:
        budget = {"name": "all", "window": "MONTH", "limit_usd_micros": self.limit_usd_micros}
        return {"app_name": "Chat", "budgets": [budget], **self.app}

    def change(self, limit_usd_micros: int | None = None, **app: Any) -> None:
        """Give the app another budget, or other settings."""
        self.limit_usd_micros = limit_usd_micros or self.limit_usd_micros
        self.app = app

        async def put() -> None:
            async with Admin(self.world.url, self.world.key, clock=self.world.clock) as admin:
                await admin.put_app(self.org_id, APP, self._app_body())

        run_apart(put)

    def bare_client(self, **config: Any) -> Any:
        """A client of boto3's for the stand-in."""
        return self.made(self.client_arguments(Config(**config)))

    def made(self, arguments: dict[str, Any]) -> Any:
        """A client of boto3's that is closed with the program."""
        client = boto3.client("bedrock-runtime", **arguments)
        self._clients.append(client)
        return client

    def client_arguments(self, config: Config | None = None) -> dict[str, Any]:
        return {
            "region_name": REGION,
            "endpoint_url": self.world.standin.url,
            "aws_access_key_id": "AKIDEXAMPLE",
            "aws_secret_access_key": "example",
            "config": config,
        }

    def client(self, **options: Any) -> Any:
        """A wrapped client that tries once."""
        return self.retrying(1, **options)

    def retrying(self, attempts: int, read_timeout: float = 20, **options: Any) -> Any:
        """A wrapped client with so many attempts."""
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        client = self.bare_client(read_timeout=read_timeout, retries=retries)
        return wrap(client, self.keeper, **options)

    def books(self) -> Books:
        shown = self.keeper.budgets()["budgets"]
        found = next(one for one in shown if one["name"] == "all")
        names = ("spent_usd_micros", "held_usd_micros", "unsettled_usd_micros")
        return Books(*(found[name] for name in names))

    @property
    def bill(self) -> int:
        """The stand-in's bill, in micro-dollars."""
        return bill_usd_micros(self.ledger.entries)

    def attempts(self) -> int:
        return sum(self.ledger.attempts.values())

    def tell(self) -> None:
        """Report everything to the service."""
        streams.wait_for_threads(10)
        async_streams.wait_for_tasks(10)
        until(lambda: self.keeper.flush() == 0, lambda: f"{self.keeper.untold} are untold")

    def forget_unknown(self) -> None:
        """Let the time pass during which voids of unknown authorizations are repeated.

        Requests for them may still be on their way.
        """

        async def finish_cancelling() -> None:
            for _ in range(10):
                await asyncio.sleep(0)

        engine = self.keeper.engine
        engine.submit(finish_cancelling()).result(10)
        until(lambda: not self.keeper.untold or bool(engine._teller._unknown_since_ms))
        self.world.clock.pass_ms(VOID_UNKNOWN_MS + 1_000)

    def assert_exact(self) -> None:
        """The count equals the bill, to the micro-dollar; nothing is held or unsettled."""

        def is_exact() -> bool:
            self.tell()
            return self.books() == Books(self.bill, 0, 0)

        until(is_exact, lambda: f"{self.books()}, and the bill is {self.bill}")

    def assert_nothing(self) -> None:
        """Nothing was billed, and nothing is counted or held."""
        assert self.bill == 0
        self.assert_exact()

    def assert_marked(self, calls: int) -> None:
        """That many calls stay held, and are marked when they expire, at no less than the bill.

        Unmarked calls are at most the bill: the difference is in the marked ones.
        """
        self.tell()
        known = self.books()
        assert known.held > 0, f"{known}, and the bill is {self.bill}"
        self.world.clock.pass_ms(HOLD_MS + 1_000)
        until(lambda: self.books().held == 0, lambda: f"still held: {self.books()}")
        books = self.books()
        marked = self.keeper.authorizations(status="unsettled")["authorizations"]
        assert len(marked) == calls, f"{len(marked)} are marked, not {calls}"
        assert books.spent <= self.bill <= books.spent + books.unsettled, f"{books}, {self.bill}"

    def assert_unclaimed(self) -> None:
        """Nothing was billed; holds of requests without an answer are marked."""
        assert self.bill == 0
        assert self.books().spent == 0
        self.world.clock.pass_ms(HOLD_MS + 1_000)
        until(lambda: self.books().held == 0, lambda: f"still held: {self.books()}")

    def records(self) -> list[dict[str, Any]]:
        """The single usage records, the newest first."""
        found: list[dict[str, Any]] = self.keeper.usage_records()["records"]
        return found

    def use_keeper(self, **other: Any) -> None:
        """Use a keeper with other settings."""
        self._keeper = PriceKeeper(**{**self.credentials, **other})

    def forget_keeper(self) -> None:
        """Use another keeper, as another process would."""
        self._keeper = None

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        for client in self._clients:
            client.close()


MakeProgram = Callable[..., Program]


def directive(**script: Any) -> str:
    """A user's text that scripts the stand-in.

    No two are equal, because the stand-in counts how often it has met a text.
    """
    return f"Say {next(_numbers)}. [[standin {json.dumps(script)}]]"


def messages(text: str = "hello", /, **script: Any) -> list[dict[str, Any]]:
    """A conversation of Converse."""
    said = directive(**script) if script else text
    return [{"role": "user", "content": [{"text": said}]}]
