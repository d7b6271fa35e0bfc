"""Adding many observations at once equals adding them one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from pricekeeper.http.metrics import CountHistogram

BOUNDS = (0.5, 1, 2.5)
SHARED = """
import os
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pricekeeper.http.metrics import CountHistogram
made = CountHistogram("sizes", "Sizes.", ["kind"], bounds=(1, 2), registry=CollectorRegistry())
is_child = os.fork() == 0
made.add(("a",), [1, 0, 2], 9)
if is_child:
    os._exit(0)
os.wait()
shared = CollectorRegistry()
MultiProcessCollector(shared)
print(generate_latest(shared).decode())
"""


@pytest.mark.parametrize("labels", [(), ("a",)])
def test_it_shows_what_prometheus_clients_own_shows(labels: tuple[str, ...]) -> None:
    registry, own_registry = CollectorRegistry(), CollectorRegistry()
    names = ["kind"] * len(labels)
    made = CountHistogram("sizes", "Sizes.", names, bounds=BOUNDS, registry=registry)
    own = Histogram("sizes", "Sizes.", names, buckets=BOUNDS, registry=own_registry)
    assert shown(registry) == shown(own_registry)
    made.add(labels, [2, 0, 1, 1], 13)
    made.add(labels, [1, 0, 0, 0], 0.5)
    for size in (0.5, 0.5, 2, 10, 0.5):
        (own.labels(*labels) if labels else own).observe(size)
    assert shown(registry) == shown(own_registry)


def shown(registry: CollectorRegistry) -> list[str]:
    """Without the creation time of prometheus-client's own."""
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "sizes_created" not in line)


def test_workers_share_it_through_files(tmp_path: Path) -> None:
    """Of two processes, the last shows the sum."""
    shown = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", SHARED],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 'sizes_bucket{kind="a",le="2.0"} 2.0' in shown
    assert 'sizes_bucket{kind="a",le="+Inf"} 6.0' in shown
    assert 'sizes_sum{kind="a"} 18.0' in shown
    assert 'sizes_count{kind="a"} 6.0' in shown
