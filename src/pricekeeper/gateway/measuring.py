"""Judges long bodies in a process of their own, one at a time; clients take turns.

A long body can take half a second. In this process, Python's lock would make every other call wait.
The process starts with the first long body, and again after a body that ended it.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Final

import msgspec

from pricekeeper.bedrock.reading import ANSWERED, ASKED, Bytes, Judged, Question, take_over
from pricekeeper.client_ids import Client
from pricekeeper.concurrency import FairSlots
from pricekeeper.gateway.errors import unavailable

ANSWER_SECS_MAX: Final = 30
END_SECS_MAX: Final = 5
BUFFER_BYTES: Final = 1 << 20
_FAILURES: Final = (OSError, EOFError, TimeoutError)
_encode: Final = msgspec.msgpack.Encoder().encode


class _Judge:
    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self._process = process
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def start(cls) -> _Judge:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "pricekeeper.bedrock.reading", str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,  # the service handles ctrl-c
            )
        return cls(ours, process)

    async def ask(self, question: Question, body: Bytes) -> Judged:
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._ours, limit=BUFFER_BYTES)
        reader, writer = self._streams
        asked = _encode(question)
        async with asyncio.timeout(ANSWER_SECS_MAX):
            writer.write(ASKED.pack(len(asked), len(body)) + asked)
            writer.write(body)
            await writer.drain()
            (length,) = ANSWERED.unpack(await reader.readexactly(ANSWERED.size))
            return take_over(await reader.readexactly(length))

    def kill(self) -> None:
        self._disconnect()
        self._process.kill()
        self._process.wait()

    async def end(self) -> None:
        self._disconnect()
        try:
            await asyncio.to_thread(self._process.wait, END_SECS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def _disconnect(self) -> None:
        if self._streams is None:
            self._ours.close()
        else:
            self._streams[1].close()


class Measuring:
    """Judges the bodies of one gateway."""

    def __init__(self) -> None:
        self._turns = FairSlots(1)
        self._judge: _Judge | None = None
        self.is_busy = False

    async def judge(self, client: Client, question: Question, body: Bytes) -> Judged:
        """Judge a long body when it is the client's turn; raises `Refusal` if the process fails."""
        await self._turns.acquire(client.org_id, client.client_id)
        self.is_busy = True
        judge, self._judge = self._judge, None
        try:
            if judge is None:
                judge = await asyncio.to_thread(_Judge.start)
            judged = await judge.ask(question, body)
        except BaseException as error:
            if judge is not None:  # it may still be at work
                judge.kill()
            if isinstance(error, _FAILURES):
                raise unavailable("the body could not be read; try again") from error
            raise
        else:
            self._judge = judge
            return judged
        finally:
            self.is_busy = False
            self._turns.release()

    async def close(self) -> None:
        judge, self._judge = self._judge, None
        if judge is not None:
            await judge.end()
