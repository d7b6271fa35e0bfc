"""The guide names only what exists: files, settings, tables, commands, and JSON that parses."""

import json
import re
from typing import Any

import pytest
import typer.main
import yaml

from deploy.conftest import ROOT
from pricekeeper.bootstrap.secrets import KEY_FILE
from pricekeeper.cli.commands import app
from pricekeeper.cli.listening import Listening
from pricekeeper.credentials.peppers import PEPPER_FILE
from pricekeeper.http.server import GRACEFUL_SECS
from pricekeeper.settings import METRICS_TOKEN, SETTINGS, AwsSecret, read_settings
from pricekeeper.storage.tables import ALL_TABLES

GUIDE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def test_every_file_of_ours_that_it_names_exists() -> None:
    """A path in the guide can be opened."""
    named = set(re.findall(r"\b(?:deploy|tools|docs)/[\w./-]+\w", GUIDE))

    assert len(named) > 5
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_every_file_that_is_shipped_for_deploying_is_named() -> None:
    """What is in `deploy/` is explained."""
    shipped = {path.name for path in (ROOT / "deploy").iterdir() if path.is_file()}

    assert sorted(name for name in shipped if f"deploy/{name}" not in GUIDE) == []


def test_every_setting_that_it_names_exists() -> None:
    """A misspelt variable would be ignored in silence."""
    named = set(re.findall(r"\bPRICEKEEPER_[A-Z_]+[A-Z]\b", GUIDE))

    assert named <= {setting.name for setting in SETTINGS}


def test_every_command_that_it_names_exists() -> None:
    """Of the line ``pricekeeper a b --option``, each word up to the first option."""
    lines = re.findall(r"(?:^|[`/])pricekeeper ((?:[a-z]+(?:-[a-z]+)* ?)+)", GUIDE, re.MULTILINE)
    assert lines
    for line in lines:
        known: Any = typer.main.get_command(app)
        for word in line.split():
            known = getattr(known, "commands", {}).get(word)
            assert known is not None, f"pricekeeper {line}"


def test_the_files_to_keep_are_called_so() -> None:
    """A reader of the guide backs up the right files."""
    assert f"`{KEY_FILE}` in the data folder" in GUIDE
    assert f"`{PEPPER_FILE}` in the data folder" in GUIDE


def test_a_restore_covers_every_table() -> None:
    """A table that is left behind would be created again, empty."""
    loops = re.findall(r"^for table in ((?:[^;]|\\\n)+); do$", GUIDE, re.MULTILINE)

    assert len(loops) == 2
    for loop in loops:
        assert loop.replace("\\\n", " ").split() == [table.name for table in ALL_TABLES]


def test_the_task_definition_can_be_served_and_leaves_time_to_drain() -> None:
    """Its settings are understood, and it is not killed while it commits what it has accepted."""
    (text,) = blocks("json")
    (container,) = json.loads(text)["containerDefinitions"]
    settings = read_settings({given["name"]: given["value"] for given in container["environment"]})

    assert {type(settings.signing_keys), type(settings.pepper)} == {AwsSecret}
    assert "volumes" not in json.loads(text), "nothing is shared but the store and the secrets"
    assert settings.trusted_proxies, "everybody would have the load balancer's address"
    assert not Listening("0.0.0.0", 8080, settings.trusted_proxies).is_exposed  # noqa: S104
    assert container["stopTimeout"] >= settings.drain_secs + GRACEFUL_SECS
    assert container["stopTimeout"] <= 120, "ECS allows no more"


def test_the_task_is_asked_for_its_health_where_it_listens() -> None:
    """On the listener that overload does not hold up; its metrics are behind a token."""
    (text,) = blocks("json")
    (container,) = json.loads(text)["containerDefinitions"]
    settings = read_settings({given["name"]: given["value"] for given in container["environment"]})

    assert settings.metrics_address is not None
    assert f":{settings.metrics_address.port}/healthz" in container["healthCheck"]["command"][-1]
    assert {"containerPort": settings.metrics_address.port} in container["portMappings"]
    assert METRICS_TOKEN in {secret["name"] for secret in container["secrets"]}


def test_prometheus_looks_where_the_metrics_are() -> None:
    """The unit's listener, and the service's own port with a token."""
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text("utf-8"))["scrape_configs"]
    unit = (ROOT / "deploy/pricekeeper.service").read_text("utf-8")
    settings = read_settings(dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE)))

    assert settings.metrics_address is not None
    listener = f"{settings.metrics_address.host}:{settings.metrics_address.port}"
    assert jobs[0]["static_configs"] == [{"targets": [listener]}]
    assert "credentials_file" in jobs[1]["authorization"]


@pytest.mark.parametrize("name", ["compose.yaml", "deploy/pricekeeper.service"])
def test_nothing_is_killed_while_it_drains(name: str) -> None:
    """The service has more time to stop than it needs."""
    text = (ROOT / name).read_text(encoding="utf-8")
    (seconds,) = re.findall(r"^\s*(?:stop_grace_period: |TimeoutStopSec=)(\d+)", text, re.MULTILINE)

    assert int(seconds) > GRACEFUL_SECS + read_settings({}).drain_secs
