"""Streams of botocore, metered to their end whatever the caller does with them.

The caller keeps the event stream that botocore made; what changes is where its bytes come from.
They pass through `MeteredRaw`, which skims a copy. A stream that is closed, or forgotten, before
its end is read on by a background thread, because Bedrock bills it to its end: within bounds, and
beyond them what is held for it stays charged.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from pricekeeper.bedrock import StreamUsage
from pricekeeper.client.wrapping.later import WorkQueue, later, wait_until
from pricekeeper.client.wrapping.metered_call import MeteredCall

THREADS_MAX: Final = 16
"""How many abandoned streams are read on at once."""
WAITING_MAX: Final = 256
"""How many wait for that; further ones are not read on."""
SECS_MAX: Final = 120
BYTES_MAX: Final = 64 << 20


class MeteredResponse:
    """A response whose bytes are skimmed on their way. Whoever leaves it has it read on."""

    def __init__(
        self, raw: Any, call: MeteredCall, usage: StreamUsage, read_on: Callable[[], None]
    ) -> None:
        self._raw = raw
        self._call = call
        self._usage = usage
        # Reached by `close`, or when the last reference to the stream is gone.
        self._abandon = weakref.finalize(self, read_on)
        self._abandon.atexit = False

    def close(self) -> None:
        """Let the caller go; the stream is read on."""
        self._abandon()

    def _finish(self) -> None:
        if self._abandon.detach() is not None:  # not one that was closed meanwhile
            self._call.finish_stream(self._usage)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class MeteredRaw(MeteredResponse):
    """The bytes of one response, as urllib3 hands them out."""

    def __init__(self, raw: Any, call: MeteredCall, usage: StreamUsage) -> None:
        # One generator for the caller and for who reads on: urllib3 closes the connection when a
        # generator of it is dropped before its end.
        self._chunks: Iterator[bytes] = _SkimmedChunks(raw.stream(), usage)
        super().__init__(raw, call, usage, partial(_read_on, raw, self._chunks, call, usage))

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

    def shutdown(self) -> None:
        """Let the caller go; urllib3's own would end the connection."""
        self._abandon()

    @property
    def connection(self) -> None:
        """None, as of a response that was read: a caller must not end what is read on."""


class _SkimmedChunks:
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


def wait_for_threads(secs: float) -> None:
    """Wait until no abandoned stream is left to read, for at most that long."""
    wait_until(lambda: drainer.is_idle, secs)


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


def _read_on(raw: Any, chunks: Iterator[bytes], call: MeteredCall, usage: StreamUsage) -> None:
    """Have a stream read on that nobody reads any more. It takes no lock, for finalizers."""
    if drainer.waiting < WAITING_MAX:
        drainer.put(partial(_drain, raw, chunks, call, usage))
    else:
        later.put(partial(_end, raw, call, usage))


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
    call.finish_stream(usage)
    with contextlib.suppress(OSError):
        raw.close()


drainer: Final = WorkQueue("pricekeeper-drain", THREADS_MAX)
"""Reads abandoned streams to their end."""
os.register_at_fork(after_in_child=drainer.begin_anew)
