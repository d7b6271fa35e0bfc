"""Whole instances on every store, and clients of each test's own."""

from collections.abc import Callable

import pytest

from attribution import BY
from credentials.conftest import OLD_PEPPER
from logins import log_in
from pricekeeper.clock import Clock
from pricekeeper.credentials import Credentials, Peppers
from pricekeeper.sessions import Lifetimes, Sessions
from pricekeeper.storage import Store
from pricekeeper.tenants import Client, Tenants
from pricekeeper.tokens import Identity, Keys, TokenGrant, dump_keyring, new_keyring
from pricekeeper.tokens.keyring import parse_keyring
from stores import ShiftedClock, location, meter, store, table_prefix
from tenants.conftest import LABELS, app_body, new_org_id, org_body

__all__ = ["location", "meter", "store", "table_prefix"]

ISSUER = "https://keeper.example"
AUDIENCE = "pricekeeper"
LIMIT = 2


class MovableClock(ShiftedClock):
    """Real time that a test can let pass, for durations as well."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.shift_ms

    def pass_ms(self, duration_ms: int) -> None:
        self.shift_ms += duration_ms


class Instance:
    """One instance of the service. It shares the store and the keys with others, nothing else."""

    def __init__(
        self, store: Store, clock: Clock, keys: str, lifetimes: Lifetimes | None = None
    ) -> None:
        self.store = store
        self.clock = clock
        self.tenants = Tenants(store, clock, LABELS)
        self.credentials = Credentials(store, clock, self.tenants, Peppers(OLD_PEPPER))
        self.keys = Keys(parse_keyring(keys), clock)
        self.sessions = Sessions(
            store, clock=clock, keys=self.keys, lifetimes=lifetimes or Lifetimes()
        )
        self.identity = self.make_identity(store)

    def make_identity(self, store: Store) -> Identity:
        """Make one on another store, for example one that fails."""
        return Identity(
            store,
            clock=self.clock,
            tenants=self.tenants,
            credentials=self.credentials,
            sessions=self.sessions,
            keys=self.keys,
            issuer=ISSUER,
            audience=AUDIENCE,
        )

    async def register(self, client: Client) -> "Member":
        """Create the client with a limit of two sessions, and claim its secret."""
        body = org_body(session_limit=LIMIT) if client.app_id is None else app_body()
        provisioned = await self.credentials.provision(client, body, BY)
        assert provisioned.retrieval is not None
        claimed = await self.credentials.claim(provisioned.retrieval.token.reveal(), BY)
        return Member(client, claimed.client_secret.reveal())


class Member:
    """A client and its secret."""

    def __init__(self, client: Client, secret: str) -> None:
        self.client = client
        self.id = client.client_id
        self.secret = secret

    async def login(self, at: Instance) -> TokenGrant:
        if isinstance(at.clock, MovableClock):
            at.clock.pass_ms(1)  # so that no two logins are equally old
        return await log_in(at.identity, self.id, self.secret)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture(scope="session")
def keyring() -> str:
    return dump_keyring(new_keyring(0)).decode()


@pytest.fixture
def make_instance(store: Store, clock: MovableClock, keyring: str) -> Callable[[], Instance]:
    return lambda: Instance(store, clock, keyring)


@pytest.fixture
def here(make_instance: Callable[[], Instance]) -> Instance:
    return make_instance()


@pytest.fixture
def there(make_instance: Callable[[], Instance]) -> Instance:
    """Start another instance."""
    return make_instance()


@pytest.fixture
async def org(here: Instance) -> Member:
    return await here.register(Client(new_org_id()))
