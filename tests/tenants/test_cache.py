"""Policies that were read a moment ago: how long, how many, and never a change missed."""

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.tenants import Client, Policy
from pricekeeper.tenants.cache import POLICY_AGE_MS_MAX, PolicyCache
from pricekeeper.tenants.parsing import parse_org_settings
from pricekeeper.tenants.policy import Life, org_policy
from pricekeeper.values import AppId
from tenants.conftest import LABELS, new_org_id, org_body


def policy(client: Client) -> Policy:
    return org_policy(client, parse_org_settings(org_body(), LABELS), Life("i", 1, 0, 0, "g", 0))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> PolicyCache:
    return PolicyCache(clock, entries_max=3)


def test_what_was_read_is_remembered(cache: PolicyCache) -> None:
    """Under its client, and no other."""
    client = Client(new_org_id())
    cache.keep(policy(client), cache.reading())
    assert cache.get(client) == policy(client)
    assert cache.get(Client(new_org_id())) is None


def test_its_age_counts_from_before_the_read(cache: PolicyCache, clock: ManualClock) -> None:
    """A slow read brings an old answer; half a minute is the most, to the millisecond."""
    client = Client(new_org_id())
    reading = cache.reading()
    clock.advance_ms(20_000)
    cache.keep(policy(client), reading)
    clock.advance_ms(POLICY_AGE_MS_MAX - 20_000 - 1)
    assert cache.get(client) is not None
    clock.advance_ms(1)
    assert cache.get(client) is None


def test_the_wall_clock_does_not_matter(cache: PolicyCache, clock: ManualClock) -> None:
    """Setting it back must not keep a deleted client alive."""
    client = Client(new_org_id())
    cache.keep(policy(client), cache.reading())
    clock.jump_ms(-86_400_000)
    clock.advance_ms(POLICY_AGE_MS_MAX)
    assert cache.get(client) is None


def test_the_least_recently_used_makes_room(cache: PolicyCache) -> None:
    """The bound holds, and whoever is asked for stays."""
    first, second, *others = (Client(new_org_id()) for _ in range(4))
    for client in (first, second, others[0]):
        cache.keep(policy(client), cache.reading())
    cache.get(first)
    cache.keep(policy(others[1]), cache.reading())
    known = [client for client in (first, second, *others) if cache.get(client)]
    assert known == [first, *others]


def test_a_read_that_overlaps_a_change_is_not_kept(cache: PolicyCache) -> None:
    """It may have missed the change, which would then stay unseen for half a minute."""
    client = Client(new_org_id())
    reading = cache.reading()
    cache.forget(client)
    cache.keep(policy(client), reading)
    assert cache.get(client) is None


def test_an_organisation_takes_its_apps_with_it(cache: PolicyCache) -> None:
    """They inherit from it; an app takes nobody with it, and no other tenant is touched."""
    org, other = Client(new_org_id()), Client(new_org_id())
    app = Client(org.org_id, AppId("api"))
    for client in (org, app, other):
        cache.keep(policy(client), cache.reading())
    cache.forget(app)
    assert [cache.get(client) is not None for client in (org, app, other)] == [True, False, True]
    cache.keep(policy(app), cache.reading())
    cache.forget(org)
    assert [cache.get(client) is not None for client in (org, app, other)] == [False, False, True]
