"""Eight processes of an app whose session limit is five, for a minute: ``make soak-processes``.

What they do, and what is looked at, is in ``tests/client/processes.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from client.processes import run_processes


def main() -> int:
    """Read the arguments and run; 1 if a call was refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--secs", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = asyncio.run(run_processes(Path(folder), given.processes, given.secs))
    print(
        f"{given.processes} processes for {given.secs} s, five sessions: {sum(report.made)} calls"
    )
    print(f"each: {min(report.made)} to {max(report.made)} calls, {max(report.logins)} logins")
    for one in report.wrong:
        print(f"WRONG {one}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
