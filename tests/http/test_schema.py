"""The OpenAPI document is true: schemathesis finds no answer that it does not announce."""

import subprocess
import sys
from pathlib import Path

import pytest

from http_fixtures import ENVIRONMENT, KEY, Api, Tenant
from pricekeeper.http.app import OPERATIONS
from pricekeeper.http.openapi import openapi
from serving import running_server

# Which labels and time zones exist is not a matter of the schema, so a body that fits the
# schema may still be refused; every other check is on.
EXCLUDED_CHECKS = "positive_data_acceptance"
# These would take the token away that all the others are tried with.
ENDING = ("endSessions", "endSession", "deleteOrg", "deleteApp", "revokeToken")


def run_schemathesis(folder: Path, tenant: Tenant, *arguments: str) -> None:
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        *(f"{tenant.api.url}/openapi.json", "--checks", "all"),
        *("--exclude-checks", EXCLUDED_CHECKS, "--continue-on-failure", "--no-color"),
        *("--phases", "examples,coverage,fuzzing,stateful", "--seed", "1"),
        *("-H", f"Authorization: Bearer {tenant.org_token}", "-H", f"X-API-Key: {KEY}"),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)  # noqa: S603
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.timeout(600)
def test_every_answer_is_announced(tmp_path: Path) -> None:
    """On a real tenant: all checks, stateful links, no 5xx, no undocumented answer."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        ids = f'[parameters]\n"path.org_id" = "{tenant.org_id}"\n"path.app_id" = "web"\n'
        (tmp_path / "schemathesis.toml").write_text(ids)
        skipped = [word for name in ENDING for word in ("--exclude-operation-id", name)]
        run_schemathesis(tmp_path, tenant, "--max-examples", "6", *skipped)
        assert tenant.login(tenant.client_id)["token_type"] == "Bearer"


@pytest.mark.timeout(600)
def test_every_operation_takes_anything(tmp_path: Path) -> None:
    """With ids that schemathesis makes up, and the operations that end things among them."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        run_schemathesis(tmp_path, tenant, "--max-examples", "3")


def test_the_document_speaks_of_every_operation_once() -> None:
    """Names are unique, and each has a summary."""
    document = openapi(OPERATIONS)
    described = [
        operation for methods in document["paths"].values() for operation in methods.values()
    ]
    assert len(described) == len(OPERATIONS)
    assert len({operation["operationId"] for operation in described}) == len(OPERATIONS)
    assert all(operation["summary"].endswith(".") for operation in described)
