"""The guide's example runs unchanged."""

import re
import subprocess
import sys
from pathlib import Path

from pricekeeper.clock import SystemClock
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import open_store

GUIDE = Path(__file__).parents[2] / "docs" / "limiter.md"
LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 100_000)]


async def test_the_guides_example_works_as_pasted(tmp_path: Path) -> None:
    """It takes the stated tokens from the app and its organisation, and settles the real usage."""
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(example, "utf-8")

    ran = subprocess.run(  # noqa: ASYNC221 - our own page, and nothing else to do meanwhile
        [sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "{'rpm': 1, 'tpm': 900}\n"
    assert ran.stdout.strip() in GUIDE.read_text("utf-8")
    clock = SystemClock()
    store = await open_store(SqliteLocation(str(tmp_path / "buckets.db")), clock=clock)
    limiter = Limiter(store, clock=clock, limits=LIMITS)
    for entity in ("org-1/app-7", "org-1"):
        limits = await limiter.peek(entity, "premium")
        assert {name: one.consumed for name, one in limits.items()} == {"rpm": 1, "tpm": 900}
    await store.close()
