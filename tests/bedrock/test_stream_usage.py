"""The usage in an event stream, for any cuts and any other content."""

import json
import struct
from base64 import b64encode
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.bedrock import Operation, StreamUsage, Usage, usage_of_invoke
from pricekeeper.bedrock.streams import FRAME_BYTES_MAX
from pricekeeper.standin.endpoint import event_frame, exception_frame

METRICS = "amazon-bedrock-invocationMetrics"
CONVERSE, INVOKE = Operation.CONVERSE_STREAM, Operation.INVOKE_STREAM


def converse_stream(*, ends: bool = True) -> bytes:
    """As Converse streams it, with usage in its last event."""
    usage = {"inputTokens": 100, "outputTokens": 20, "cacheWriteInputTokens": 9}
    details = {"cacheDetails": [{"ttl": "1h", "inputTokens": 4}]}
    last = {"usage": {**usage, **details}, "serviceTier": {"type": "flex"}}
    frames = [
        event_frame("messageStart", b'{"role":"assistant"}'),
        *(event_frame("contentBlockDelta", b'{"delta":{"text":"%d"}}' % n) for n in range(5)),
        event_frame("messageStop", b'{"stopReason":"end_turn"}'),
    ]
    if ends:
        frames.append(event_frame("metadata", json.dumps(last).encode()))
    return b"".join(frames)


def chunk(body: Any) -> bytes:
    """A chunk of an ``invoke`` stream."""
    return event_frame("chunk", b'{"bytes":"%b"}' % b64encode(json.dumps(body).encode()))


def invoke_stream(
    begun: dict[str, Any] | None = None,
    metrics: dict[str, int] | None = None,
    said: dict[str, Any] | None = None,
) -> bytes:
    """As Claude streams it: the cache at its beginning, the metrics at its end."""
    begun = begun or {
        "input_tokens": 100,
        "output_tokens": 1,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 9,
        "cache_creation": {"ephemeral_1h_input_tokens": 4},
    }
    metrics = metrics or {
        "inputTokenCount": 100,
        "outputTokenCount": 20,
        "cacheReadInputTokenCount": 7,
        "cacheWriteInputTokenCount": 9,
    }
    frames = [
        chunk({"type": "message_start", "message": {"usage": begun}}),
        *(chunk({"type": "content_block_delta", "delta": {"text": str(n)}}) for n in range(5)),
        *([] if said is None else [chunk({"type": "message_delta", "usage": said})]),
        chunk({"type": "message_stop", METRICS: metrics}),
    ]
    return b"".join(frames)


EXPECTED = {
    CONVERSE: Usage(100, 20, cache_write_5m_tokens=5, cache_write_1h_tokens=4, service_tier="flex"),
    INVOKE: Usage(
        100,
        20,
        cache_read_tokens=7,
        cache_write_5m_tokens=5,
        cache_write_1h_tokens=4,
        service_tier="flex",
    ),
}
STREAMS = {CONVERSE: converse_stream(), INVOKE: invoke_stream()}


def read(operation: Operation, *chunks: bytes, tier: str | None = None) -> Usage | None:
    usage = StreamUsage(operation, tier)
    for one in chunks:
        usage.feed(one)
    assert usage.size == sum(len(one) for one in chunks)
    return usage.usage()


@pytest.mark.parametrize("operation", STREAMS)
@given(seed=st.integers(0, 2**32), pieces=st.integers(1, 60))
def test_any_cut_of_the_bytes_is_the_same_usage(
    operation: Operation, seed: int, pieces: int
) -> None:
    """Single bytes, halves of frames, several frames at once."""
    data, random = STREAMS[operation], Random(seed)
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(pieces))
    chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert read(operation, *chunks, tier="flex") == EXPECTED[operation]


@pytest.mark.parametrize("operation", STREAMS)
def test_byte_by_byte_it_is_known_with_the_last_one_and_not_before(operation: Operation) -> None:
    """A stream that is cut anywhere has not said what it used."""
    usage = StreamUsage(operation, "flex")
    data = STREAMS[operation]
    for at in range(len(data)):
        assert usage.usage() is None, at
        usage.feed(data[at : at + 1])
    assert usage.usage() == EXPECTED[operation]


@pytest.mark.parametrize("operation", STREAMS)
@given(junk=st.binary(max_size=400), cut=st.integers(0, 2_000))
def test_garbage_never_raises_and_is_no_usage(operation: Operation, junk: bytes, cut: int) -> None:
    """In the place of the stream, or after a part of it that has not said anything yet."""
    assert read(operation, junk) is None
    part = STREAMS[operation][: min(cut, len(STREAMS[operation]) - 4)]
    assert read(operation, part + junk[:1], junk[1:3]) is None
    assert read(operation, part, junk, tier="flex") in (None, EXPECTED[operation])


