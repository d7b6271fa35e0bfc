"""One line in the log about each change that somebody makes: who, what, to whom and why.

The record of a change is its entry in the audit trail, written with the change itself; the line is
for whoever watches the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from pricekeeper.authority import Attribution
from pricekeeper.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    StoreError,
    TransactionCancelledError,
)

_log = structlog.get_logger(__name__)


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
