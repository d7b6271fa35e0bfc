"""Streams of botocore, metered to their end whatever the caller does with them.

The caller keeps the event stream that botocore made; what changes is where its bytes come from.
They pass through `MeteredRaw`, which skims a copy. A stream that is closed, or forgotten, before
its end is read on by a background thread, because Bedrock bills it to its end: within bounds, and
beyond them what is held for it stays charged.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from pricekeeper.bedrock import StreamUsage
from pricekeeper.client.wrapping.later import later
from pricekeeper.client.wrapping.metered_call import MeteredCall

THREADS_MAX: Final = 16
"""How many abandoned streams are read on at once."""
WAITING_MAX: Final = 256
"""How many wait for that; further ones are not read on."""
SECS_MAX: Final = 120
BYTES_MAX: Final = 64 << 20


class MeteredRaw:
    """The bytes of one response, as urllib3 hands them out."""

    def __init__(self, raw: Any, call: MeteredCall, usage: StreamUsage) -> None:
        self._raw = raw
        self._call = call
        self._usage = usage
        # One generator for the caller and for who reads on: urllib3 closes the connection when a
        # generator of it is dropped before its end.
        self._chunks: Iterator[bytes] = _Skimmed(raw.stream(), usage)
        # Reached by `close`, or when the last reference to the stream is gone.
        self._abandon = weakref.finalize(self, drainer.take, raw, self._chunks, call, usage)
        self._abandon.atexit = False

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        """The bytes to the end, or to where the stream was closed."""
        try:
            for chunk in self._chunks:
                yield chunk
                if not self._abandon.alive:  # what is left is read by another thread
                    return
        except Exception:
            self._finish()
            raise
        self._finish()

    def close(self) -> None:
        """Let the caller go; the stream is read on."""
        self._abandon()

    def shutdown(self) -> None:
        """The same; urllib3's own would end the connection."""
        self._abandon()

    @property
    def connection(self) -> None:
        """None, as of a response that was read: a caller must not end what is read on."""

    def _finish(self) -> None:
        if self._abandon.detach() is not None:  # not one that was closed meanwhile
            self._call.finish_stream(self._usage.usage())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Skimmed:
    """The chunks of a response, skimmed in their order. Threads may share it.

    A stream may be closed by one thread while another waits for its next bytes. Who reads on waits
    for that one, because a generator is run by one thread at a time.
    """

    def __init__(self, chunks: Iterator[bytes], usage: StreamUsage) -> None:
        self._chunks = chunks
        self._usage = usage
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            chunk = next(self._chunks)
            self._usage.feed(chunk)
            return chunk


class Drainer:
    """Background threads that read abandoned streams to their end."""

    def __init__(self) -> None:
        self._threads = 0
        self._begin()

    def ready(self) -> None:
        """Have at least one thread, before there is anything to do for it."""
        with self._lock:
            if self._threads:
                return
            self._threads = 1
        self._start()

    def take(
        self, raw: Any, chunks: Iterator[bytes], call: MeteredCall, usage: StreamUsage
    ) -> None:
        """Read a stream on that nobody reads any more. It takes no lock, for finalizers."""
        if self._waiting.qsize() < WAITING_MAX:
            self._open.append(None)
            self._waiting.put((raw, chunks, call, usage))
        else:
            later.put(partial(_end, raw, call, usage))

    def wait(self, secs: float) -> None:
        """Wait until nothing is left to read, for at most that long."""
        ends_at = time.monotonic() + secs
        while time.monotonic() < ends_at and (self._open or not later.is_idle):
            time.sleep(0.01)

    def _begin(self) -> None:
        """Begin anew in a forked child, which has none of the threads."""
        self._waiting: queue.SimpleQueue[tuple[Any, Iterator[bytes], MeteredCall, StreamUsage]] = (
            queue.SimpleQueue()
        )
        self._open: deque[None] = deque()
        """One for each stream that is not done; a deque is changed without a lock."""
        self._lock = threading.Lock()
        self._threads = 0

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="pricekeeper-drain", daemon=True).start()

    def _serve(self) -> None:
        while True:
            item = self._waiting.get()
            with self._lock:
                more = bool(self._waiting.qsize()) and self._threads < THREADS_MAX
                self._threads += more
            if more:
                self._start()
            _drain(*item)
            del item
            self._open.popleft()


def meter_stream(stream: Any, call: MeteredCall, usage: StreamUsage) -> None:
    """Have an event stream of botocore metered."""
    drainer.ready()
    metered = MeteredRaw(stream._raw_stream, call, usage)  # noqa: SLF001 - botocore has no other way
    stream._raw_stream = metered  # noqa: SLF001
    # botocore's own generator holds the stream itself, so that a forgotten one is freed late.
    stream._event_generator = _raw_events(metered)  # noqa: SLF001


def _raw_events(raw: MeteredRaw) -> Iterator[Any]:
    from botocore.eventstream import EventStreamBuffer  # noqa: PLC0415 - loaded with the client

    buffer = EventStreamBuffer()
    for chunk in raw.stream():
        buffer.add_data(chunk)
        yield from buffer


def _drain(raw: Any, chunks: Iterator[bytes], call: MeteredCall, usage: StreamUsage) -> None:
    """Read a stream to its end, within the bounds, and settle the call."""
    ends_at = time.monotonic() + SECS_MAX
    # Whatever ends it: what is known by then is settled.
    with contextlib.suppress(Exception):
        while (left_secs := ends_at - time.monotonic()) > 0 and usage.size <= BYTES_MAX:
            _limit_wait(raw, left_secs)
            if next(chunks, None) is None:
                break
    with contextlib.suppress(Exception):
        _end(raw, call, usage)


def _limit_wait(raw: Any, secs: float) -> None:
    """Have the next read end by then, however long the client's own timeout is."""
    with contextlib.suppress(AttributeError, OSError):
        raw._fp.fp.raw._sock.settimeout(secs)  # noqa: SLF001 - as botocore does it


def _end(raw: Any, call: MeteredCall, usage: StreamUsage) -> None:
    call.finish_stream(usage.usage())
    with contextlib.suppress(OSError):
        raw.close()


drainer: Final = Drainer()
os.register_at_fork(after_in_child=drainer._begin)  # noqa: SLF001 - of this module
