"""The OpenAPI document is true: no answer that it does not announce, no refusal of what fits it."""

import os
import subprocess
import sys
import zoneinfo
from importlib import resources
from pathlib import Path

import msgspec
import pytest
import yaml

from http_fixtures import ENVIRONMENT, KEY, Api, Tenant
from pricekeeper.http.openapi import openapi
from pricekeeper.http.routes import ROUTES
from pricekeeper.pricing.deployment import BUILT_IN
from pricekeeper.wire.settings import TimeZone
from serving import running_server

HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
SMOKE = [word for name in ("listApps", "getApp") for word in ("--include-operation-id", name)]
# These would take the token away that all the others are tried with.
ENDING = (
    *("endSessions", "endSession", "deleteOrg", "deleteApp", "revokeToken"),
    *(
        name.format(kind)
        for kind in ("Org", "App")
        for name in ("revoke{}Credentials", "end{}Sessions", "end{}Session", "freeze{}")
    ),
)


# A text that is too long for its field can be too long for the body before.
REFUSALS = """
[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429]
"""
# What CI has time for; the profile that looks further goes through everything.
EVERYTHING = "examples,coverage,fuzzing,stateful"
FURTHER = ("--phases", EVERYTHING, "--max-examples", "50")
LOOKS_FURTHER = os.environ.get("HYPOTHESIS_PROFILE") == "dev"


def run_schemathesis(
    folder: Path, tenant: Tenant, phases: str, examples: int, *arguments: str
) -> None:
    effort = FURTHER if LOOKS_FURTHER else ("--phases", phases, "--max-examples", str(examples))
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        *(f"{tenant.api.url}/openapi.json", "--checks", "all", "--continue-on-failure"),
        *("--no-color", "--seed", "1", *effort),
        *("-H", f"Authorization: Bearer {tenant.org_token}", "-H", f"X-API-Key: {KEY}"),
        *arguments,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HOOKS.parents[1]),
        "SCHEMATHESIS_HOOKS": str(HOOKS),
        "PRICEKEEPER_URL": tenant.api.url,
    }
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A deployment that has prices for every way a call can be served."""
    built_in = resources.files("pricekeeper.pricing") / BUILT_IN
    deployment = yaml.safe_load(built_in.read_text("utf-8"))
    for model in deployment["models"].values():
        model["batch"] = {"multiplier_permille": 500}
        tiers = ("priority", "flex", "reserved")
        model["service_tiers"] = {tier: {"multiplier_permille": 1500} for tier in tiers}
    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(deployment), "utf-8")
    return {**ENVIRONMENT, "PRICEKEEPER_CONFIG": str(path)}


@pytest.mark.timeout(3600 if LOOKS_FURTHER else 600)
@pytest.mark.parametrize("is_smoke", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_answer_is_announced(
    tmp_path: Path, environment: dict[str, str], *, is_smoke: bool
) -> None:
    """On a real tenant: all checks, stateful links, no 5xx, no undocumented answer."""
    with running_server(tmp_path, environment=environment) as server:
        tenant = Tenant(Api(server.url)).register()
        ids = f'[parameters]\n"path.org_id" = "{tenant.org_id}"\n"path.app_id" = "web"\n'
        (tmp_path / "schemathesis.toml").write_text(ids + REFUSALS)
        skipped = [word for name in ENDING for word in ("--exclude-operation-id", name)]
        run_schemathesis(tmp_path, tenant, EVERYTHING, 2, *(SMOKE if is_smoke else skipped))
        assert tenant.login()["token_type"] == "Bearer"


@pytest.mark.slow
@pytest.mark.timeout(3600 if LOOKS_FURTHER else 600)
def test_every_operation_takes_anything(tmp_path: Path, environment: dict[str, str]) -> None:
    """With ids that schemathesis makes up, and the operations that end things among them."""
    with running_server(tmp_path, environment=environment) as server:
        tenant = Tenant(Api(server.url)).register()
        (tmp_path / "schemathesis.toml").write_text(REFUSALS)
        run_schemathesis(tmp_path, tenant, "examples,fuzzing,stateful", 2)
        ending = [word for name in ENDING for word in ("--include-operation-id", name)]
        run_schemathesis(tmp_path, tenant, "coverage", 1, *ending)


def test_the_document_speaks_of_every_operation_once() -> None:
    """Names are unique, and each has a summary."""
    document = openapi(ROUTES)
    described = [
        operation for methods in document["paths"].values() for operation in methods.values()
    ]
    assert len(described) == len(ROUTES)
    assert len({operation["operationId"] for operation in described}) == len(ROUTES)
    assert all(operation["summary"].endswith(".") for operation in described)


def test_every_time_zone_fits_the_document() -> None:
    for zone in zoneinfo.available_timezones() - {"localtime"}:
        assert msgspec.convert(zone, TimeZone) == zone
