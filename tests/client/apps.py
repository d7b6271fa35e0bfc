"""Programs of an app, as processes that tests fork, kill and restart."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pricekeeper.client.spool import find_folder, read_folder

PATIENCE_SECS: Final = 60


@dataclass(frozen=True)
class Credentials:
    """What an app has in its environment."""

    url: str
    client_id: str
    client_secret: str
    spool_dir: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PRICEKEEPER_URL": self.url,
            "PRICEKEEPER_CLIENT_ID": self.client_id,
            "PRICEKEEPER_CLIENT_SECRET": self.client_secret,
            "PRICEKEEPER_SPOOL_DIR": str(self.spool_dir),
            "PRICEKEEPER_DEADLINE_MS": "10000",
        }

    def waiting(self) -> int:
        """How many entries are in the files of the app."""
        folder = find_folder(str(self.spool_dir), self.url, self.client_id)
        assert folder is not None
        return sum(len(entries) for _, _, entries in read_folder(folder))


class Program:
    """A running program."""

    def __init__(
        self, source: str, credentials: Credentials, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", textwrap.dedent(source)],
            env={**os.environ, **credentials.environment, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        if not line:
            raise AssertionError(f"it has ended: {self._process.communicate(timeout=9)[1]}")
        return line

    def kill(self) -> None:
        """As the kernel does without memory: no handler runs."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=PATIENCE_SECS)

    def end(self) -> list[str]:
        """Wait for its end without errors; returns the lines that were not heard."""
        printed, complaints = self._process.communicate(timeout=PATIENCE_SECS)
        assert (self._process.returncode, complaints) == (0, ""), complaints
        return printed.splitlines()


@contextmanager
def program(
    source: str, credentials: Credentials, environment: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Run a program; the end of the block kills it."""
    made = Program(source, credentials, environment)
    try:
        yield made
    finally:
        if made._process.poll() is None:
            made.kill()
