"""An app settles the authorization of a call of its own while that is under way. It can't."""

import threading
from typing import Any

import pytest

from gateway.world import App, World, converse_body, directive
from http_fixtures import Reply
from scraping import until


def as_record(own_id: str) -> dict[str, Any]:
    return {
        "request_id": own_id,
        "model_label": "premium",
        "input_tokens": 0,
        "output_tokens": 0,
    }


@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
@pytest.mark.parametrize("way", ["void", "capture", "captures", "usage"])
def test_whoever_calls_does_not_say_what_was_used(
    world: World, app: App, operation: str, way: str
) -> None:
    replies: list[Reply] = []
    body = converse_body(directive(delay_ms=1_500, output_tokens=60))
    call = threading.Thread(
        target=lambda: replies.append(world.post(f"/model/premium/{operation}", body, app))
    )
    call.start()
    until(lambda: bool(app.unfinished("open")))
    own_id = app.unfinished("open")[0]["authorization_id"]
    used = {"input_tokens": 0, "output_tokens": 0}
    path, said = {
        "void": (f"authorizations/{own_id}/void", {}),
        "capture": (f"authorizations/{own_id}/capture", used),
        "captures": ("captures", {"captures": [{"authorization_id": own_id, **used}]}),
        "usage": ("usage", as_record(own_id)),
    }[way]
    answer = world.api.call("POST", f"{app.path}/{path}", said, token=app.token)
    if way == "captures":
        assert (answer.status, answer.json["results"][0]["code"]) == (207, "CONFLICT")
    else:
        assert (answer.status, answer.json["code"]) == (409, "CONFLICT")
    call.join()
    assert replies[0].status == 200
    world.assert_equal(app)
