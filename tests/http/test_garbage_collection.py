"""The garbage collector of a serving process skips old objects, and runs seldom."""

import os
import subprocess
import sys

from http_fixtures import KEY
from pricekeeper.http.server import THRESHOLDS

SHOW = """
import gc
from pricekeeper.http import app_from_environment
app_from_environment()
objects = len(gc.get_objects())
print(*gc.get_threshold(), gc.get_freeze_count() > 9 * objects)
"""


def test_a_worker_leaves_out_what_was_there_at_its_start() -> None:
    """At least nine tenths of all objects: modules, types, functions."""
    ended = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", SHOW],
        env={**os.environ, "PRICEKEEPER_LOG_LEVEL": "error", "PRICEKEEPER_PROVISIONING_KEY": KEY},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == [*map(str, THRESHOLDS), "True"]
