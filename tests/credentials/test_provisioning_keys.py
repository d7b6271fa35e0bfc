"""An organisation's own provisioning key: shown once, kept as a hash, good for it alone."""

import bcrypt
import pytest

from attribution import BY
from credentials.conftest import NEW_PEPPER, OLD_PEPPER, Instance
from faulty_store import REPLY_LOST, REQUEST_LOST, Faults, FaultyStore, Interleaving
from pricekeeper.clock import Clock
from pricekeeper.credentials import Pepper, Peppers, ProvisioningKeys, Secret
from pricekeeper.credentials.provisioning_keys import HASH, KEY_PREFIX
from pricekeeper.errors import NotFoundError, OutcomeUnknownError
from pricekeeper.storage import Set, Store, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Tenants, config_key
from pricekeeper.values import OrgId
from stores import stored
from tenants.conftest import LABELS, new_org_id, org_body

IMPORTED = "a-key-from-before"


def keys_of(store: Store, clock: Clock, *peppers: Pepper) -> ProvisioningKeys:
    current, *older = peppers or (OLD_PEPPER,)
    return ProvisioningKeys(store, clock, Tenants(store, clock, LABELS), Peppers(current, *older))


@pytest.fixture
def keys(store: Store, clock: Clock) -> ProvisioningKeys:
    return keys_of(store, clock)


@pytest.fixture
async def org(one: Instance) -> OrgId:
    org_id = new_org_id()
    await one.tenants.put_org(org_id, org_body(), BY)
    return org_id


async def plant(store: Store, org_id: OrgId, stored: str) -> None:
    """Put a hash where an import would."""
    key = config_key(Client(org_id))
    await store.update(Update(CONFIG, key, (Set(HASH, stored),)))


async def test_a_key_names_its_organisation(keys: ProvisioningKeys, org: OrgId) -> None:
    """On every path, also one that names another client or none."""
    key = (await keys.issue(org, BY)).reveal()
    assert key.startswith(KEY_PREFIX)
    for asked_for in (org, new_org_id(), None):
        assert await keys.find_org(key, asked_for) == org


async def test_the_next_key_replaces_the_last_and_none_is_left_when_it_is_withdrawn(
    keys: ProvisioningKeys, org: OrgId
) -> None:
    """An organisation has one at most; withdrawing it again does no harm."""
    first, second = [(await keys.issue(org, BY)).reveal() for _ in range(2)]
    assert [await keys.find_org(key, org) for key in (first, second)] == [None, org]
    for _ in range(2):
        await keys.withdraw(org, BY)
        assert await keys.find_org(second, org) is None


async def test_a_key_does_not_rest_where_it_could_be_read(
    one: Instance, keys: ProvisioningKeys, org: OrgId
) -> None:
    """Nor is it among what a policy tells."""
    key = (await keys.issue(org, BY)).reveal()
    item = await one.item(Client(org))
    assert key not in str(item)
    assert item[HASH].startswith("hmac-sha256$")
    policy = await one.tenants.read_registered_policy(Client(org))
    assert HASH not in str(policy)
    assert key not in repr(Secret(key))


async def test_settings_leave_the_key_alone_and_a_deletion_takes_it(
    one: Instance, keys: ProvisioningKeys, org: OrgId
) -> None:
    key = (await keys.issue(org, BY)).reveal()
    await one.tenants.put_org(org, org_body(org_name="Another"), BY)
    assert await keys.find_org(key, org) == org
    await one.tenants.delete_org(org, BY)
    assert await keys.find_org(key, org) is None
    await one.tenants.put_org(org, org_body(), BY)
    assert await keys.find_org(key, org) is None


async def test_who_does_not_exist_gets_none(keys: ProvisioningKeys) -> None:
    for attempt in (keys.issue, keys.withdraw):
        with pytest.raises(NotFoundError):
            await attempt(new_org_id(), BY)


async def test_an_imported_key_is_good_for_the_organisation_that_has_its_hash(
    store: Store, keys: ProvisioningKeys, org: OrgId
) -> None:
    """A bcrypt hash as the schema document has it; it is ours after the first use."""
    await plant(store, org, bcrypt.hashpw(IMPORTED.encode(), bcrypt.gensalt(4)).decode())
    assert await keys.find_org("another", org) is None
    assert await keys.find_org(IMPORTED, new_org_id()) is None
    assert await keys.find_org(IMPORTED, None) is None
    assert await keys.find_org(IMPORTED, org) == org
    item = await stored(store, CONFIG, config_key(Client(org)))
    assert item[HASH].startswith("hmac-sha256$")
    assert await keys.find_org(IMPORTED, org) == org


@pytest.mark.parametrize("stored", ["", "x", "$2b$", "$2b$31$" + "a" * 53, 7, None, {"a": "b"}])
async def test_what_is_no_hash_opens_nothing(
    store: Store, keys: ProvisioningKeys, org: OrgId, stored: str
) -> None:
    await plant(store, org, stored)
    for key in ("", "x", IMPORTED, str(stored)):
        assert await keys.find_org(key, org) is None


async def test_hashes_do_not_stand_in_for_each_other(
    one: Instance, store: Store, keys: ProvisioningKeys, org: OrgId
) -> None:
    """Neither another organisation's, nor that of a client's secret."""
    other = new_org_id()
    await one.tenants.put_org(other, org_body(), BY)
    key = (await keys.issue(org, BY)).reveal()
    await plant(store, other, (await one.item(Client(org)))[HASH])
    assert await keys.find_org(key.replace(KEY_PREFIX, ""), other) is None
    secret = await one.rotated(Client(org), 0)
    await plant(store, org, (await one.item(Client(org)))["client_secret_hash"])
    assert await keys.find_org(secret.reveal(), org) is None


async def test_a_mistyped_key_is_refused_without_a_read(
    keys: ProvisioningKeys, org: OrgId, meter: StoreMeter
) -> None:
    """And one of any length; a right one takes one read."""
    key = (await keys.issue(org, BY)).reveal()
    meter.clear()
    for wrong in (key[:-1], key + "x", KEY_PREFIX, KEY_PREFIX + "é" * 71, "x" * 10_000, ""):
        assert await keys.find_org(wrong, org) is None
    assert sum(meter.calls.values()) == 0
    assert await keys.find_org(key, None) == org
    assert sum(meter.calls.values()) == 1


async def test_a_new_pepper_takes_over(store: Store, clock: Clock, org: OrgId) -> None:
    key = (await keys_of(store, clock, OLD_PEPPER).issue(org, BY)).reveal()
    assert await keys_of(store, clock, NEW_PEPPER, OLD_PEPPER).find_org(key, org) == org
    assert await keys_of(store, clock, NEW_PEPPER).find_org(key, org) == org


@pytest.mark.parametrize(
    ("faults", "told"), [(REQUEST_LOST, OutcomeUnknownError), (REPLY_LOST, Secret)]
)
async def test_after_a_lost_reply_a_key_is_handed_out_if_its_entry_is_there(
    store: Store, clock: Clock, org: OrgId, faults: Faults, told: type
) -> None:
    """Else a caller with an unknown outcome asks for another key, and has that one."""
    turns = Interleaving(1)
    keys = keys_of(FaultyStore(store, turns, faults), clock)
    (issued,) = await turns.run(keys.issue(org, BY))
    assert isinstance(issued, told)
    key = issued if isinstance(issued, Secret) else await keys.issue(org, BY)
    assert await keys.find_org(key.reveal(), org) == org
