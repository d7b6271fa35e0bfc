"""Streams of botocore, metered to their end even if the caller abandons them.

Bedrock bills a stream to its end, so a background thread reads the rest, within bounds. Beyond
them, the hold stays charged.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from pricekeeper.bedrock import StreamUsage
from pricekeeper.client.threads import WorkQueue, later, wait_until
from pricekeeper.client.wrapping.metered_call import MeteredCall

THREADS_MAX: Final = 16
"""Abandoned streams that are read at once."""
WAITING_MAX: Final = 256
"""Streams that wait for that; further ones are not read."""
SECS_MAX: Final = 120
BYTES_MAX: Final = 64 << 20


class MeteredResponse:
    """A metered response, read to its end even if abandoned."""

    def __init__(
        self, raw: Any, call: MeteredCall, usage: StreamUsage, read_on: Callable[[], None]
    ) -> None:
        self._raw = raw
        self._call = call
        self._usage = usage
        # Called by `close`, or when the last reference to the stream is gone.
        self._abandon = weakref.finalize(self, read_on)
        self._abandon.atexit = False

    def close(self) -> None:
        self._abandon()

    def _finish(self) -> None:
        if self._abandon.detach() is not None:  # not closed meanwhile
            self._call.finish_stream(self._usage)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class MeteredRaw(MeteredResponse):
    """The bytes of a response, as urllib3 delivers them."""

    def __init__(self, raw: Any, call: MeteredCall, usage: StreamUsage) -> None:
        # One generator for caller and background thread: urllib3 closes the connection when a
        # generator of it is dropped early.
        self._chunks = _SkimmedChunks(raw, call, usage)
        super().__init__(raw, call, usage, self._chunks.read_on)

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        """The bytes up to the end, or to the close."""
        try:
            for chunk in self._chunks:
                yield chunk
                if not self._abandon.alive:  # another thread reads the rest
                    return
        except Exception:
            self._finish()
            raise
        self._finish()

    def shutdown(self) -> None:
        """Abandon the stream; urllib3's `shutdown` would end the connection."""
        self._abandon()

    @property
    def connection(self) -> None:
        """``None``: the caller must not close it."""


class _SkimmedChunks:
    """The chunks of a response, copied to `StreamUsage` in order. Threads may share it.

    The lock lets one thread at a time run the generator; another may close the stream.
    """

    def __init__(self, raw: Any, call: MeteredCall, usage: StreamUsage) -> None:
        self._raw = raw
        self._chunks: Iterator[bytes] = raw.stream()
        self._call = call
        self._usage = usage
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            chunk = next(self._chunks)
            self._usage.feed(chunk)
            return chunk

    def read_on(self) -> None:
        """Read an abandoned stream. Without a lock, for finalizers."""
        if drainer.waiting < WAITING_MAX:
            drainer.put(self._drain)
        else:
            later.put(self._end)

    def _drain(self) -> None:
        """Read a stream to its end, within the bounds, and settle."""
        ends_at = time.monotonic() + SECS_MAX
        # After any error, the usage known so far is settled.
        with contextlib.suppress(Exception):
            while (left_secs := ends_at - time.monotonic()) > 0 and self._usage.size <= BYTES_MAX:
                self._limit_wait(left_secs)
                if next(self, None) is None:
                    break
        with contextlib.suppress(Exception):
            self._end()

    def _limit_wait(self, secs: float) -> None:
        """Make the next read end in time, despite the client's timeout."""
        with contextlib.suppress(AttributeError, OSError):
            self._raw._fp.fp.raw._sock.settimeout(secs)  # noqa: SLF001 - as botocore does it

    def _end(self) -> None:
        self._call.finish_stream(self._usage)
        with contextlib.suppress(OSError):
            self._raw.close()


def wait_for_threads(secs: float) -> None:
    """Wait until all abandoned streams are read, at most that long."""
    wait_until(lambda: drainer.is_idle, secs)


def meter_stream(stream: Any, call: MeteredCall, usage: StreamUsage) -> None:
    """Meter an event stream of botocore."""
    drainer.ready()
    metered = MeteredRaw(stream._raw_stream, call, usage)  # noqa: SLF001 - botocore has no other way
    stream._raw_stream = metered  # noqa: SLF001
    # botocore's own generator holds the stream, so a forgotten one would be freed late.
    stream._event_generator = _raw_events(metered)  # noqa: SLF001


def _raw_events(raw: MeteredRaw) -> Iterator[Any]:
    from botocore.eventstream import EventStreamBuffer  # noqa: PLC0415 - loaded with the client

    buffer = EventStreamBuffer()
    for chunk in raw.stream():
        buffer.add_data(chunk)
        yield from buffer


drainer: Final = WorkQueue("pricekeeper-drain", THREADS_MAX)
os.register_at_fork(after_in_child=drainer.begin_anew)
