"""The guide's example, as it is written."""

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pricekeeper.clock import ManualClock
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.storage import Store

GUIDE = Path(__file__).parents[2] / "docs" / "limiter.md"


async def test_the_guides_example_works(store: Store, clock: ManualClock) -> None:
    """It takes what it says, from the app and its organisation, and settles what was used."""
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    body = textwrap.indent(block, "    ")
    names: dict[str, Any] = {}
    exec(f"async def main(store, clock, call_model):\n{body}    return limiter\n", names)  # noqa: S102

    async def call_model() -> Any:
        return SimpleNamespace(total_tokens=900)

    limiter: Limiter = await names["main"](store, clock, call_model)
    for entity in ("org-1/app-7", "org-1"):
        stands = await limiter.peek(entity, "premium")
        assert {name: one.consumed for name, one in stands.items()} == {"rpm": 1, "tpm": 900}
        assert stands["rpm"].limit == Limit.per_minute("rpm", 60)
