"""An unregistered app has its organisation's settings, if it spends its organisation's quotas."""

import pytest

from attribution import BY
from pricekeeper.errors import NotFoundError
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Tenants
from pricekeeper.tenants.configuration import INHERITED
from pricekeeper.values import AppId, OrgId
from tenants.conftest import app_body, new_org_id, org_body

APP = AppId("batch")


@pytest.fixture
async def org(tenants: Tenants) -> OrgId:
    """An organisation whose apps share its quotas."""
    org_id = new_org_id()
    await tenants.put_org(org_id, org_body(quota_scope="ORG", session_limit=7), BY)
    return org_id


async def test_it_has_its_organisations_settings(tenants: Tenants, org: OrgId) -> None:
    """All of them, and it spends where its organisation does."""
    policy, whole = await tenants.find_policy(org, APP), await tenants.find_policy(org)
    assert policy.client == Client(org, APP)
    assert not policy.is_registered
    assert policy.inherited_fields == INHERITED
    assert policy.scope_key == whole.scope_key == f"ORG#{org}"
    for name in INHERITED:
        assert getattr(policy, name) == getattr(whole, name)


async def test_under_app_scope_it_does_not_exist(tenants: Tenants) -> None:
    """Each made-up name would bring quotas of its own."""
    org_id = new_org_id()
    await tenants.put_org(org_id, org_body(quota_scope="APP"), BY)
    with pytest.raises(NotFoundError):
        await tenants.find_policy(org_id, APP)


async def test_it_does_not_count_as_a_client(tenants: Tenants, org: OrgId) -> None:
    """It has no credentials, is not listed, and can't be deleted."""
    await tenants.find_policy(org, APP)
    for attempt in (
        tenants.find_registered_policy(org, APP),
        tenants.read_registered_policy(Client(org, APP)),
        tenants.read_record(Client(org, APP)),
        tenants.delete_app(org, APP, BY),
    ):
        with pytest.raises(NotFoundError):
            await attempt
    assert (await tenants.list_apps(org)).policies == ()


async def test_registering_it_takes_over_at_once_and_deleting_it_gives_back(
    tenants: Tenants, org: OrgId
) -> None:
    assert not (await tenants.find_policy(org, APP)).is_registered
    await tenants.put_app(org, APP, app_body(session_limit=3), BY)
    registered = await tenants.find_policy(org, APP)
    assert (registered.is_registered, registered.session_limit) == (True, 3)
    assert await tenants.find_registered_policy(org, APP) is registered
    await tenants.delete_app(org, APP, BY)
    again = await tenants.find_policy(org, APP)
    assert (again.is_registered, again.session_limit) == (False, 7)
    await tenants.delete_org(org, BY)
    with pytest.raises(NotFoundError):
        await tenants.find_policy(org, APP)


async def test_it_is_remembered_like_any_other(
    tenants: Tenants, org: OrgId, meter: StoreMeter
) -> None:
    """One read, then none; and a change of its organisation is seen at once."""
    meter.clear()
    for _ in range(3):
        await tenants.find_policy(org, APP)
    assert sum(meter.calls.values()) == 1
    await tenants.put_org(org, org_body(quota_scope="ORG", session_limit=9), BY)
    assert (await tenants.find_policy(org, APP)).session_limit == 9
