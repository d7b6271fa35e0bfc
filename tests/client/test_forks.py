"""A keeper in programs that fork: parent and child continue, independently."""

import json

import pytest

from client.apps import Credentials, program
from client.money import COST_USD_MICROS, Money, money_of
from hanging_proxy import HangingProxy
from pricekeeper.client import Api
from tokens.conftest import MovableClock

BEGIN = """
import gc, json, multiprocessing, os, pathlib, sys, threading, warnings
import pricekeeper
warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads, from 3.12 on

keeper = pricekeeper.PriceKeeper()

def call(_=None):
    with keeper.call(1_000, 500) as call:
        call.used_tokens(1_000, 100)

def files():
    return sorted(path.name for path in keeper.engine.spool.folder.glob("*.spool"))

def in_child(work):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    work()
    gc.collect()
    sys.exit(0)
"""


@pytest.fixture
def clock() -> MovableClock:
    """The machine's own time, as the programs have it."""
    return MovableClock()


async def test_parent_and_child_both_go_on(app: Credentials, api: Api) -> None:
    source = """
call()
call()
before = files()
print(before == files(), len(before), flush=True)

def work():
    call()
    print(keeper.engine.pid == os.getpid(), len(files()), files() != before, flush=True)

print(in_child(work), flush=True)
for _ in range(20):
    call()
print(in_child(lambda: None), flush=True)  # its end frees objects of the parent
gc.collect()
call()
print(keeper.flush(), files() == before, flush=True)
"""
    with program(BEGIN + source, app) as running:
        lines = running.end()

    assert lines == ["True 1", "True 2 True", "0", "0", "0 True"]
    assert await money_of(api) == Money(24 * COST_USD_MICROS, 0)
    assert app.waiting() == 0


async def test_the_parents_connections_survive_the_end_of_the_child(
    app: Credentials, api: Api
) -> None:
    """Freeing a connection in the child must not remove it from the parent's epoll instance."""
    source = """
call()
keeper.flush()

def forget():
    global keeper
    keeper = None
    gc.collect()

for _ in range(3):
    assert in_child(forget) == 0
    assert in_child(lambda: None) == 0
    asked = threading.Thread(target=call, daemon=True)
    asked.start()
    asked.join(8)  # the deadline is 10 s
    print("hangs" if asked.is_alive() else "answers", flush=True)
print(keeper.flush())
"""
    with program(BEGIN + source, app) as running:
        assert running.end() == ["answers"] * 3 + ["0"]
    assert await money_of(api) == Money(4 * COST_USD_MICROS, 0)


async def test_what_waits_stays_the_parents(app: Credentials, api: Api, wire: HangingProxy) -> None:
    source = """
with keeper.call(1_000, 500) as one:
    print("inside", flush=True)
    sys.stdin.readline()
    one.used_tokens(1_000, 100)

def work():
    taken = keeper.engine.spool.adopt()
    print(taken, keeper.untold, len(files()), flush=True)

print(in_child(work), keeper.untold, flush=True)
sys.stdin.readline()
print(keeper.flush())
"""
    through = Credentials(wire.endpoint, app.client_id, app.client_secret, app.spool_dir)
    with program(BEGIN + source, through) as running:
        assert running.hear() == "inside"
        wire.hang()
        running.say("continue")
        assert [running.hear(), running.hear()] == ["0 0 2", "0 1"]
        assert through.waiting() == 1
        wire.go_on()
        running.say("continue")
        assert running.end() == ["0"]
    assert await money_of(api) == Money(COST_USD_MICROS, 0)


async def test_a_fork_in_the_middle_of_anothers_work(app: Credentials, api: Api) -> None:
    """Locks of other threads at that moment do not block the child."""
    source = """
over = threading.Event()

def work():
    while not over.is_set():
        call()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
print([in_child(call) for _ in range(10)], flush=True)
over.set()
for thread in threads:
    thread.join()
print(keeper.flush())
"""
    with program(BEGIN + source, app) as running:
        assert running.end() == [str([0] * 10), "0"]
    spent, held, unsettled = await money_of(api)
    assert (spent % COST_USD_MICROS, held, unsettled) == (0, 0, 0)
    assert spent >= 10 * COST_USD_MICROS


@pytest.mark.parametrize("method", ["fork", "forkserver"])
async def test_a_pool_of_processes(app: Credentials, api: Api, method: str) -> None:
    """Its workers end without cleanup; the parent reports what they leave."""
    (app.spool_dir.parent / "pooled.py").write_text(BEGIN)  # a worker may have to import it
    source = f"""
from pooled import *
call()
print(len(files()), flush=True)
with multiprocessing.get_context({method!r}).Pool(3) as pool:
    pool.map(call, range(30), chunksize=1)
print(keeper.flush())
"""
    with program(source, app, {"PYTHONPATH": str(app.spool_dir.parent)}) as running:
        assert running.end() == ["1", "0"]
    assert await money_of(api) == Money(31 * COST_USD_MICROS, 0)
    assert app.waiting() == 0


async def test_a_program_that_just_ends_has_told_everything(app: Credentials, api: Api) -> None:
    """No thread can be started while the interpreter ends."""
    source = """
for _ in range(3):
    call()
print(json.dumps(files()))
"""
    with program(BEGIN + source, app) as running:
        (listed,) = running.end()
    assert len(json.loads(listed)) == 1
    assert await money_of(api) == Money(3 * COST_USD_MICROS, 0)
    assert app.waiting() == 0
