"""Where the service's log goes in somebody else's process: to ``logging``, not to their stdout."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


@contextmanager
def logs_to_logging() -> Iterator[None]:
    """Send what the service logs to `logging`, unless the program says itself where logs go.

    Loggers of the program's own go on as they were.
    """
    before = structlog.get_config()
    if not isinstance(before["logger_factory"], structlog.PrintLoggerFactory):
        yield
        return
    structlog.configure(logger_factory=_make_logger)
    try:
        yield
    finally:
        structlog.configure(**before)


def _make_logger(*names: Any) -> Any:
    if names and str(names[0]).startswith("pricekeeper."):
        return logging.getLogger(names[0])
    return structlog.PrintLogger()
