"""Long bodies are judged in a process of its own, which may be killed at any time."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pricekeeper.bedrock.reading import Question, read_and_judge
from pricekeeper.client_ids import Client
from pricekeeper.gateway.errors import Refusal
from pricekeeper.gateway.measuring import Measuring
from pricekeeper.values import AppId, OrgId
from scraping import until

APP = Client(OrgId("org"), AppId("web"))
NEIGHBOUR = Client(OrgId("neighbour"), AppId("web"))
QUESTION = Question(None, is_signed=True)


@pytest.fixture
async def measuring() -> AsyncIterator[Measuring]:
    made = Measuring()
    try:
        yield made
    finally:
        await made.close()


def body_of(blocks: int) -> bytes:
    content = [{"text": f"block {number}"} for number in range(blocks)]
    more = {"inferenceConfig": {"maxTokens": 7}, "requestMetadata": {"team": "a"}}
    return json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode()


def pid_of(measuring: Measuring) -> int:
    assert measuring._judge is not None
    return measuring._judge._process.pid


def is_there(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def test_it_judges_as_this_process_does(measuring: Measuring) -> None:
    """What is held and what is sent on are the same, byte for byte."""
    for body in (body_of(1), body_of(5_000), b"[]", b'{"messages": 1}', b"\xff"):
        apart, here = await measuring.judge(APP, QUESTION, body), read_and_judge(QUESTION, body)
        assert (apart.refused, apart.content_sha256) == (here.refused, here.content_sha256)
        assert (apart.call is None) == (here.call is None)
        if apart.call is not None and here.call is not None:
            assert apart.call.bounds == here.call.bounds
            assert apart.call.encoded(5) == here.call.encoded(5)


async def test_a_judge_that_is_killed_is_replaced(measuring: Measuring) -> None:
    """Only the body that finds it dead gets a 503."""
    await measuring.judge(APP, QUESTION, body_of(1))
    os.kill(pid_of(measuring), signal.SIGKILL)
    with pytest.raises(Refusal) as refused:
        await measuring.judge(APP, QUESTION, body_of(1))
    assert refused.value.status == 503
    judged = await measuring.judge(APP, QUESTION, body_of(2))
    assert judged.call is not None


async def test_a_cancelled_request_leaves_no_answer_for_the_next(measuring: Measuring) -> None:
    """The process is replaced, because it may still answer the cancelled request."""
    await measuring.judge(APP, QUESTION, body_of(1))
    before = pid_of(measuring)
    asking = asyncio.create_task(measuring.judge(APP, QUESTION, body_of(20_000)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    judged = await measuring.judge(NEIGHBOUR, QUESTION, body_of(3))
    here = read_and_judge(QUESTION, body_of(3))
    assert judged.call is not None
    assert here.call is not None
    assert judged.call.bounds == here.call.bounds
    assert not is_there(before)


async def test_clients_take_turns(measuring: Measuring) -> None:
    """A neighbour's body waits for one of a client that sends many, and not for all of them."""
    ended: list[str] = []

    async def judge(client: Client, name: str) -> None:
        await measuring.judge(client, QUESTION, body_of(10))
        ended.append(name)

    flood = [asyncio.create_task(judge(APP, "flood")) for _ in range(8)]
    await asyncio.sleep(0)
    neighbour = asyncio.create_task(judge(NEIGHBOUR, "neighbour"))
    await asyncio.gather(*flood, neighbour)
    assert ended.index("neighbour") <= 2


async def test_it_ends_with_the_service(measuring: Measuring) -> None:
    await measuring.judge(APP, QUESTION, body_of(1))
    pid = pid_of(measuring)
    await measuring.close()
    assert not is_there(pid)


OWNER = """
import asyncio
from pricekeeper.bedrock.reading import Question
from pricekeeper.client_ids import Client
from pricekeeper.gateway.measuring import Measuring
from pricekeeper.values import AppId, OrgId

async def main():
    measuring = Measuring()
    await measuring.judge(Client("org", "web"), Question(None), b"{}")
    print(measuring._judge._process.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_it_ends_with_a_service_that_is_killed() -> None:
    """It reads the end of its socket."""
    command: list[Any] = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:  # noqa: S603
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_there(pid)
        owner.kill()
    until(lambda: not is_there(pid))
