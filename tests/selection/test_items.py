"""Items of StickyState: where they are, what is in them, and writes that can't be applied twice."""

import pytest

from pricekeeper.activity import GivenUp
from pricekeeper.activity import event as activity
from pricekeeper.errors import ConditionFailedError
from pricekeeper.selection import items
from pricekeeper.selection.fallback import Comeback, Override, StickyFlip, StickyState
from pricekeeper.storage import Key, Store, Update
from pricekeeper.storage.dynamodb.conditions import guards_itself
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Client, QuotaScope
from pricekeeper.values import ModelLabel
from selection.policies import APP, ECONOMY, ORG, PREMIUM, STANDARD, policy

DAY = "20300115"
NOW_MS = 1_894_708_800_999
ENDS_MS = 1_894_752_000_000
LIFE = "life-1"
TO_STANDARD = StickyFlip(STANDARD, 1, PREMIUM, frozenset({PREMIUM}))
ENTRY = activity.Flip(
    ORG, NOW_MS, APP, "QUOTA_EXCEEDED", PREMIUM, STANDARD, (GivenUp(PREMIUM, 9, 8),), ENDS_MS
)
CLEARED = activity.Flip(ORG, NOW_MS + 1, APP, "OVERRIDE_CLEARED", ECONOMY, None, (), ENDS_MS)
TO_ECONOMY = StickyFlip(ECONOMY, 2, STANDARD, frozenset({PREMIUM, STANDARD}))


def override(key: Key, label: ModelLabel, version: int) -> Update:
    """The command that sets an override."""
    return items.override_update(key, label, LIFE, version, ENTRY)


def test_a_fallback_is_in_the_item_of_its_scope_and_an_override_in_its_clients() -> None:
    """For an app under APP scope, and for an organisation, the two are one item."""
    app, org = Client(ORG, APP), Client(ORG)

    assert items.sticky_key(f"ORG#{ORG}", DAY).pk == f"ORG#{ORG}"
    assert items.sticky_key(f"ORG#{ORG}", DAY).sk == "DAY#20300115"
    assert items.override_key(app, DAY).pk == f"ORG#{ORG}#APP#api"
    for mine in (policy(client=app), policy(client=org), policy(client=org, scope=QuotaScope.ORG)):
        assert items.sticky_key(mine.scope_key, DAY) == items.override_key(mine.client, DAY)


def test_every_write_makes_its_own_condition_false() -> None:
    """So a store may send it again when a reply was lost."""
    key = items.override_key(Client(ORG), DAY)

    assert guards_itself(items.flip_update(key, TO_STANDARD, ENTRY))
    back = Comeback(PREMIUM, 8, True, 1, STANDARD)
    assert guards_itself(items.comeback_update(key, back, 0, ENTRY))
    assert guards_itself(items.comeback_update(key, back, 7, ENTRY))
    assert guards_itself(override(key, STANDARD, 0))
    assert guards_itself(override(key, STANDARD, 7))
    assert guards_itself(items.clear_update(key, {"override_version": 7}, ENTRY))


