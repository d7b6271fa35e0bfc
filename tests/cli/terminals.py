"""Commands in a real terminal of a chosen width: a pseudo-terminal that is the process's own."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CTRL_C = "\x03"
_STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass
class Terminal:
    """A process and what it has printed."""

    process: "subprocess.Popen[bytes]"
    screen: int
    printed: str = field(default="")

    def read_until(self, text: str) -> str:
        """All that was printed, as soon as the text is in it; fails at the end of the process."""
        while text not in self.printed:
            if not self._read():
                raise AssertionError(f"{text!r} was not printed: {self.printed!r}")
        return self.printed

    def type(self, keys: str) -> None:
        """What a person would type, who types when the program waits.

        Python only notes a signal that comes between its last look and the read that waits, and
        the read then waits for the next key.
        """
        while Path("/proc").exists() and not self._waits():
            os.sched_yield()
        os.write(self.screen, keys.encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait()

    def _waits(self) -> bool:
        """Whether its main thread sleeps, or the process has ended: what Linux says of it."""
        state = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(") ")[2][0]
        return state in "SZ"

    def _read(self) -> bool:
        try:
            data = os.read(self.screen, 65_536)
        except OSError:  # the process has ended, and with it the terminal
            return False
        self.printed += _STYLES.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
        return bool(data)


def hear_ctrl_c() -> None:
    """Restore the signal, which shells ignore in background jobs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def in_a_terminal(
    *words: str, columns: int = 80, environment: Mapping[str, str]
) -> Iterator[Terminal]:
    """Run a command in a terminal of that many columns."""
    screen, process_side = os.openpty()
    fcntl.ioctl(process_side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def begin() -> None:
        hear_ctrl_c()
        os.login_tty(process_side)

    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-m", "pricekeeper", *words],
        env={**inherited, "TERM": "xterm-256color", **environment},
        preexec_fn=begin,  # noqa: PLW1509  # no threads are running
        close_fds=False,
    )
    os.close(process_side)
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
