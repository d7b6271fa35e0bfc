"""What operators are given is true: the documented settings and metrics, and the dashboard."""

import asyncio
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import Metric

from pricekeeper.bootstrap import Supervisor, open_services
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.sharing import ShareMeter
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import SPEND, Metrics
from pricekeeper.http.observing import Observer
from pricekeeper.settings import (
    ADMIN_KEY,
    API_LIMITS_PER_MINUTE,
    CLIENT_ID,
    CLIENT_SECRET,
    CLIENT_SETTINGS,
    MEMORY,
    RETRIEVAL_TOKEN,
    SETTINGS,
    URL,
    Settings,
    SqliteLocation,
)

ROOT = Path(__file__).parent.parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
OF_PROMETHEUS = {"instance", "le"}


async def observed() -> Metrics:
    """The metrics of a service, from its beginning."""
    with TemporaryDirectory() as folder:
        settings = Settings(SqliteLocation(MEMORY), data_dir=Path(folder))
        async with open_services(settings) as services:
            metrics = Metrics(services.meter)
            limits = ApiLimits(services.limiter, {})
            Observer(services, metrics, Supervisor(services.clock), limits).carry()
            metrics.watch(GatewayMeter())
            metrics.watch(ShareMeter())
            return metrics


METRICS = asyncio.run(observed())
FAMILIES: list[Metric] = list(METRICS.registry.collect())
LABELS = {family.name: set(family.labels) for family in METRICS.families}


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under that heading."""
    section = OPERATIONS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_setting_is_documented_as_it_is() -> None:
    """Name, default and meaning, in the order of the code; of a client without the default."""
    documented = [
        (name.strip("`"), "" if default == "none" else default.strip("`"), meaning)
        for name, default, meaning in table("Settings")
    ]
    assert documented == [(one.name, one.default, one.meaning) for one in SETTINGS]
    of_clients = [(name.strip("`"), meaning) for name, _, meaning in table("Settings of a client")]
    assert of_clients == [(one.name, one.meaning) for one in CLIENT_SETTINGS]


def test_no_setting_is_left_out() -> None:
    source = (path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    known = {
        name for text in source for name in re.findall(r"\bPRICEKEEPER_[A-Z0-9_]*[A-Z]\b", text)
    }
    service, client = (
        {name.strip("`") for name, *_ in table(heading)}
        for heading in ("Settings", "Settings of a client")
    )
    assert (service | client, service & client) == (known, set())
    guide = (ROOT / "docs" / "client.md").read_text("utf-8")
    assert all(name in guide for name in client - {RETRIEVAL_TOKEN, ADMIN_KEY})
    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(name in readme for name in (URL, CLIENT_ID, CLIENT_SECRET))


def test_the_documented_limits_are_the_limits() -> None:
    """The numbers in the text."""
    text = " ".join(OPERATIONS.split())
    for kind, count in API_LIMITS_PER_MINUTE.items():
        told = "refused credentials (`failures`)" if kind == "failures" else kind
        assert f"{told} {count:,}" in text


def test_every_metric_is_documented_and_nothing_else() -> None:
    """With its labels, what it means, and under the name that Prometheus has for it."""
    documented = {
        name.strip("`"): set(re.findall(r"`(\w+)`", labels))
        for name, labels, meaning, _ in table("Metrics")
        if meaning
    }
    exposed = {
        family.name + ("_total" if family.type == "counter" else ""): LABELS[family.name]
        for family in FAMILIES
    }
    assert documented == exposed


def test_something_is_to_be_alarmed_on() -> None:
    """The table names the alarms to begin with."""
    urgent = {row[0] for row in table("Metrics") if row[3].startswith("**")}
    assert urgent >= {
        "`pricekeeper_request_seconds`",
        "`pricekeeper_aggregator_lag_seconds`",
        "`pricekeeper_store_faults_total`",
        "`pricekeeper_job_crashes_total`",
    }


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    variables = DASHBOARD["templating"]["list"]
    return asked + [variable["query"]["query"] for variable in variables[1:]]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Every name in every query, with labels that it has; and no metric is left out."""
    exposed = {
        family.name + suffix: LABELS[family.name] | OF_PROMETHEUS
        for family in FAMILIES
        for suffix in SUFFIXES[family.type]
    }
    used: set[str] = set()
    for expression in expressions():
        names = set(re.findall(r"pricekeeper_\w+", expression))
        assert names <= exposed.keys(), expression
        used |= names
        matchers = re.findall(r"(\w+)\s*=~?\s*\"", expression)
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        labels = {*matchers, *(label.strip() for group in grouped for label in group.split(","))}
        assert all(labels <= exposed[name] for name in names), expression
    shown = {family.name for family in FAMILIES if any(n.startswith(family.name) for n in used)}
    assert shown == {family.name for family in FAMILIES}


def test_counters_are_asked_for_as_rates() -> None:
    for expression in expressions()[:-1]:
        for name in re.findall(r"pricekeeper_\w+_(?:total|bucket|sum|count)\b", expression):
            rate = rf"(rate|increase)\({name}\{{"
            assert name == SPEND.name or re.search(rate, expression), expression


def test_the_dashboard_begins_with_dollars() -> None:
    """By names: what this is about comes before how the service is."""
    first, *_ = DASHBOARD["panels"]
    assert (first["type"], first["title"]) == ("row", "Dollars")
    assert all(SPEND.name in panel["targets"][0]["expr"] for panel in panels()[:2])
    named = [target["legendFormat"] for panel in panels()[:6] for target in panel["targets"]]
    assert "{{org}} {{app}}" in named


def test_the_dashboard_fits_any_grafana() -> None:
    """No address of a data source in it, a recent schema, and nothing on top of anything else."""
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])
        assert panel["description"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_file_it_points_to_exists() -> None:
    """A link that leads nowhere is a bug of the document."""
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", OPERATIONS):
        assert (ROOT / "docs" / target).exists(), target