async def test_what_is_written_is_what_is_read(store: Store, app: Client) -> None:
    """A fallback and an override in one item, each by itself."""
    key = items.override_key(app, DAY)
    await store.update(override(key, ECONOMY, 0))
    item = await store.update(items.flip_update(key, TO_STANDARD, ENTRY))

    assert items.sticky_state(item) == StickyState(
        STANDARD, 1, PREMIUM, NOW_MS // 1000, frozenset({PREMIUM})
    )
    assert items.override(app, LIFE, item) == Override(app, ECONOMY, NOW_MS // 1000)
    assert items.override_version(item) == 1
    assert item["expires_at_epoch"] == ENDS_MS // 1000 + 35 * 86_400


async def test_an_item_may_hold_one_without_the_other(store: Store, app: Client) -> None:
    """Or neither, after an override was cleared."""
    key = items.override_key(app, DAY)
    assert items.sticky_state(None) is None
    assert items.override(app, LIFE, None) is None

    item = await store.update(override(key, ECONOMY, 0))
    assert items.sticky_state(item) is None
    item = await store.update(items.clear_update(key, {"override_version": 1}, CLEARED))
    assert (items.sticky_state(item), items.override(app, LIFE, item)) == (None, None)


async def test_a_flip_is_refused_unless_it_goes_further(store: Store, app: Client) -> None:
    """And the refusal brings along what is there."""
    key = items.sticky_key(policy(client=app).scope_key, DAY)
    item = await store.update(items.flip_update(key, TO_ECONOMY, ENTRY))

    for flip in (TO_STANDARD, TO_ECONOMY):
        with pytest.raises(ConditionFailedError) as caught:
            await store.update(items.flip_update(key, flip, ENTRY))
        assert caught.value.item == item


async def test_a_flip_adds_to_what_was_given_up(store: Store, app: Client) -> None:
    """Whether or not the writer knew of it."""
    key = items.sticky_key(policy(client=app).scope_key, DAY)
    await store.update(items.flip_update(key, TO_STANDARD, ENTRY))
    unaware = StickyFlip(ECONOMY, 2, STANDARD, frozenset({STANDARD}))

    item = await store.update(items.flip_update(key, unaware, ENTRY))

    assert item["given_up_model_labels"] == {PREMIUM, STANDARD}


async def test_a_command_that_arrives_late_is_refused(store: Store, app: Client) -> None:
    """The last command an operator gave is the one that counts."""
    key = items.override_key(app, DAY)
    late = override(key, ECONOMY, 0)
    await store.update(override(key, PREMIUM, 0))
    with pytest.raises(ConditionFailedError):
        await store.update(late)
    await store.update(items.clear_update(key, {"override_version": 1}, CLEARED))

    for stale in (late, override(key, ECONOMY, 1)):
        with pytest.raises(ConditionFailedError):
            await store.update(stale)
    assert items.override(app, LIFE, await store.get(STICKY_STATE, key)) is None


async def test_an_override_is_of_one_life_of_its_client(store: Store, app: Client) -> None:
    """A client that is deleted and created again has none."""
    key = items.override_key(app, DAY)
    item = await store.update(override(key, ECONOMY, 0))

    assert items.override(app, "life-2", item) is None
    assert items.override(app, LIFE, item) == Override(app, ECONOMY, NOW_MS // 1000)


async def test_every_change_leaves_an_entry_in_the_history(store: Store, app: Client) -> None:
    """In the item of its day, by the write itself; a change that was refused leaves none."""
    key = items.override_key(app, DAY)
    await store.update(override(key, ECONOMY, 0))
    await store.update(items.flip_update(key, TO_STANDARD, ENTRY))
    item = await store.update(items.clear_update(key, {"override_version": 1}, CLEARED))
    assert items.history_from(item) == [CLEARED, ENTRY, ENTRY]

    for late in (override(key, PREMIUM, 0), items.flip_update(key, TO_STANDARD, ENTRY)):
        with pytest.raises(ConditionFailedError):
            await store.update(late)
    assert await store.get(STICKY_STATE, key) == item


async def test_the_history_of_a_day_is_bounded(
    store: Store, app: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many commands about an override the last are kept."""
    monkeypatch.setattr(items, "HISTORY_KEPT", 3)
    key = items.override_key(app, DAY)
    for version in range(8):
        item = await store.update(override(key, ECONOMY, version))
    assert sorted(name for name in item if name.startswith("history")) == [
        f"history_override_{version}" for version in (6, 7, 8)
    ]


async def test_an_entry_that_can_not_be_read_hides_no_other(store: Store, app: Client) -> None:
    """It is reported."""
    key = items.override_key(app, DAY)
    item = await store.update(items.flip_update(key, TO_STANDARD, ENTRY))
    assert items.history_from({**item, "history_flip_2": b"?", "history_flip_3": 7}) == [ENTRY]
