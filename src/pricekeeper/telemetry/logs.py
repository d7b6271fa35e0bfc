"""Logging: one JSON object a line, and no secret in any of them.

Redaction happens at the sink, on the finished line, so that it does not depend on every caller
remembering it: whatever looks like a token or a secret of ours, or like credentials in a
header, is replaced before it leaves the process. So is what looks like nothing in particular but
is known to be secret, such as the deployment's own key.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec
import structlog

from pricekeeper.authority import Attribution
from pricekeeper.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    StoreError,
    TransactionCancelledError,
)

_log = structlog.get_logger(__name__)
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_SECRET: Final = re.compile(
    rb"eyJ[A-Za-z0-9_.-]{8,}"  # a JWT, or what begins like one
    rb"|\bpk[a-z]{1,3}_[A-Za-z0-9_-]{16,}"  # our secrets and one-time tokens
    rb"|(?i:\b(?:bearer|basic)\s++)[A-Za-z0-9+/=._~-]{8,}"  # what a header carries
)
"""Nothing that may fail follows a repetition without a bound, unless the repetition gives nothing
back: so the text of a line, which a caller may have chosen, is looked at once and not again from
each of its characters."""
_OURS: Final = re.compile(rb"eyJ[A-Za-z0-9_.-]{8,}|\bpk[a-z]{1,3}_[A-Za-z0-9_-]{16,}")
_SIGNS: Final = (b"eyj", b"pk", b"bearer", b"basic")
"""Every secret has one of these in it, in lower case: without any, there is no need to search."""
_HIDDEN: Final = b"[redacted]"
_known: set[bytes] = set()


def redacted(line: bytes) -> bytes:
    """The line without anything that looks like a secret."""
    for secret in _known:
        line = line.replace(secret, _HIDDEN)
    lowered = line.lower()
    return _SECRET.sub(_HIDDEN, line) if any(sign in lowered for sign in _SIGNS) else line


def contains_secret(text: str) -> bool:
    """Whether a token or a secret of ours is in the text, or what is known to be secret.

    Not whatever follows the word basic, as in a header: people write of basic authentication.
    """
    line = text.encode("utf-8", "replace")
    return _OURS.search(line) is not None or any(secret in line for secret in _known)


def keep_secret(text: str) -> None:
    """Have this text replaced wherever it comes up from now on, also as JSON spells it."""
    _known.update((text.encode(), msgspec.json.encode(text)[1:-1]))


def write_lines(lines: Sequence[bytes]) -> None:
    """Write finished lines to standard error, redacted, in one go."""
    sys.stderr.buffer.write(redacted(b"\n".join(lines)) + b"\n")
    sys.stderr.buffer.flush()


class GatheredLines:
    """Lines that are written together, once per turn of the event loop."""

    def __init__(self) -> None:
        self._gathered: list[bytes] = []

    def add(self, line: bytes) -> None:
        """Write a finished line, soon."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._write)
        self._gathered.append(line)

    def _write(self) -> None:
        gathered, self._gathered = self._gathered, []
        write_lines(gathered)


def timestamp() -> str:
    """Now, as log lines have it."""
    epoch, us = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_second(epoch)}.{us:06}Z"


@lru_cache(maxsize=2)
def _second(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class RedactingLogger:
    """What structlog writes to."""

    def msg(self, line: bytes) -> None:
        """Write one line, whole."""
        write_lines([line])

    debug = info = warning = error = exception = critical = msg


def configure_logging(level: str, *, for_good: bool = True) -> None:
    """Set up logging for this process: ours as JSON lines, everybody else's from warnings up.

    Loggers keep what they find at first use, unless this is not ``for_good``.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_serialise),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: RedactingLogger(),
        cache_logger_on_first_use=for_good,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_RedactingHandler()], force=True)


class _RedactingHandler(logging.Handler):
    """The standard library's logging, through the same sink."""

    def emit(self, record: logging.LogRecord) -> None:
        event = {"event": self.format(record), "level": record.levelname.lower()}
        RedactingLogger().msg(_serialise({**event, "logger": record.name}))


def _serialise(event: Any, **_: Any) -> bytes:
    return msgspec.json.encode(event, enc_hook=str)


@contextmanager
def log_change(action: str, target: str, by: Attribution) -> Iterator[None]:
    """Write the line when the block has made the change, or if the store got in the way.

    The outcome is ``unknown`` if the store's reply was lost or nobody waited for it, and ``failed``
    if the store could not do it. A block that is refused has changed nothing and writes no line.
    """
    try:
        yield
    except (OutcomeUnknownError, asyncio.CancelledError):
        _write(action, target, by, "unknown")
        raise
    except (ConditionFailedError, TransactionCancelledError):
        raise
    except StoreError:
        _write(action, target, by, "failed")
        raise
    _write(action, target, by, "done")


def _write(action: str, target: str, by: Attribution, outcome: str) -> None:
    _log.warning(
        "audit",
        action=action,
        target=target,
        actor=by.actor,
        address=by.address,
        reason=by.reason,
        outcome=outcome,
        request_id=by.request_id,
    )
