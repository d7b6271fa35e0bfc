"""A process that exports a day, and kills itself at a chosen step, as a machine may.

Run as ``python export_process.py STORE_URL FOLDER DAY NOW_MS STEP``. Every change of the
destination is two steps: before it, and after it. The process gets a SIGKILL at the step that is
chosen; below zero, in the middle of that file.
"""

import asyncio
import gzip
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from pricekeeper.clock import ManualClock
from pricekeeper.export import Exporter
from pricekeeper.export.folder import FolderDestination
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store


class FragileDestination(FolderDestination):
    def __init__(self, path: str, last_step: int) -> None:
        super().__init__(path)
        self.left = last_step

    async def put_file(self, *arguments: Any) -> None:
        self.step()
        await super().put_file(*arguments)
        self.step()

    async def put_bytes(self, *arguments: Any) -> None:
        self.step()
        await super().put_bytes(*arguments)
        self.step()

    async def remove(self, path: str) -> None:
        self.step()
        await super().remove(path)
        self.step()

    def step(self) -> None:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


class FragileGzip(gzip.GzipFile):
    """Is killed after half of the rows of a file have reached the disk."""

    files_left = -1

    def write(self, data: Any) -> int:
        FragileGzip.files_left -= 1
        if FragileGzip.files_left == 0:
            super().write(bytes(data)[: len(data) // 2])
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(data)


async def main(url: str, folder: str, day: str, now_ms: int, step: int) -> None:
    clock = ManualClock(now_ms)
    store = await open_store(parse_store_location(url), clock=clock)
    destination = FragileDestination(folder, step if step >= 0 else 1_000)
    FragileGzip.files_left = -step
    gzip.GzipFile = FragileGzip  # type: ignore[misc]
    await Exporter(store, clock, destination, run_lines=4).export_day(day)
    await destination.close()
    await store.close()


if __name__ == "__main__":
    url, folder, day, now_ms, step = sys.argv[1:]
    asyncio.run(main(url, folder, day, int(now_ms), int(step)))
