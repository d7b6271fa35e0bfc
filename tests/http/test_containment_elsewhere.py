"""Two instances on one store, over their sockets: at once here, within half a minute there.

Time is a clock that the test moves, so nothing waits.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from http_fixtures import Api, Reply, Tenant
from pricekeeper.tenants.reading import POLICY_AGE_MS_MAX
from pricekeeper.tokens.validation import RECALL_MS, VALIDITY_AGE_MS_MAX
from thief import ACCESS, EVERYTHING, NOTHING, OUTSIDE, SECRET, Thief, claim, thief_of
from tokens.conftest import MovableClock
from two_instances import HALF_A_MINUTE_MS, instances

__all__ = ["instances"]

WHY = {"reason": "leaked"}

Contain = Callable[[Tenant, Thief], object]


class Instances:
    """The instance that acts, another one, and a thief who uses both."""

    def __init__(self, here: Api, there: Api, clock: MovableClock) -> None:
        self.here = here
        self.there = there
        self.clock = clock
        self.tenant = Tenant(here).register()

    def thieves(self) -> tuple[Thief, Thief]:
        """One session, used at both, so that both remember what they asked about it."""
        here = thief_of(self.tenant, self.tenant.client_id)
        there = replace(here, api=self.there)
        for one in (here, there):
            assert one.call().status == 200
            assert one.call(one.outside).status == 200
            assert select(one).status == 200
        return here, there


def select(thief: Thief, token: str | None = None) -> Reply:
    token = token or thief.granted["access_token"]
    return thief.api.call("GET", f"{thief.path}/model-selection", token=token)


def acquire(thief: Thief) -> Reply:
    body = {"resource": "premium", "consume": {"rpm": 1}}
    path, token = f"{thief.path}/limits/acquire", thief.granted["access_token"]
    return thief.api.call("POST", path, body, token=token)


@pytest.fixture
def both(instances: tuple[Api, Api, MovableClock]) -> Instances:
    return Instances(*instances)


def revoke(tenant: Tenant, _: Thief) -> None:
    path = f"{tenant.app}/credentials/revoke"
    assert tenant.api.provision("POST", path, WHY).status == 200


def rotate(tenant: Tenant, _: Thief) -> None:
    path = f"{tenant.app}/credentials/rotate"
    claim(tenant, tenant.api.provision("POST", path, {"grace_period_hours": 0}))


def end_all(tenant: Tenant, _: Thief) -> None:
    assert tenant.api.provision("DELETE", f"{tenant.app}/sessions").status == 204


def end_one(tenant: Tenant, thief: Thief) -> None:
    path = f"{tenant.app}/sessions/{thief.granted['session_id']}"
    assert tenant.api.provision("DELETE", path).status == 204


def revoke_outside(_: Tenant, thief: Thief) -> None:
    """Revoke the token by itself, as its client may."""
    body = {"token": thief.outside}
    assert thief.api.call("POST", "/auth/revoke", body, token=thief.outside).status == 200


def delete(tenant: Tenant, _: Thief) -> None:
    assert tenant.api.provision("DELETE", tenant.app).status == 204


def test_the_bound_is_half_a_minute() -> None:
    """What an instance remembers of a client and of a token is believed no longer than that."""
    assert max(POLICY_AGE_MS_MAX, VALIDITY_AGE_MS_MAX) + RECALL_MS == HALF_A_MINUTE_MS


@pytest.mark.parametrize(
    ("contain", "left"),
    [
        (revoke, NOTHING),
        (rotate, NOTHING),
        (end_all, {SECRET}),
        (end_one, {SECRET, OUTSIDE}),
        (revoke_outside, EVERYTHING - {OUTSIDE}),
        (delete, NOTHING),
    ],
    ids=["revoke", "rotate", "end all", "end one", "revoke the one outside", "delete"],
)
def test_a_thiefs_tokens_stop_here_at_once_and_there_within_half_a_minute(
    both: Instances, contain: Contain, left: set[str]
) -> None:
    here, there = both.thieves()
    contain(both.tenant, here)
    assert here.ways_in() == left
    assert there.ways_in() - ({ACCESS, OUTSIDE} - left) == left
    if contain is end_all:  # until then the other instance believes what it remembers
        assert there.ways_in() == {SECRET, ACCESS, OUTSIDE}
    both.clock.pass_ms(HALF_A_MINUTE_MS)
    assert there.ways_in() == left


@pytest.mark.parametrize("whole", [True, False], ids=["org", "app"])
def test_a_freeze_holds_here_at_once_and_there_within_half_a_minute(
    both: Instances, *, whole: bool
) -> None:
    here, there = both.thieves()
    path = f"{both.tenant.org if whole else both.tenant.app}/freeze"
    assert both.here.provision("PUT", path, WHY).status == 200
    assert [select(here).code, acquire(here).code] == ["FROZEN", "FROZEN"]
    assert select(here, here.outside).code == "FROZEN"
    assert select(there).status == 200
    both.clock.pass_ms(HALF_A_MINUTE_MS)
    assert [select(there).code, acquire(there).code] == ["FROZEN", "FROZEN"]
    assert select(there, there.outside).code == "FROZEN"
    assert there.ways_in() == EVERYTHING
    assert both.here.provision("DELETE", path).status == 204
    assert [select(here).status, acquire(here).status] == [200, 200]
    both.clock.pass_ms(HALF_A_MINUTE_MS)
    assert [select(there).status, acquire(there).status] == [200, 200]


def test_freezing_what_was_frozen_elsewhere_holds_here_at_once(both: Instances) -> None:
    here, there = both.thieves()
    path = f"{both.tenant.app}/freeze"
    assert both.here.provision("PUT", path, WHY).status == 200
    assert select(there).status == 200
    assert both.there.provision("PUT", path, WHY).status == 200
    assert [select(one).code for one in (here, there)] == ["FROZEN", "FROZEN"]
    assert both.there.provision("DELETE", path).status == 204
    assert select(here).code == "FROZEN"
    assert both.here.provision("DELETE", path).status == 204
    assert select(here).status == 200


def test_a_bucket_that_was_reset_here_is_full_there(both: Instances) -> None:
    """At once: what an instance remembers of a bucket is never believed against the store."""
    _, there = both.thieves()
    while acquire(there).status == 200:
        pass
    path = f"{both.tenant.app}/limits/reset"
    assert both.here.provision("POST", path, WHY).json["labels"] == ["premium"]
    path = f"{both.tenant.org}/limits/reset"
    assert both.here.provision("POST", path, WHY).json["labels"] == ["premium"]
    assert acquire(there).status == 200
