"""Run a command that dies with the process that started it: ``tether.py PARENT COMMAND...``.

It becomes the command, under the same process id, after asking the kernel to kill it when its
parent ends, however that comes about. Only Linux can promise that; elsewhere the command just
runs. It is a program of its own, and not a hook between fork and exec, because such a hook is
unsafe in a parent with threads, and newer Pythons warn about it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Replace this process with the command, unless the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent ended before its command began")
    os.execv(command[0], command)  # noqa: S606  # no shell is what we want


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
