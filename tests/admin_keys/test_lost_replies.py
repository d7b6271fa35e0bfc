"""After a lost reply a change is recognised, or its outcome is reported as unknown."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from admin_keys.conftest import BY, counts, create, keys_of
from faulty_store import (
    REFUSED,
    REPLY_LOST,
    REQUEST_LOST,
    Faults,
    FaultyStore,
    GoesDark,
    Interleaving,
)
from pricekeeper.admin_keys import AdminKeys, IssuedKey
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError
from pricekeeper.storage import Store
from tokens.conftest import MovableClock

Work = Callable[[AdminKeys], Coroutine[Any, Any, Any]]


async def under(faults: Faults | None, store: Store, clock: MovableClock, work: Work) -> Any:
    """What the work comes to with such a store: its result or its error."""
    turns = Interleaving(1)
    kind = GoesDark if faults is None else FaultyStore
    return (await turns.run(work(keys_of(kind(store, turns, faults or Faults()), clock))))[0]


async def test_a_key_that_was_made_is_shown(
    store: Store, here: AdminKeys, clock: MovableClock
) -> None:
    """Its hash is there, so the text in hand is the good one."""
    made = await under(REPLY_LOST, store, clock, create)
    assert isinstance(made, IssuedKey)
    assert await counts(here, made)


async def test_a_rotation_that_was_made_is_shown(
    store: Store, here: AdminKeys, clock: MovableClock
) -> None:
    issued = await create(here)
    work: Work = lambda keys: keys.rotate(issued.key.key_id, 1, BY)  # noqa: E731
    fresh = await under(REPLY_LOST, store, clock, work)
    assert isinstance(fresh, IssuedKey)
    clock.pass_ms(30_000)
    assert [await counts(here, one) for one in (issued, fresh)] == [True, True]


async def test_a_deletion_that_was_made_is_told(
    store: Store, here: AdminKeys, clock: MovableClock
) -> None:
    issued = await create(here)
    work: Work = lambda keys: keys.delete(issued.key.key_id, BY)  # noqa: E731
    assert await under(REPLY_LOST, store, clock, work) is None
    clock.pass_ms(30_000)
    assert not await counts(here, issued)


@pytest.mark.parametrize("faults", [REQUEST_LOST, None], ids=["not there", "can't be read"])
async def test_where_it_can_not_be_seen_nobody_knows(
    store: Store, here: AdminKeys, clock: MovableClock, faults: Faults | None
) -> None:
    """A rotation is made again without harm, whether the first one was applied or not."""
    issued = await create(here)
    assert await counts(here, issued)
    work: Work = lambda keys: keys.rotate(issued.key.key_id, 1, BY)  # noqa: E731
    assert isinstance(await under(faults, store, clock, work), OutcomeUnknownError)
    fresh = await here.rotate(issued.key.key_id, 1, BY)
    assert [await counts(here, one) for one in (issued, fresh)] == [True, True]
    assert isinstance(await under(faults, store, clock, create), OutcomeUnknownError)
    gone: Work = lambda keys: keys.delete(issued.key.key_id, BY)  # noqa: E731
    assert isinstance(await under(faults, store, clock, gone), OutcomeUnknownError)


async def test_what_is_refused_changes_nothing(
    store: Store, here: AdminKeys, clock: MovableClock
) -> None:
    issued = await create(here)
    for work in (
        create,
        lambda keys: keys.rotate(issued.key.key_id, 0, BY),
        lambda keys: keys.delete(issued.key.key_id, BY),
    ):
        assert isinstance(await under(REFUSED, store, clock, work), StoreUnavailableError)
    clock.pass_ms(30_000)
    assert await counts(here, issued)
