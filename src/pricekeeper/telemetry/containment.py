"""One line in the log about each step that contains a leaked secret: who, what, to whom and why.

The line is written whatever the log level is: it is the record of what was done. It goes through
the same redacting sink as every other line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from pricekeeper.errors import OutcomeUnknownError, StoreError
from pricekeeper.telemetry.logs import timestamp, write_lines
from pricekeeper.values import Attribution


@contextmanager
def log_containment(
    action: str, target: str, by: Attribution, details: dict[str, Any] | None = None
) -> Iterator[None]:
    """Write the line when the block has made the change, or if the store got in the way.

    The outcome is ``unknown`` if the store's reply was lost or nobody waited for it, and ``failed``
    if the store could not do all of it. A block that is refused has changed nothing and writes no
    line. ``details`` is read when the line is written, so the block may add to it.
    """
    try:
        yield
    except (OutcomeUnknownError, asyncio.CancelledError):
        _write(action, target, by, "unknown", details)
        raise
    except StoreError:
        _write(action, target, by, "failed", details)
        raise
    _write(action, target, by, "done", details)


def _write(
    action: str, target: str, by: Attribution, outcome: str, details: dict[str, Any] | None
) -> None:
    line = {
        "event": "containment",
        "level": "warning",
        "timestamp": timestamp(),
        "action": action,
        "target": target,
        "actor": by.actor,
        "address": by.address,
        "reason": by.reason,
        "outcome": outcome,
        "request_id": by.request_id,
        **(details or {}),
    }
    write_lines([msgspec.json.encode(line)])
