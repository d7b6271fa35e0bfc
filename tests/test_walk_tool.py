"""``make walk`` shows the way of each of the six requests."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "walk.py"


def test_six_walks_are_shown_hop_by_hop() -> None:
    """From the protocol, which meets the request, to the store, which answers last."""
    shown = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, str(TOOL), "--hops"], capture_output=True, text=True, check=True
    ).stdout
    walks = [line for line in shown.splitlines() if " hops through " in line]
    assert len(walks) == 6
    for module in ("http.serving -> ", "http.gate -> ", "-> storage.sqlite.store."):
        assert shown.count(module) >= 6, module
