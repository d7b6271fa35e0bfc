"""Logs: one JSON object a line. The sink redacts secrets, so callers need not."""

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
"""The search is linear: nothing after unbounded repetition can fail, unless it is possessive."""
_OURS: Final = re.compile(rb"eyJ[A-Za-z0-9_.-]{8,}|\bpk[a-z]{1,3}_[A-Za-z0-9_-]{16,}")
_SIGNS: Final = (b"eyj", b"pk", b"bearer", b"basic")
"""Every secret contains one, in lower case; other lines are not searched."""
_HIDDEN: Final = b"[redacted]"
_known: set[bytes] = set()


def redacted(line: bytes) -> bytes:
    """Replace the secrets of a line."""
    for secret in _known:
        line = line.replace(secret, _HIDDEN)
    lowered = line.lower()
    return _SECRET.sub(_HIDDEN, line) if any(sign in lowered for sign in _SIGNS) else line


def contains_secret(text: str) -> bool:
    """Whether the text has a secret. Words after "basic" are ignored, for basic authentication."""
    line = text.encode("utf-8", "replace")
    return _OURS.search(line) is not None or any(secret in line for secret in _known)


def keep_secret(text: str) -> None:
    """Redact this text from now on, also in its JSON spelling."""
    _known.update((text.encode(), msgspec.json.encode(text)[1:-1]))


def write_lines(lines: Sequence[bytes]) -> None:
    """Redact finished lines, and write them to standard error."""
    sys.stderr.buffer.write(redacted(b"\n".join(lines)) + b"\n")
    sys.stderr.buffer.flush()


class GatheredLines:
    """Collects lines, and writes them once per turn of the loop."""

    def __init__(self) -> None:
        self._gathered: list[bytes] = []

    def add(self, line: bytes) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._write)
        self._gathered.append(line)

    def _write(self) -> None:
        gathered, self._gathered = self._gathered, []
        write_lines(gathered)


def timestamp() -> str:
    """The time as log lines write it."""
    epoch, us = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_second(epoch)}.{us:06}Z"


@lru_cache(maxsize=2)
def _second(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class RedactingLogger:
    """The sink of structlog."""

    def msg(self, line: bytes) -> None:
        write_lines([line])

    debug = info = warning = error = exception = critical = msg


def configure_logging(level: str, *, for_good: bool = True) -> None:
    """Log our events as JSON lines, and libraries' from warnings up.

    ``for_good`` lets loggers cache this configuration at first use.
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
    """Sends the standard library's logging to the same sink."""

    def emit(self, record: logging.LogRecord) -> None:
        event = {"event": self.format(record), "level": record.levelname.lower()}
        RedactingLogger().msg(_serialise({**event, "logger": record.name}))


def _serialise(event: Any, **_: Any) -> bytes:
    return msgspec.json.encode(event, enc_hook=str)


@contextmanager
def log_change(action: str, target: str, by: Attribution) -> Iterator[None]:
    """Log the change that the block makes; the audit trail is the record of it.

    Outcome ``unknown``: the store's reply was lost or the caller cancelled; ``failed``: the store
    could not do it. A refused change is not logged.
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
