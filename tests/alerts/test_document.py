"""What `docs/alerts.md` shows is true: the snippet verifies, and the example is what is sent."""

import json
import re
import time
from pathlib import Path
from typing import Any

from alerts.conftest import COST_USD_MICROS, Instance, Org, budget
from alerts.endpoint import SECRET, Endpoint
from memory_store import MemoryStore
from pricekeeper.alerts.alert import AlertKind
from snippets import snippets
from stores import ShiftedClock

DOCUMENT = Path(__file__).parents[2] / "docs" / "alerts.md"
TEXT = DOCUMENT.read_text("utf-8")


def verify() -> Any:
    """The function that the document shows."""
    (snippet,) = snippets(DOCUMENT)
    names: dict[str, Any] = {}
    exec(snippet.program, names)  # noqa: S102 - our own document
    return names["verify"]


def example() -> dict[str, Any]:
    (block,) = re.findall(r"^```json\n(\{\n  \"id\".*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    made: dict[str, Any] = json.loads(block)
    return made


async def test_the_snippet_verifies_what_is_sent_and_nothing_else(endpoint: Endpoint) -> None:
    """A real request; with another body, key or time it is refused."""
    clock = ShiftedClock()
    instance = Instance(MemoryStore(clock), clock)
    org = Org(instance, clock)
    await org.configure(budgets=[budget(COST_USD_MICROS, 80, name="monthly", window="MONTH")])
    await org.add_channel(endpoint.url)
    await org.spend()
    await instance.aggregate()
    await instance.deliver()
    (taken,) = endpoint.requests

    check = verify()
    assert check(SECRET, taken.headers, taken.body)
    assert not check(SECRET, taken.headers, taken.body + b" ")
    assert not check(f"{SECRET}!", taken.headers, taken.body)
    late = {**taken.headers, "webhook-timestamp": str(int(time.time()) - 301)}
    assert not check(SECRET, late, taken.body)
    assert example().keys() == taken.json.keys()
    assert example()["about"].keys() == taken.json["about"].keys()
    await instance.close()


def test_every_kind_is_explained() -> None:
    """In both tables: when it alerts, and its facts."""
    for kind in AlertKind:
        assert TEXT.count(f"| `{kind}` |") == 2, kind
