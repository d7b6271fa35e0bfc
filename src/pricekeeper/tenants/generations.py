"""Ending everything that was issued to a client: one read and one write.

The write replaces the token generation that was read and no other. So a copy of it that arrives
late ends nothing that was issued after a repeated call was acknowledged. It has an entry in the
audit trail, unless the client itself has asked for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreError,
)
from pricekeeper.storage import Action, Item, Store, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.items import ReadItem
from pricekeeper.tenants.policy import Generation, Life

ATTEMPTS_MAX: Final = 8

MakeChange: TypeAlias = Callable[[Update | None], Awaitable[None]]
"""Makes a change, with an entry in the audit trail if somebody answers for it. ``None`` is only
written down: somebody else has made the same change meanwhile."""


def random_name() -> str:
    """A name that no other life or generation has."""
    return secrets.token_hex(8)


async def update_alone(store: Store, operation: Update | None) -> None:
    """Make a change without an entry in the audit trail.

    If its reply is lost, finding what was to be written proves that it was written. If nothing can
    be read either, the outcome stays as unknown as it was.
    """
    if operation is None:
        return
    try:
        await store.update(operation)
    except OutcomeUnknownError as lost:
        try:
            found = dict(lost.item or await store.get(CONFIG, operation.key) or {})
        except StoreError as error:
            raise lost from error
        if not found or operation.apply(found) != found:
            raise


async def start_generation(
    make: MakeChange, clock: Clock, read: ReadItem, client: Client, also: Sequence[Action]
) -> None:
    """Let nothing count that was issued to the client so far; ``also`` is changed with it."""
    for _ in range(ATTEMPTS_MAX):
        life = items.life_of(await read(client))
        # Another instance's clock may be ahead, or ours was set back.
        since_ms = max(clock.now_ms(), life.tokens_valid_from_epoch_ms)
        generation = Generation(random_name(), since_ms)
        actions = (*items.end_tokens_actions(generation), *also)
        operation = Update(CONFIG, items.config_key(client), actions, items.same_generation(life))
        try:
            await make(operation)
        except ConditionFailedError as failure:
            if failure.item is not None and _was_done(dict(failure.item), life, client, also):
                await make(None)
                return
        else:
            return
    raise ContendedError(f"{client.client_id}: others kept changing its credentials")


def _was_done(item: Item, read: Life, client: Client, also: Sequence[Action]) -> bool:
    """Whether somebody else has done the same after this call had read the client.

    Then everything has ended that was issued before this call.
    """
    life = items.life_of(item)
    if life.incarnation != read.incarnation or life.token_generation == read.token_generation:
        return False
    return Update(CONFIG, items.config_key(client), tuple(also)).apply(item) == item
