"""What identity costs, beside PyJWT verifying an HS256 token, in the same run.

Run it with ``make bench-identity``. PyJWT's HS256 is the yardstick because it is what a service
of this kind usually does for each request, and it does less: no revocation, no sessions, a
secret that every verifier must share. Everything is measured in alternating rounds and the
median of the rounds' ratios is reported, so that a busy neighbour disturbs both sides alike.

The store is SQLite in a file, fully synchronous; the clients of the logins are many, as are the
tasks, so that group commit has something to group.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt as pyjwt
import uvloop
from rich.console import Console
from rich.table import Table as RichTable

from pricekeeper.authority import DEPLOYMENT, Attribution
from pricekeeper.clock import SystemClock
from pricekeeper.credentials import Credentials, Pepper, Peppers
from pricekeeper.sessions import Sessions
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry.logs import configure_logging
from pricekeeper.tenants import Client, Tenants
from pricekeeper.tokens import Identity, Keys, TokenGrant
from pricekeeper.values import ModelLabel, OrgId

ROUNDS = 7
CLIENTS = 40
TASKS = 64
YARDSTICK_CALLS = 3_000
WARM_CALLS = 30_000
LOGINS = 400
ISSUER, AUDIENCE = "https://keeper.example", "pricekeeper"
BY = Attribution("bench", "local", "local", authority=DEPLOYMENT)

console = Console()


class Service:
    """The parts of an instance that identity is made of."""

    def __init__(self, store: Store, keys: Keys, clock: SystemClock) -> None:
        self.store = store
        self.keys = keys
        self.clock = clock
        self.tenants = Tenants(store, clock, [ModelLabel("premium")])
        peppers = Peppers(Pepper("v1", secrets.token_bytes(32)))
        self.credentials = Credentials(store, clock, self.tenants, peppers)
        self.sessions = Sessions(store, clock=clock, keys=keys)
        self.identity = self.fresh_identity()

    def fresh_identity(self) -> Identity:
        """One that has not seen any token yet."""
        return Identity(
            self.store,
            clock=self.clock,
            tenants=self.tenants,
            credentials=self.credentials,
            sessions=self.sessions,
            keys=self.keys,
            issuer=ISSUER,
            audience=AUDIENCE,
        )

    async def log_in(self, client_id: str, secret: str) -> TokenGrant:
        return await self.identity.login(await self.identity.authenticate(client_id, secret))

    async def register(self) -> tuple[str, str]:
        """Create an organisation; its id and secret."""
        body = {
            "org_name": "Bench",
            "timezone": "UTC",
            "quota_scope": "ORG",
            "model_ordering": ["premium"],
            "quotas": {"premium": 1},
        }
        client = Client(OrgId(str(uuid.uuid4())))
        made = await self.credentials.provision(client, body, BY)
        if made.retrieval is None:
            raise RuntimeError("a new organisation has a retrieval token")
        claimed = await self.credentials.claim(made.retrieval.token.reveal(), BY)
        return claimed.client_id, claimed.client_secret.reveal()


class Yardstick:
    """PyJWT, one HS256 token with the same claims, one key."""

    def __init__(self, claims: dict[str, Any]) -> None:
        self._key = secrets.token_bytes(32)
        self._token = pyjwt.encode(claims, self._key, algorithm="HS256")

    def per_second(self) -> float:
        started = time.perf_counter()
        for _ in range(YARDSTICK_CALLS):
            pyjwt.decode(
                self._token, self._key, algorithms=["HS256"], audience=AUDIENCE, issuer=ISSUER
            )
        return YARDSTICK_CALLS / (time.perf_counter() - started)


async def warm_per_second(service: Service, tokens: list[str]) -> float:
    for token in tokens:
        await service.identity.validate(token)
    started = time.perf_counter()
    for token in itertools.islice(itertools.cycle(tokens), WARM_CALLS):
        await service.identity.validate(token)
    return WARM_CALLS / (time.perf_counter() - started)


async def cold_per_second(service: Service, tokens: list[str]) -> float:
    """Each token for the first time: its signature, its validity; its client is known."""
    identity = service.fresh_identity()
    started = time.perf_counter()
    for token in tokens:
        await identity.validate(token)
    return len(tokens) / (time.perf_counter() - started)


async def logins_per_second(service: Service, members: list[tuple[str, str]]) -> float:
    waiting = itertools.islice(itertools.cycle(members), LOGINS)

    async def work() -> None:
        for client_id, secret in waiting:
            await service.log_in(client_id, secret)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(TASKS)))
    return LOGINS / (time.perf_counter() - started)


async def refreshes_per_second(service: Service, refresh_tokens: list[str]) -> float:
    started = time.perf_counter()
    grants = await asyncio.gather(*(service.identity.refresh(token) for token in refresh_tokens))
    took = time.perf_counter() - started
    refresh_tokens[:] = [grant.refresh_token for grant in grants]
    return len(refresh_tokens) / took


async def measure(folder: Path) -> None:
    clock = SystemClock()
    store = await open_store(SqliteLocation(str(folder / "bench.db")), clock=clock)
    await store.create_tables()
    service = Service(store, Keys.in_file(folder / "keys.json", clock), clock)
    members = [await service.register() for _ in range(CLIENTS)]
    users = [await service.register() for _ in range(CLIENTS)]
    grants = [await service.log_in(*user) for user in users for _ in range(5)]
    tokens = [grant.access_token for grant in grants]
    refresh_tokens = [grant.refresh_token for grant in grants]
    claims = pyjwt.decode(tokens[0], options={"verify_signature": False})
    yardstick = Yardstick(claims)
    lone = [await service.register()]

    rows: list[tuple[str, Callable[[], Awaitable[float]]]] = [
        ("validation, warm", lambda: warm_per_second(service, tokens)),
        ("validation, cold", lambda: cold_per_second(service, tokens)),
        (f"login, {CLIENTS} clients at the limit", lambda: logins_per_second(service, members)),
        ("login, one client at the limit", lambda: logins_per_second(service, lone)),
        ("refresh", lambda: refreshes_per_second(service, refresh_tokens)),
    ]
    for _, once in rows:
        await once()  # fills caches, and every client's sessions up to the limit
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in rows}
    for _ in range(ROUNDS):
        for name, once in rows:
            figures[name].append((await once(), yardstick.per_second()))
    await store.close()
    show(figures)


def show(figures: dict[str, list[tuple[float, float]]]) -> None:
    table = RichTable(title=f"Identity, median of {ROUNDS} rounds")
    for column in ("what", "a second", "us each", "times PyJWT HS256"):
        table.add_column(column, justify="left" if column == "what" else "right")
    base = statistics.median(yard for rounds in figures.values() for _, yard in rounds)
    table.add_row("PyJWT HS256 verification alone", f"{base:,.0f}", f"{1e6 / base:.1f}", "1.00")
    for name, rounds in figures.items():
        rate = statistics.median(mine for mine, _ in rounds)
        ratio = statistics.median(mine / yard for mine, yard in rounds)
        table.add_row(name, f"{rate:,.0f}", f"{1e6 / rate:.1f}", f"{ratio:.2f}")
    console.print(table)


def main() -> None:
    configure_logging("warning")
    with tempfile.TemporaryDirectory(prefix="pricekeeper-bench-") as folder:
        uvloop.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
