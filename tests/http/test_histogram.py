"""Adding many observations at once equals adding them one by one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.mmap_dict import MmapedDict

from pricekeeper.http.metrics import CountHistogram, exposition_of_workers

BOUNDS = (0.5, 1, 2.5)
SHARED = """
import os
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pricekeeper.http.metrics import CountHistogram, exposition_of_workers
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


def test_a_file_that_a_worker_has_just_created_is_read_as_empty(tmp_path: Path) -> None:
    """A worker creates its file first, and gives it a length in a second step."""
    counts: Any = MmapedDict(str(tmp_path / "counter_1.db"))  # type: ignore[no-untyped-call]
    counts.write_value('["calls", "calls_total", {}, "Calls."]', 3.0, 0.0)
    counts.close()
    (tmp_path / "counter_2.db").touch()
    assert b"calls_total 3.0" in exposition_of_workers(tmp_path)


def test_what_is_read_while_it_is_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of a file may be read before its last line."""
    key = '["calls", "calls_total", {}, "Calls."]'
    readings = iter([[(key[:9], 0.0, 0.0, 0)], [(key, 3.0, 0.0, 0)]])
    monkeypatch.setattr(MmapedDict, "read_all_values_from_file", lambda _: next(readings))
    (tmp_path / "counter_1.db").write_bytes(b"not empty")
    assert b"calls_total 3.0" in exposition_of_workers(tmp_path)
