"""Which writes may be sent again: only those that refuse their own second copy."""

import pytest
from hypothesis import given

from contract.reference import Words
from contract.strategies import actions, attributes, condition, conditions
from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Action,
    Add,
    Delete,
    Item,
    Key,
    Put,
    Remove,
    Set,
    Update,
    attr,
)
from pricekeeper.storage.dynamodb.conditions import guards_itself
from pricekeeper.storage.tables import CONFIG

KEY = Key("p", "s")
ITEM: Item = {"PK": "p", "SK": "s"}


def update(*actions_: Action, when: object = None) -> Update:
    return Update(CONFIG, KEY, actions_, when)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "guarded"),
    [
        (Put(CONFIG, ITEM), False),
        (Put(CONFIG, ITEM, ITEM_ABSENT), True),
        (Put(CONFIG, ITEM, ITEM_EXISTS), False),
        (Put(CONFIG, {**ITEM, "v": 2}, attr("v").eq(1)), True),
        (Put(CONFIG, {**ITEM, "v": 2}, attr("v").absent() | attr("v").lt(2)), True),
        (Put(CONFIG, {**ITEM, "v": 2}, attr("v").le(2)), False),
        (Delete(CONFIG, KEY), False),
        (Delete(CONFIG, KEY, ITEM_EXISTS), True),
        (Delete(CONFIG, KEY, attr("v").ne(1)), False),
        (update(Add("n", 1)), False),
        (update(Add("n", 1), when=attr("n").ge(1)), False),
        (update(Set("rf", 7), Add("n", 1), when=attr("rf").eq(5)), True),
        (update(Set("rf", 5), Add("n", 1), when=attr("rf").eq(5)), False),
        (update(Set("rf", 7), when=attr("rf").eq(5) & attr("n").ge(1)), True),
        (update(Set("rf", 7), when=attr("rf").eq(5) | attr("n").ge(1)), False),
        (update(Set("rf", 7), when=~attr("rf").eq(7)), True),
        (update(Add("n", 1), when=ITEM_ABSENT), True),
        (update(Add("n", 1), when=attr("n").absent()), True),
        (update(Remove("n"), when=attr("n").exists()), True),
        (update(Remove("n"), when=attr("n").absent()), False),
    ],
    ids=str,
)
def test_examples(operation: Put | Update | Delete, guarded: bool) -> None:
    assert guards_itself(operation) is guarded


@given(drawn=actions, words=conditions, before=attributes, exists=...)
def test_a_guarded_update_is_never_applied_twice(
    drawn: tuple[Action, ...], words: Words | None, before: Item, exists: bool
) -> None:
    """For any item: once the write was applied, its condition is false."""
    operation = Update(CONFIG, KEY, drawn, condition(words))
    item = {**ITEM, **before} if exists else {}
    if operation.condition is None or not guards_itself(operation):
        return
    if operation.condition.holds(item):
        try:
            after = operation.apply(item or None)
        except InvalidOperationError:  # a type error: not applied even once
            return
        assert not operation.condition.holds(after)
