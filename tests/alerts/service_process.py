"""The real service in a process of its own, on a clock that several processes share.

Run as ``python service_process.py FOLDER STORE_URL KEY METRICS_TOKEN``; it prints its URL, and
serves until it is killed or its standard input ends. It imports no test, so that it starts soon.
"""

import asyncio
import mmap
import os
import sys
from ipaddress import ip_network
from pathlib import Path

from pricekeeper.clock import SystemClock
from pricekeeper.settings import Settings, parse_store_location
from pricekeeper.testing.serving import running_service

CLOCK = "clock"
"""The file in the folder that says how far the clock is ahead."""
POLL_SECS = 0.05
_BYTES = 8


class SharedClock(SystemClock):
    """The machine's clocks plus an offset from a file; sleeps follow it."""

    __slots__ = ("_ahead",)

    def __init__(self, folder: Path) -> None:
        with (folder / CLOCK).open("r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), _BYTES)

    def advance_ms(self, duration_ms: int) -> None:
        """Let time pass, for every process that has this clock."""
        self._ahead[:] = (self._ahead_ms() + duration_ms).to_bytes(_BYTES, sys.byteorder)

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms()

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self._ahead_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        until_ms = self.monotonic_ms() + duration_ms
        while (left_ms := until_ms - self.monotonic_ms()) > 0:  # noqa: ASYNC110 - of others
            await asyncio.sleep(min(left_ms / 1000, POLL_SECS))

    def _ahead_ms(self) -> int:
        return int.from_bytes(self._ahead[:], sys.byteorder)


def make_clock(folder: Path) -> SharedClock:
    """A clock that runs normally until it is moved."""
    (folder / CLOCK).write_bytes(bytes(_BYTES))
    return SharedClock(folder)


def main(folder: Path, store: str, key: str, metrics_token: str) -> None:
    settings = Settings(
        store=parse_store_location(store),
        data_dir=folder / "data",
        provisioning_key=key,
        metrics_token=metrics_token,
        api_limits_per_minute={},
        aggregator_interval_secs=1,
        alert_networks=(ip_network("127.0.0.0/8"),),
        log_level="error",
    )
    with running_service(settings, SharedClock(folder)) as url:
        os.write(1, f"{url}\n".encode())
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
