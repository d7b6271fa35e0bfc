"""The engine's own event loop."""

import asyncio
import concurrent.futures.thread as pools

import pytest

from pricekeeper.client.threads import LoopThread


def test_blocking_work_is_done_while_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python closes its thread pools before `atexit` runs, and usage is reported after that."""
    loop = LoopThread("a test's")
    monkeypatch.setattr(pools, "_shutdown", True)  # as Python itself does it
    try:
        assert loop.submit(asyncio.to_thread(lambda: 7)).result(5) == 7
        with pytest.raises(ValueError, match="seven"):
            loop.submit(asyncio.to_thread(int, "seven")).result(5)
    finally:
        loop.stop(5)
