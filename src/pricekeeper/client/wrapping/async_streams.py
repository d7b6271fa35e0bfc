"""Streams of aiobotocore, metered to their end even if the caller abandons them.

A task of the connection's loop reads them, even after the client is closed. A loop that ends
cancels it; what `Keeper.close` can't wait for stays charged.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import weakref
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import aiohttp

from pricekeeper.bedrock import StreamUsage
from pricekeeper.client.threads import later, wait_until
from pricekeeper.client.wrapping.metered_call import MeteredCall
from pricekeeper.client.wrapping.streams import BYTES_MAX, SECS_MAX, MeteredResponse

TASKS_MAX: Final = 256
"""Abandoned streams read at once; further ones are not read."""

_tasks: set[asyncio.Task[None]] = set()
_open: dict[MeteredCall, asyncio.AbstractEventLoop] = {}
"""Each abandoned call's loop; changed without a lock."""


class ClientStreams:
    """The streams of one client, on its loop."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._open: weakref.WeakSet[MeteredAsyncRaw] = weakref.WeakSet()
        self._is_watching = False

    def add(self, raw: MeteredAsyncRaw, client: Any) -> None:
        self._open.add(raw)
        if self._is_watching or client is None:
            return
        self._is_watching = True
        http = client._endpoint.http_session  # noqa: SLF001 - there is no event for the end
        with contextlib.suppress(AttributeError):  # another version of aiobotocore
            sessions = list(http._sessions.values())  # noqa: SLF001
            # The last callback runs first: before the connections are closed.
            http._exit_stack.push_async_callback(self._survive, sessions)  # noqa: SLF001

    async def _survive(self, sessions: list[aiohttp.ClientSession]) -> None:
        """Keep a closing client's connections until its streams are read."""
        for raw in list(self._open):
            raw.leave()
        await asyncio.sleep(0)  # the tasks begin
        if not self.tasks:
            return
        connectors = [session.connector for session in sessions]
        for session in sessions:
            session.detach()
        closing = asyncio.create_task(self._close_after([one for one in connectors if one]))
        _tasks.add(closing)
        closing.add_done_callback(_tasks.discard)

    async def _close_after(self, connectors: list[aiohttp.BaseConnector]) -> None:
        tasks = set(self.tasks)
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await asyncio.wait(tasks)  # they were cancelled too, and end soon
            raise
        finally:
            for connector in connectors:
                await connector.close()


class MeteredAsyncRaw(MeteredResponse):
    """A response of aiohttp. A cancelled reader abandons it, too."""

    def __init__(
        self, raw: Any, call: MeteredCall, usage: StreamUsage, streams: ClientStreams
    ) -> None:
        self._bytes = _SkimmedBytes(raw, call, usage, streams)
        self._is_left = False
        super().__init__(raw, call, usage, self._bytes.read_on)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes; a task reads the rest if the reader is cancelled."""
        try:
            while chunk := await self._bytes.read():
                yield chunk
                if not self._abandon.alive:  # a task reads the rest
                    break
        except asyncio.CancelledError:
            self._abandon()
            raise
        except Exception:
            self._finish()
            raise
        self._finish()
        if self._is_left:
            raise aiohttp.ClientConnectionError("the client was closed before the stream's end")

    def leave(self) -> None:
        """Abandon a closed client's stream: the caller gets an error, not an end."""
        self._is_left = self._abandon.alive
        self._abandon()


class _SkimmedBytes:
    """The bytes of a response, copied to `StreamUsage` in order. Tasks may share it.

    The lock lets one task at a time read, as aiohttp requires; another may close the stream.
    """

    def __init__(
        self, raw: Any, call: MeteredCall, usage: StreamUsage, streams: ClientStreams
    ) -> None:
        self._raw = raw
        self._call = call
        self._usage = usage
        self._streams = streams
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def read(self) -> bytes:
        async with self._lock:
            chunk: bytes = await self._raw.content.readany()
            self._usage.feed(chunk)
            return chunk

    def read_on(self) -> None:
        """Read an abandoned stream. Any thread's finalizer may call it."""
        _open[self._call] = self._loop
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # the loop is closed, and so is the connection
            self._end()

    def _start(self) -> None:
        for one in [one for one, loop in list(_open.items()) if loop.is_closed()]:
            _open.pop(one, None)
        if len(_tasks) >= TASKS_MAX:
            self._end()
            return
        task = self._loop.create_task(self._drain())
        for tasks in (_tasks, self._streams.tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _drain(self) -> None:
        """Read a stream to its end, within the bounds, and settle."""
        try:
            await self._read_for(SECS_MAX)
        except asyncio.CancelledError:  # the loop is ending and waits for its tasks
            await self._read_for(min(SECS_MAX, self._call.deadline_secs))
            raise
        finally:
            self._end()

    async def _read_for(self, secs_max: float) -> None:
        # After any error, the usage known so far is settled.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(secs_max):
                while self._usage.size <= BYTES_MAX and await self.read():
                    pass

    def _end(self) -> None:
        # A task that is dropped with its loop ends in a finalizer, so the work is queued.
        later.put(partial(self._call.finish_stream, self._usage))
        _open.pop(self._call, None)
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._raw.close()


def meter_async_stream(
    stream: Any, call: MeteredCall, usage: StreamUsage, streams: ClientStreams, client: Any
) -> None:
    """Meter an event stream of aiobotocore."""
    metered = MeteredAsyncRaw(stream._raw_stream, call, usage, streams)  # noqa: SLF001 - there is no other way
    streams.add(metered, client)
    stream._raw_stream = metered  # noqa: SLF001
    stream._event_generator = _raw_events(metered)  # noqa: SLF001


def wait_for_tasks(secs: float) -> None:
    """Wait until running loops have read all abandoned streams; it blocks its thread."""
    wait_until(lambda: not _is_reading(), secs)


def replay_async(body: Any, data: bytes) -> Any:
    """A copy of the body that can be read from its beginning."""
    from aiobotocore.response import StreamingBody  # noqa: PLC0415 - loaded with the client

    return StreamingBody(_Replay(data, body._raw_stream), len(data))  # noqa: SLF001 - no other way


class _Replay:
    """A response that was read, with its bytes in memory."""

    def __init__(self, data: bytes, raw: Any) -> None:
        self._raw = raw
        self._data = io.BytesIO(data)
        self._size = len(data)

    @property
    def content(self) -> _Replay:
        return self

    async def read(self, size: int = -1) -> bytes:
        return self._data.read(size)

    def at_eof(self) -> bool:
        return self._data.tell() >= self._size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


async def _raw_events(raw: MeteredAsyncRaw) -> AsyncIterator[Any]:
    from botocore.eventstream import EventStreamBuffer  # noqa: PLC0415 - loaded with the client

    buffer = EventStreamBuffer()
    async for chunk in raw.chunks():
        buffer.add_data(chunk)
        for event in buffer:
            yield event


def _is_reading() -> bool:
    try:
        own = asyncio.get_running_loop()
    except RuntimeError:
        own = None
    return any(loop is not own and loop.is_running() for loop in list(_open.values()))
