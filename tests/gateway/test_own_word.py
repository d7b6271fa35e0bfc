"""An app can't settle the authorization of a gateway call that is under way."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from gateway.conftest import MakeWorld
from gateway.world import App, World, converse_body, directive
from http_fixtures import Reply
from scraping import until
from slowness import slow


def as_record(own_id: str) -> dict[str, Any]:
    return {"request_id": own_id, "model_label": "premium", "input_tokens": 0, "output_tokens": 0}


@pytest.mark.parametrize("operation", ["converse", *slow("converse-stream")])
def test_whoever_calls_does_not_say_what_was_used(world: World, app: App, operation: str) -> None:
    replies: list[Reply] = []
    body = converse_body(directive(delay_ms=800, output_tokens=60))
    call = threading.Thread(
        target=lambda: replies.append(world.post(f"/model/premium/{operation}", body, app))
    )
    call.start()
    until(lambda: bool(app.unfinished("open")))
    own_id = app.unfinished("open")[0]["authorization_id"]
    used = {"input_tokens": 0, "output_tokens": 0}
    for path, said in (
        (f"authorizations/{own_id}/void", {}),
        (f"authorizations/{own_id}/capture", used),
        ("captures", {"captures": [{"authorization_id": own_id, **used}]}),
        ("usage", as_record(own_id)),
    ):
        answer = world.api.call("POST", f"{app.path}/{path}", said, token=app.token)
        refused = answer.json["results"][0] if path == "captures" else answer.json
        assert answer.status == (207 if path == "captures" else 409)
        assert refused["code"] == "CONFLICT"
    call.join()
    assert replies[0].status == 200
    world.assert_equal(app)


@pytest.mark.parametrize("operation", ["converse", *slow("converse-stream")])
@pytest.mark.parametrize("case", ["first call", "later call", "voided elsewhere"])
def test_what_an_administrator_voids_under_way_counts_all_the_same(
    world: World, app: App, make_world: MakeWorld, operation: str, case: str
) -> None:
    """Bedrock bills it. It is a record of its own, and the authorization stays voided."""
    other = world
    if case != "first call":  # then the capture is not awaited
        assert world.converse(app).status == 200
        world.assert_equal(app)
    if case == "voided elsewhere":  # and the capture does not know of the void
        other = make_world(world.upstream_url, **world.location)
    before, replies = len(app.usage()), list[Reply]()
    body = converse_body(
        directive(delay_ms=800, output_tokens=60), requestMetadata={"team": "search"}
    )
    call = threading.Thread(
        target=lambda: replies.append(world.post(f"/model/premium/{operation}", body, app))
    )
    call.start()
    until(lambda: bool(app.unfinished("open")))
    (authorization,) = app.unfinished("open")
    own_id = authorization["authorization_id"]
    reason = {"reason": "it hangs"}
    voided = other.api.provision("POST", f"{app.org}/authorizations/{own_id}/void", reason)
    assert voided.status == 200, voided.data
    assert replace(app, api=other.api).books().held == 0
    call.join()
    assert replies[0].status == 200
    world.assert_equal(app)
    until(lambda: len(app.usage()) == before + 1)
    record = app.usage()[0]
    assert record["request_id"] != own_id
    assert record["tags"] == {"team": "search"}
    assert record["happened_at"] == authorization["authorized_at"]  # so are captures
    shown = world.api.call("GET", f"{app.path}/authorizations/{own_id}", token=app.token)
    assert shown.json["status"] == "voided"
