"""What the tests of admin keys share: every store, two instances on it, and a clock to move."""

from dataclasses import replace

import pytest

from credentials.conftest import OLD_PEPPER
from pricekeeper.admin_keys import AdminKeys, IssuedKey
from pricekeeper.authority import ALL_ORGS, DEPLOYMENT, Attribution, Authority, Coverage, Role
from pricekeeper.clock import Clock
from pricekeeper.credentials import Pepper, Peppers
from pricekeeper.storage import Store
from stores import location, meter, store, table_prefix
from tokens.conftest import MovableClock

__all__ = ["location", "meter", "store", "table_prefix"]

BY = Attribution("cli/tester", "local", "request-1", authority=DEPLOYMENT)


def keys_of(store: Store, clock: Clock, *peppers: Pepper) -> AdminKeys:
    """Make another instance, as far as admin keys go."""
    current, *older = peppers or (OLD_PEPPER,)
    return AdminKeys(store, clock, Peppers(current, *older))


async def create(
    keys: AdminKeys,
    *,
    name: str = "night shift",
    role: Role = Role.ADMIN,
    coverage: Coverage = ALL_ORGS,
    expires_at_epoch: int | None = None,
    authority: Authority = DEPLOYMENT,
) -> IssuedKey:
    by = replace(BY, authority=authority)
    return await keys.create(name, role, coverage, expires_at_epoch, by)


async def counts(keys: AdminKeys, issued: IssuedKey) -> bool:
    """Whether the text opens something at this instance."""
    shown = await keys.find(issued.text.reveal())
    return shown is not None and shown.is_valid


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def here(store: Store, clock: MovableClock) -> AdminKeys:
    return keys_of(store, clock)


@pytest.fixture
def there(store: Store, clock: MovableClock) -> AdminKeys:
    return keys_of(store, clock)
