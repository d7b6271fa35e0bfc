"""The alerting rules: Prometheus reads them, and they ask for metrics and labels that there are."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import promql_parser
import pytest
import yaml

from pricekeeper.bootstrap import Supervisor, open_services
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.sharing import ShareMeter
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.observing import Observer
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.telemetry import Kind

RULES = Path(__file__).parents[2] / "deploy" / "prometheus-rules.yaml"
TABLE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]
]
SUFFIXES = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",)}
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


async def exposed() -> dict[str, set[str]]:
    """The labels of each series that a service shows."""
    with TemporaryDirectory() as folder:
        settings = Settings(SqliteLocation(MEMORY), data_dir=Path(folder))
        async with open_services(settings) as services:
            metrics = Metrics(services.meter)
            limits = ApiLimits(services.limiter, {})
            Observer(services, metrics, Supervisor(services.clock), limits).carry()
            metrics.watch(GatewayMeter())
            metrics.watch(ShareMeter())
            found = {}
            for family in metrics.families:
                name = family.name.removesuffix("_total")
                if family.kind is Kind.GAUGE:
                    name = family.name
                for suffix in SUFFIXES.get(family.kind, OF_HISTOGRAMS):
                    found[name + suffix] = {*family.labels, *(["le"] * (suffix == "_bucket"))}
            return found


EXPOSED = asyncio.run(exposed())


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_a_rule_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    """Its expression parses; every metric exists, with every label that it is asked for by."""
    promql_parser.parse(rule["expr"])
    names = set(re.findall(r"pricekeeper_\w+", rule["expr"]))
    assert names
    assert names <= EXPOSED.keys()
    matched = re.findall(r"[{,]\s*(\w+)\s*=~?\s*\"", rule["expr"])
    grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
    labels = {*matched, *(label.strip() for group in grouped for label in group.split(","))}
    assert labels <= set().union(*(EXPOSED[name] for name in names))
    for group, name in re.findall(r"\bby \(([^)]*)\) \((?:\w+\()?(pricekeeper_\w+)", rule["expr"]):
        assert {label.strip() for label in group.split(",")} <= EXPOSED[name]
    texts = " ".join(rule["annotations"].values())
    last = {label.strip() for label in grouped[0].split(",")} if grouped else set()
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= last
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_no_rule_has_the_name_of_another() -> None:
    """Who is woken finds one rule of that name."""
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)


def test_what_the_document_calls_an_alarm_has_a_rule() -> None:
    """Each metric with a bold alarm in docs/operations.md."""
    section = TABLE.partition("### What each metric means")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    alarmed = {row[1].strip(" `") for row in rows if "**" in row[-2]}
    ruled = " ".join(rule["expr"] for rule in ALERTS)
    left_out = {"pricekeeper_authorizations_settled_total", "pricekeeper_gateway_unsettled_total"}
    """Both end as dollars that are unsettled, which has a rule."""
    assert {name for name in alarmed if name not in ruled} <= left_out


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on this machine")
def test_promtool_agrees() -> None:
    """Where Prometheus's own tool is, it is asked too."""
    command = ["promtool", "check", "rules", str(RULES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
