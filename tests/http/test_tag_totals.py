"""Totals by the values of declared tags: over a socket, on each store."""

from http_fixtures import Tenant
from pricekeeper.storage.tables import DAILY_TOTAL
from spend_world import World, world

__all__ = ["world"]


def totals(world: World, tenant: Tenant, key: str) -> dict[str, int]:
    """How many requests each value of the tag has, over all hours."""
    pk = f"ORG#{tenant.org_id}#APP#web#LABEL#premium"
    counts: dict[str, int] = {}
    for item in world.items(DAILY_TOTAL, pk, f"TAG#{key}#"):
        value = item["SK"].split("#", 4)[4]
        counts[value] = counts.get(value, 0) + item["requests"]
    return counts


def test_spend_is_totalled_by_the_tags_that_are_declared(world: World) -> None:
    """A record counts by those of its tags that are declared when it is counted."""
    tenant = world.tenant()
    world.record(tenant, tags={"team": "before"})
    answer = world.api.provision("GET", tenant.org).json
    assert answer["configuration"]["tag_keys"] == []
    world.configure(tenant, tag_keys=["team", "feature"])
    world.clock.at_ms += 60_000  # longer than settings are remembered
    answer = world.api.provision("GET", tenant.org).json
    assert answer["configuration"]["tag_keys"] == ["team", "feature"]
    world.record(tenant, tags={"team": "red#1", "colour": "blue"})
    world.record(tenant, tags={"team": "red#1", "feature": ""})
    world.record(tenant)
    world.configure(tenant, tag_keys=["feature"])
    world.clock.at_ms += 60_000
    world.record(tenant, tags={"team": "after", "feature": "chat"})
    world.aggregate()
    assert totals(world, tenant, "team") == {"red#1": 2}
    assert totals(world, tenant, "feature") == {"": 1, "chat": 1}
    assert totals(world, tenant, "colour") == {}


def test_an_app_shows_the_tags_of_its_organisation(world: World) -> None:
    """They are not its own, so they are not among what it inherits either."""
    tenant = world.tenant(tag_keys=["team"])
    answer = world.api.provision("GET", tenant.app).json
    assert answer["configuration"]["tag_keys"] == ["team"]
    assert "tag_keys" not in answer["inherited_fields"]
