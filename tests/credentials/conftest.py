"""Every store, and a client of each test's own."""

from dataclasses import dataclass

import pytest

from attribution import BY
from pricekeeper.clock import Clock
from pricekeeper.credentials import (
    Credentials,
    Pepper,
    Peppers,
    Provisioned,
    Retrieval,
    Secret,
)
from pricekeeper.errors import InvalidClientError
from pricekeeper.storage import Item, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, Tenants, config_key
from pricekeeper.values import AppId
from stores import ShiftedClock, clock, location, meter, store, stored, table_prefix
from tenants.conftest import LABELS, app_body, new_org_id, org_body, seeds

__all__ = ["clock", "location", "meter", "seeds", "store", "table_prefix"]

OLD_PEPPER = Pepper("v1", b"1" * 32)
NEW_PEPPER = Pepper("v2", b"2" * 32)


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of the service, as far as credentials go."""

    store: Store
    tenants: Tenants
    credentials: Credentials

    async def provision(self, client: Client) -> Provisioned:
        """Create the client, or update it; an app's organisation has to be there."""
        body = org_body() if client.app_id is None else app_body()
        return await self.credentials.provision(client, body, BY)

    async def register(self, client: Client) -> Retrieval:
        """Create the client, and its organisation first if it is an app."""
        if client.app_id is not None:
            await self.tenants.put_org(client.org_id, org_body(), BY)
        provisioned = await self.provision(client)
        assert provisioned.retrieval is not None
        return provisioned.retrieval

    async def secret_of(self, client: Client) -> Secret:
        """Create the client and claim its first secret."""
        retrieval = await self.register(client)
        return (await self.credentials.claim(retrieval.token.reveal(), BY)).client_secret

    async def rotated(self, client: Client, grace_period_hours: int) -> Secret:
        """Rotate and claim."""
        rotation = await self.credentials.rotate(client, grace_period_hours, BY)
        claimed = await self.credentials.claim(rotation.retrieval.token.reveal(), BY)
        return claimed.client_secret

    async def opens(self, client: Client, secret: Secret) -> bool:
        """Whether the secret is good for the client."""
        try:
            known = await self.credentials.authenticate(client.client_id, secret.reveal())
        except InvalidClientError:
            return False
        assert known.client == client
        return True

    async def item(self, client: Client) -> Item:
        return await stored(self.store, CONFIG, config_key(client))


def instance(store: Store, clock: Clock, peppers: Peppers | None = None) -> Instance:
    tenants = Tenants(store, clock, LABELS)
    credentials = Credentials(store, clock, tenants, peppers or Peppers(OLD_PEPPER))
    return Instance(store, tenants, credentials)


@pytest.fixture
def one(store: Store, clock: ShiftedClock) -> Instance:
    return instance(store, clock)


@pytest.fixture(params=["org", "app"])
def client(request: pytest.FixtureRequest) -> Client:
    """An organisation, then an app."""
    return Client(new_org_id(), AppId("api") if request.param == "app" else None)
