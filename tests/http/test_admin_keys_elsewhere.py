"""Two instances on one store: a key ends at once here, and within half a minute there.

Time is a clock that the test moves, so nothing waits.
"""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from http_fixtures import ORG, Api
from tokens.conftest import MovableClock
from two_instances import HALF_A_MINUTE_MS, instances

__all__ = ["instances"]

KEYS = "/api/v1/admin-keys"


class Both:
    """The instance that ends a key, another one, and a caller who uses the key at both."""

    def __init__(self, here: Api, there: Api, clock: MovableClock) -> None:
        self.here = here
        self.there = there
        self.clock = clock

    def create(self, **body: Any) -> Any:
        asked = {"name": "night shift", "role": "VIEWER", **body}
        made = self.here.provision("POST", KEYS, asked)
        assert made.status == 201, made.data
        return made.json

    def rotate(self, key_id: str, hours: int) -> Any:
        body = {"grace_period_hours": hours}
        return self.here.provision("POST", f"{KEYS}/{key_id}/rotate", body).json

    def opens(self, *keys: str) -> tuple[list[int], list[int]]:
        """What each key is answered here, and there."""
        here, there = (
            [api.call("GET", "/api/v1/orgs", key=key).status for key in keys]
            for api in (self.here, self.there)
        )
        return here, there


@pytest.fixture
def both(instances: tuple[Api, Api, MovableClock]) -> Both:
    return Both(*instances)


def test_deletion(both: Both) -> None:
    """Until then the other instance believes what it has read, which is what the bound is for."""
    made = both.create()
    assert both.opens(made["key"]) == ([200], [200])
    assert both.here.provision("DELETE", f"{KEYS}/{made['key_id']}").status == 204
    assert both.opens(made["key"]) == ([401], [200])
    both.clock.pass_ms(HALF_A_MINUTE_MS)
    assert both.opens(made["key"]) == ([401], [401])


@pytest.mark.parametrize("how", ["deleted", "rotated"])
def test_an_ended_key_changes_nothing_at_once(both: Both, how: str) -> None:
    made, fresh = (both.create(role="ADMIN") for _ in range(2))
    assert both.opens(made["key"]) == ([200], [200])
    if how == "deleted":
        assert both.here.provision("DELETE", f"{KEYS}/{made['key_id']}").status == 204
    else:
        both.rotate(made["key_id"], 0)
    assert both.opens(made["key"]) == ([401], [200])
    changes = [
        ("POST", KEYS, {"name": "heir", "role": "ADMIN"}),
        ("POST", f"{KEYS}/{fresh['key_id']}/rotate", {"grace_period_hours": 0}),
        ("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG),
        ("DELETE", f"{KEYS}/{fresh['key_id']}", None),
    ]
    for method, path, body in changes:
        refused = both.there.call(method, path, body, key=made["key"])
        assert refused.status == 401, (method, path, refused.data)


def test_rotation_without_grace(both: Both) -> None:
    """The new text opens everywhere at once, where it is shown first as well."""
    old = both.create()
    assert both.opens(old["key"]) == ([200], [200])
    fresh = both.rotate(old["key_id"], 0)
    assert both.opens(old["key"]) == ([401], [200])
    both.clock.pass_ms(HALF_A_MINUTE_MS)
    assert both.opens(old["key"], fresh["key"]) == ([401, 200], [401, 200])
    again = both.rotate(old["key_id"], 0)
    assert both.opens(again["key"], fresh["key"]) == ([200, 401], [200, 401])


def test_rotation_with_an_overlap(both: Both) -> None:
    """And a key with an end."""
    old = both.create()
    assert both.opens(old["key"]) == ([200], [200])
    fresh = both.rotate(old["key_id"], 1)
    for passed_ms, old_opens in (
        (0, 200), (3_600_000 - HALF_A_MINUTE_MS, 200), (HALF_A_MINUTE_MS, 401),
    ):  # fmt: skip
        both.clock.pass_ms(passed_ms)
        assert both.opens(old["key"], fresh["key"]) == ([old_opens, 200], [old_opens, 200])
    end = datetime.fromtimestamp(both.clock.now_ms() // 1000 + 60, UTC)
    expiring = both.create(expires_at=end.strftime("%Y-%m-%dT%H:%M:%SZ"))
    for passed_ms, status in ((50_000, 200), (10_000, 401)):
        both.clock.pass_ms(passed_ms)
        assert both.opens(expiring["key"]) == ([status], [status])
