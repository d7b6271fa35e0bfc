"""``kill -9`` of the app at any time: another process of it reports what it left, once."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from client.apps import Credentials, program
from client.conftest import Acme
from client.lossy_wire import LossyWire, lossy_wire
from client.money import COST_USD_MICROS, HELD_USD_MICROS, Money, money_of
from client.waiting import until
from hanging_proxy import HangingProxy
from pricekeeper.client import Api, wrap
from pricekeeper.client.spool import find_folder
from pricekeeper.standin import running
from tokens.conftest import MovableClock

ONE_CALL = """
import sys, pricekeeper
keeper = pricekeeper.PriceKeeper()
with keeper.call(1_000, 500) as call:
    print("answered", flush=True)
    sys.stdin.readline()
    call.used_tokens(1_000, 100)
print("appended", flush=True)
sys.stdin.readline()
"""
MANY_CALLS = """
import pricekeeper
keeper = pricekeeper.PriceKeeper()
while True:
    with keeper.call(1_000, 500) as call:
        call.used_tokens(1_000, 100)
    print(call.authorization.id, flush=True)
"""
FLUSH = """
import pricekeeper
with pricekeeper.PriceKeeper() as keeper:
    print(keeper.flush())
"""


@pytest.fixture
def clock() -> MovableClock:
    """The machine's own time, as the programs have it."""
    return MovableClock()


@pytest.fixture
def lossy(acme: Acme) -> Iterator[LossyWire]:
    with lossy_wire(acme.url) as wire:
        yield wire


def flush(app: Credentials) -> None:
    """Start another process of the app, which tells what it finds."""
    with program(FLUSH, app) as running_program:
        assert running_program.end() == ["0"]
    assert app.waiting() == 0


async def test_before_it_could_say_what_was_used(app: Credentials, api: Api, acme: Acme) -> None:
    """The hold is charged in the end, never zero."""
    with program(ONE_CALL, app) as running_program:
        assert running_program.hear() == "answered"
        running_program.kill()
    flush(app)
    assert await money_of(api) == Money(0, HELD_USD_MICROS)
    acme.clock.pass_ms(3_600_000)

    async def is_charged() -> bool:
        return await money_of(api) == Money(0, 0, HELD_USD_MICROS)

    await until(is_charged)


async def test_after_it_was_appended(app: Credentials, api: Api, wire: HangingProxy) -> None:
    through = replace(app, url=wire.endpoint)
    with program(ONE_CALL, through) as running_program:
        assert running_program.hear() == "answered"
        wire.hang()
        running_program.say("used")
        assert running_program.hear() == "appended"
        running_program.kill()
    assert through.waiting() == 1
    wire.go_on()
    flush(through)
    assert await money_of(api) == Money(COST_USD_MICROS, 0)


async def test_while_it_was_telling(app: Credentials, api: Api, lossy: LossyWire) -> None:
    """The service counted the report, and the process died before the answer."""
    through = replace(app, url=lossy.url)
    with program(ONE_CALL, through) as running_program:
        assert running_program.hear() == "answered"
        lossy.is_keeping = True
        lossy.lose("/captures")
        running_program.say("used")
        assert running_program.hear() == "appended"
        await until(lambda: lossy.lost == 1)
        assert await money_of(api) == Money(COST_USD_MICROS, 0)
        running_program.kill()
    assert through.waiting() == 1
    flush(through)
    assert lossy.asked("/captures") == 2
    assert await money_of(api) == Money(COST_USD_MICROS, 0)


async def test_at_any_moment(app: Credentials, api: Api) -> None:
    """Each finished call counts once; each kill leaves at most one hold."""
    moments = random.Random(14)
    over: list[str] = []
    for _ in range(5):
        with program(MANY_CALLS, app) as running_program:
            over += [running_program.hear() for _ in range(moments.randrange(1, 30))]
            running_program.kill()
    flush(app)

    spent, held, unsettled = await money_of(api)
    assert (held % HELD_USD_MICROS, unsettled) == (0, 0)
    assert held <= 5 * HELD_USD_MICROS
    counted = spent // COST_USD_MICROS
    assert (spent % COST_USD_MICROS, counted >= len(over)) == (0, True)
    for one in over:
        assert (await api.authorization(one))["status"] == "captured"


async def test_nothing_secret_is_in_the_files(
    app: Credentials, acme: Acme, wire: HangingProxy
) -> None:
    """No credentials, token or text of prompts and answers."""
    through = {"url": wire.endpoint, "deadline_ms": 500}
    with running() as bedrock, acme.blocking_keeper(**through) as keeper:
        client = boto3.client(
            "bedrock-runtime",
            endpoint_url=bedrock.url,
            aws_access_key_id="AKIDEXAMPLE",
            aws_secret_access_key="example-key",
        )
        asked = [{"role": "user", "content": [{"text": "the plan is a secret"}]}]
        wrap(client, keeper, tags={"team": "red"})
        allowed = keeper.authorize(1_000, 500)
        client.converse(modelId="auto", messages=asked)
        wire.hang()
        keeper.engine.settle(allowed, {"input_tokens": 1_000, "output_tokens": 100})
        written = all_bytes(find_folder(str(app.spool_dir), wire.endpoint, app.client_id))
        client.close()
        wire.go_on()
    assert allowed.id.encode() in written
    for secret in (app.client_secret.encode(), b"eyJ", b"the plan", b"example-key", b"lorem"):
        assert secret not in written


def all_bytes(folder: Path | None) -> bytes:
    assert folder is not None
    return b"".join(path.read_bytes() for path in folder.iterdir())
