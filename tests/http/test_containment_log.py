"""Who did what to whom, and why: one line in the log for each step.

And which steps an organisation's own key may take.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from http_fixtures import ENVIRONMENT, KEY, Api, Reply, Tenant
from scraping import until
from serving import Server, running_server
from thief import NOTHING, thief_of

REASON = "found in a public repository"
WHY = {"reason": REASON}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log has warnings."""
    environment = {**ENVIRONMENT, "PRICEKEEPER_LOG_LEVEL": "warning"}
    with running_server(tmp_path_factory.mktemp("log"), environment=environment) as running:
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


def steps(tenant: Tenant) -> list[tuple[str, str, str, Any]]:
    """Every step: the action's name, and the request."""
    session = tenant.login()["session_id"]
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
    """The same key has the same name, an organisation's key its own, and a new one another."""
    actors, keys = [], []
    for issued in (False, False, True, True):
        keys.append(fresh.issue_key() if issued else KEY)
        frozen = fresh.api.call("DELETE", f"{fresh.app}/freeze", key=keys[-1])
        actors.append(line_about(server, frozen)["actor"])
    assert actors[0] == actors[1]
    assert len(set(actors)) == 3
    assert all(one.startswith(f"org-key/{fresh.org_id}/") for one in actors[2:])
    output = server.output()
    assert not any(key in output or key[-12:] in output for key in keys)


def test_an_organisations_key_contains_its_own(server: Server, fresh: Tenant) -> None:
    """Every step, on the organisation and on its apps."""
    key = fresh.issue_key()
    thief = thief_of(fresh, fresh.client_id)
    for action, method, path, body in steps(fresh):
        done = fresh.api.call(method, path, body, key=key)
        assert done.status in (200, 204), (action, done.data)
        assert line_about(server, done)["actor"].startswith(f"org-key/{fresh.org_id}/")
    assert thief.ways_in() == NOTHING
    assert fresh.api.call("PUT", f"{fresh.org}/freeze", WHY, key=key).status == 200
    assert fresh.api.call("DELETE", f"{fresh.org}/freeze", key=key).status == 204