payloads = st.sampled_from(
    [
        b"",
        b"{}",
        b"null",
        b"\xff",
        b'{"bytes":7}',
        b'{"bytes":"!"}',
        b'{"bytes":"bnVsbA=="}',
        b'{"usage":{"inputTokens":1}}',
        b"[" * 100_000,
        b'{"usage":' * 50_000,
    ]
)


@pytest.mark.parametrize("operation", STREAMS)
@given(st.lists(payloads, max_size=4))
def test_frames_with_anything_in_them_never_raise(operation: Operation, parts: list[bytes]) -> None:
    """Also those that are nested too deep, which is no usage."""
    assert read(operation, *(event_frame("chunk", one) for one in parts)) is None


def test_a_stream_that_ends_without_usage_has_none() -> None:
    """It is not zero."""
    assert read(CONVERSE, converse_stream(ends=False)) is None
    assert read(CONVERSE) is None


def test_an_exception_at_the_end_is_no_usage() -> None:
    """The stream does not state its bill until then."""
    failure = exception_frame("modelStreamErrorException", b'{"message":"broke off"}')
    assert read(CONVERSE, converse_stream(ends=False) + failure) is None


def test_a_frame_that_says_it_is_longer_than_any_is_the_end() -> None:
    """Nothing is kept for it, however much follows."""
    usage = StreamUsage(CONVERSE)
    usage.feed(struct.pack("!III", FRAME_BYTES_MAX + 1, 0, 0) + bytes(100))
    for _ in range(100):
        usage.feed(bytes(1_000_000))
    assert len(usage._buffer) == 0
    assert usage.usage() is None


def test_what_is_kept_of_a_long_stream_is_a_few_frames() -> None:
    """And a frame that is not whole yet."""
    usage = StreamUsage(CONVERSE)
    frame = event_frame("contentBlockDelta", b'{"delta":{"text":"%b"}}' % (b"x" * 1_000))
    for _ in range(10_000):
        usage.feed(frame)
    usage.feed(frame[:-1])
    kept = [bytes(usage._buffer), usage._last[0], usage._before[0], *usage._first]
    assert sum(map(len, kept)) < 6 * len(frame)


def test_what_only_the_beginning_says_of_the_cache_counts() -> None:
    """The metrics may have no word of it."""
    begun = {"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": 7}
    metrics = {"inputTokenCount": 100, "outputTokenCount": 20}
    found = read(INVOKE, invoke_stream(begun, metrics))
    assert found == Usage(100, 20, cache_read_tokens=7)
    written = {**begun, "cache_creation_input_tokens": 5}
    found = read(INVOKE, invoke_stream(written, metrics))
    assert found == Usage(100, 20, cache_read_tokens=7, cache_write_5m_tokens=5)


ROUNDS = [
    {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
    {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000,
     "cache_read_input_tokens": 5},
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 500, 100_000])
def test_all_rounds_of_the_model_count(size: int) -> None:
    """One that has summed up the conversation is charged, and is not in the metrics."""
    begun = {"input_tokens": 23_000, "output_tokens": 1}
    metrics = {"inputTokenCount": 23_000, "outputTokenCount": 1_000}
    stream = invoke_stream(begun, metrics, {"output_tokens": 1_000, "iterations": ROUNDS})
    found = read(INVOKE, *(stream[at : at + size] for at in range(0, len(stream), size)))
    assert found == Usage(203_000, 4_500, cache_read_tokens=5)
    for odd in ([], "x", [1], None):
        said = {"output_tokens": 1_000, "iterations": odd}
        assert read(INVOKE, invoke_stream(begun, metrics, said)) == Usage(23_000, 1_000)


def test_all_rounds_count_in_a_whole_reply() -> None:
    usage = {"input_tokens": 23_000, "output_tokens": 1_000, "iterations": ROUNDS}
    assert usage_of_invoke({"usage": usage}, {}) == Usage(203_000, 4_500, cache_read_tokens=5)


THROTTLED = exception_frame("throttlingException", b'{"message":"slow down"}')


@pytest.mark.parametrize("operation", [CONVERSE, INVOKE])
@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("stream", "is_refused"),
    [
        (THROTTLED, True),
        (exception_frame("validationException", b"{}"), True),
        (exception_frame("modelStreamErrorException", b"{}"), False),
        (exception_frame("somethingElse", b"{}"), False),
        (event_frame("throttlingException", b"{}"), False),
        (event_frame("messageStart", b'{"role":"assistant"}') + THROTTLED, False),
        (THROTTLED + event_frame("messageStart", b"{}"), False),
        (THROTTLED + b"\0\0\0", False),
        (THROTTLED + bytes(20), False),
        (THROTTLED[:-1], False),
        (b"", False),
    ],
)
def test_a_stream_that_begins_with_an_exception_is_a_refusal(
    operation: Operation, size: int, stream: bytes, is_refused: bool
) -> None:
    """If Bedrock names it as in an answer, and all of the stream is that exception."""
    usage = StreamUsage(operation)
    for at in range(0, len(stream), size):
        usage.feed(stream[at : at + size])
    assert usage.is_refused is is_refused
    assert usage.usage() is None
