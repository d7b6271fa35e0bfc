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
from collections.abc import Iterator
from typing import Any, Final

from pricekeeper.bedrock import StreamUsage
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
        self._chunks: Iterator[bytes] = raw.stream()
        # Reached by `close`, or when the last reference to the stream is gone.
        self._abandon = weakref.finalize(self, drainer.take, raw, self._chunks, call, usage)
        self._abandon.atexit = False

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        """The bytes to the end."""
        try:
            for chunk in self._chunks:
                self._usage.feed(chunk)
                yield chunk
        except Exception:
            if self._abandon.detach() is not None:  # not one that was closed meanwhile
                self._call.finish_stream(self._usage.usage())
            raise
        if self._abandon.detach() is not None:
            self._call.finish_stream(self._usage.usage())

    def close(self) -> None:
        """Let the caller go; the stream is read on."""
        self._abandon()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class Drainer:
    """Background threads that read abandoned streams to their end."""

    def __init__(self) -> None:
        # Its `put` may be called by a finalizer at any point of any thread.
        self._waiting: queue.SimpleQueue[tuple[Any, Iterator[bytes], MeteredCall, StreamUsage]] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0

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
        """Read a stream on that nobody reads any more."""
        if self._waiting.qsize() < WAITING_MAX:
            self._waiting.put((raw, chunks, call, usage))
        else:
            _end(raw, call, usage)

    def wait(self, secs: float) -> None:
        """Wait until nothing is left to read, for at most that long."""
        ends_at = time.monotonic() + secs
        while time.monotonic() < ends_at and (self._busy or self._waiting.qsize()):
            time.sleep(0.01)

    def forget(self) -> None:
        """Begin anew in a forked child, which has none of the threads."""
        self._waiting = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._busy = 0

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="pricekeeper-drain", daemon=True).start()

    def _serve(self) -> None:
        while True:
            item = self._waiting.get()
            with self._lock:
                self._busy += 1
                more = bool(self._waiting.qsize()) and self._threads < THREADS_MAX
                self._threads += more
            if more:
                self._start()
            try:
                _drain(*item)
            finally:
                del item
                with self._lock:
                    self._busy -= 1


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
    try:
        for chunk in chunks:
            usage.feed(chunk)
            if usage.size > BYTES_MAX or time.monotonic() > ends_at:
                break
    except Exception:  # noqa: BLE001, S110 - whatever ends it: what is known by then is settled
        pass
    _end(raw, call, usage)


def _end(raw: Any, call: MeteredCall, usage: StreamUsage) -> None:
    call.finish_stream(usage.usage())
    with contextlib.suppress(OSError):
        raw.close()


drainer: Final = Drainer()
os.register_at_fork(after_in_child=drainer.forget)
