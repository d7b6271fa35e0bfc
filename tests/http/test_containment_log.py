"""Who did what to whom, and why: one line in the log for each step.

And which steps an organisation's own key may take.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_fixtures import ENVIRONMENT, KEY, Api, Reply, Tenant
from scraping import until
from serving import Server, running_server
from thief import EVERYTHING, NOTHING, thief_of

REASON = "found in a public repository"
WHY = {"reason": REASON}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log has warnings."""
    folder: Path = tmp_path_factory.mktemp("log")
    environment = {**ENVIRONMENT, "PRICEKEEPER_LOG_LEVEL": "warning"}
    with running_server(folder, environment=environment) as running:
        yield running


@pytest.fixture
def fresh(api: Api) -> Tenant:
    return Tenant(api).register()


def lines(server: Server) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == "audit"]


def line_about(server: Server, reply: Reply) -> dict[str, Any]:
    """The one line that has the request's id."""

    def found() -> list[dict[str, Any]]:
        request_id = reply.headers["x-request-id"]
        return [line for line in lines(server) if line["request_id"] == request_id]

    until(lambda: bool(found()), server.output)
    (line,) = found()
    return line


def issue(tenant: Tenant) -> str:
    issued = tenant.api.provision("POST", f"{tenant.org}/provisioning-key")
    key: str = issued.json["provisioning_key"]
    return key


def steps(tenant: Tenant) -> list[tuple[str, str, str, Any]]:
    """Every step: the action's name, and the request."""
    session = tenant.login(tenant.client_id)["session_id"]
    query = "?reason=found%20in%20a%20public%20repository"
    app = tenant.app
    return [
        ("sessions.end", "DELETE", f"{app}/sessions/{session}{query}", None),
        ("sessions.end_all", "DELETE", f"{app}/sessions{query}", None),
        ("sessions.end_all", "DELETE", f"{app}/sessions", WHY),
        ("freeze", "PUT", f"{app}/freeze", WHY),
        ("unfreeze", "DELETE", f"{app}/freeze{query}", None),
        ("limits.reset", "POST", f"{app}/limits/reset", WHY),
        ("credentials.revoke", "POST", f"{app}/credentials/revoke", WHY),
    ]


def test_each_step_has_a_line(server: Server, fresh: Tenant) -> None:
    for action, method, path, body in steps(fresh):
        done = fresh.api.provision(method, path, body)
        assert done.status in (200, 204), done.data
        line = line_about(server, done)
        assert line.pop("timestamp").endswith("Z")
        assert re.fullmatch(r"deployment-key/[0-9a-f]{12}", line.pop("actor"))
        assert line == {
            "event": "audit",
            "level": "warning",
            "action": action,
            "target": fresh.client_id,
            "address": "127.0.0.1",
            "reason": REASON,
            "outcome": "done",
            "request_id": done.headers["x-request-id"],
        }


def test_the_actor_tells_keys_apart_and_tells_nothing_of_them(
    server: Server, fresh: Tenant
) -> None:
    """The same key has the same name; each organisation's has its own, and a new one another."""
    actors = []
    for key in (KEY, KEY, issue(fresh), issue(fresh)):
        frozen = fresh.api.call("DELETE", f"{fresh.app}/freeze", key=key)
        if frozen.status == 401:
            continue  # replaced by the one issued after it
        actors.append(line_about(server, frozen)["actor"])
    assert len(actors) == 3
    assert actors[0] == actors[1]
    assert actors[2].startswith(f"org-key/{fresh.org_id}/")
    second = issue(fresh)
    frozen = fresh.api.call("DELETE", f"{fresh.app}/freeze", key=second)
    assert line_about(server, frozen)["actor"] not in actors
    output = server.output()
    for key in (KEY, second):
        assert key not in output
        assert key[-12:] not in output


def test_what_is_refused_has_no_line(server: Server, fresh: Tenant) -> None:
    """Nothing was done: a bad reason, a client that does not exist, a key that may not."""
    before = len(lines(server))
    for path, body in (
        (f"{fresh.app}/credentials/revoke", {"reason": ""}),
        (f"{fresh.org}/apps/missing/credentials/revoke", WHY),
    ):
        assert fresh.api.provision("POST", path, body).status in (400, 404)
    missing = fresh.api.provision("DELETE", f"{fresh.app}/sessions/000-{'A' * 22}")
    assert missing.status == 404
    last = fresh.api.provision("PUT", f"{fresh.app}/freeze", WHY)
    line_about(server, last)
    assert len(lines(server)) == before + 1


def test_an_organisations_key_contains_its_own(server: Server, fresh: Tenant) -> None:
    """Every step, on the organisation and on its apps."""
    key = issue(fresh)
    thief = thief_of(fresh, fresh.client_id)
    for action, method, path, body in steps(fresh):
        done = fresh.api.call(method, path, body, key=key)
        assert done.status in (200, 204), (action, done.data)
        assert line_about(server, done)["actor"].startswith(f"org-key/{fresh.org_id}/")
    assert thief.ways_in() == NOTHING
    assert fresh.api.call("PUT", f"{fresh.org}/freeze", WHY, key=key).status == 200
    assert fresh.api.call("DELETE", f"{fresh.org}/freeze", key=key).status == 204


@pytest.mark.parametrize("whole", [True, False], ids=["org", "app"])
def test_it_does_not_lift_what_the_deployments_key_has_frozen(
    fresh: Tenant, *, whole: bool
) -> None:
    key, path = issue(fresh), f"{fresh.org if whole else fresh.app}/freeze"
    assert fresh.api.provision("PUT", path, WHY).status == 200
    selection = f"{fresh.app}/model-selection"
    for method, body in (("DELETE", None), ("PUT", {"reason": "mine"}), ("DELETE", None)):
        refused = fresh.api.call(method, path, body, key=key)
        assert (refused.status, refused.code) == (403, "FORBIDDEN")
        assert "administrator" in refused.json["detail"]
        assert fresh.api.call("GET", selection, token=fresh.app_token).json["reason"] == REASON
    if not whole:  # it could create the app again, without the freeze
        refused = fresh.api.call("DELETE", fresh.app, key=key)
        assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert fresh.api.provision("DELETE", path).status == 204
    assert fresh.api.call("GET", selection, token=fresh.app_token).status == 200
    assert thief_of(fresh, fresh.client_id).ways_in() == EVERYTHING
