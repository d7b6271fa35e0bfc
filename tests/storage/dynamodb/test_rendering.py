"""Conditions and actions in DynamoDB's words, and the engine agrees with what we mean."""

from random import Random

import pytest

from pricekeeper.errors import ConditionFailedError, InvalidOperationError
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Add,
    Condition,
    Key,
    Put,
    Query,
    Remove,
    Set,
    Update,
    attr,
)
from pricekeeper.storage.dynamodb.rendering import (
    Placeholders,
    Renderer,
    RequestBody,
    condition_text,
    update_text,
)
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.expressions import And, Or
from pricekeeper.storage.tables import CONFIG
from storage.dynamodb.conditions import random_attributes, random_condition


def told(into: Placeholders) -> RequestBody:
    request: RequestBody = {}
    into.add_to(request)
    return request


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (attr("a").eq(1), "#0 = :0"),
        (ITEM_EXISTS, "attribute_exists(#0)"),
        (ITEM_ABSENT, "attribute_not_exists(#0)"),
        (~attr("a").eq(1), "NOT #0 = :0"),
        (~~attr("a").eq(1), "NOT (NOT #0 = :0)"),
        (attr("a").ge(1) & attr("b").lt(1), "#0 >= :0 AND #1 < :0"),
        (attr("a").eq(1) & (attr("a").eq(2) | attr("b").eq(1)), "#0 = :0 AND (#0 = :1 OR #1 = :0)"),
        (~(attr("a").eq(1) & attr("b").eq(2)), "NOT (#0 = :0 AND #1 = :1)"),
        (
            And((Or((attr("a").exists(),)), attr("b").absent())),
            "attribute_exists(#0) AND attribute_not_exists(#1)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_conditions(condition: Condition, text: str) -> None:
    """Parentheses only where they say something: the engine refuses the others."""
    assert condition_text(condition, Placeholders()) == text


def test_names_and_values_are_sent_once() -> None:
    """Equal ones share a placeholder, but 1 is not True."""
    into = Placeholders()
    condition_text(attr("a").eq(1) & attr("b").eq(1) & attr("a").ne(True) & attr("c").eq("1"), into)
    assert told(into) == {
        "ExpressionAttributeNames": {"#0": "a", "#1": "b", "#2": "c"},
        "ExpressionAttributeValues": {":0": {"N": "1"}, ":1": {"BOOL": True}, ":2": {"S": "1"}},
    }


def test_actions() -> None:
    """Each clause once, and the condition shares its names."""
    into = Placeholders()
    actions = (Set("a", 1), Add("n", 1), Remove("r"), Set("b", None), Remove("q"))
    assert update_text(actions, into) == ("SET #0 = :0, #3 = :1 ADD #1 :0 REMOVE #2, #4")
    assert condition_text(attr("n").ge(1), into) == "#1 >= :0"


def test_nothing_referred_to_is_nothing_sent() -> None:
    request = Renderer("p-").single_write(Put(CONFIG, {"PK": "a", "SK": "b"}), None)
    assert request == {
        "TableName": "p-Config",
        "Item": {"PK": {"S": "a"}, "SK": {"S": "b"}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        "ReturnValues": "NONE",
        "ReturnConsumedCapacity": "TOTAL",
    }


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (Query(CONFIG, "a"), "#0 = :0"),
        (Query(CONFIG, "a", prefix="x"), "#0 = :0 AND begins_with(#1, :1)"),
        (Query(CONFIG, "a", first="x"), "#0 = :0 AND #1 >= :1"),
        (Query(CONFIG, "a", last="x"), "#0 = :0 AND #1 <= :1"),
        (Query(CONFIG, "a", first="x", last="y"), "#0 = :0 AND #1 BETWEEN :1 AND :2"),
    ],
    ids=["all", "prefix", "first", "last", "between"],
)
def test_ranges(query: Query, text: str) -> None:
    request = Renderer("").query(query, 5, None, consistent=True)
    assert request["KeyConditionExpression"] == text


async def test_the_engine_agrees_with_holds(direct: DynamoDbStore, key: Key) -> None:
    """Random items, random conditions: a write happens exactly when the condition holds."""
    random = Random(2)
    for _ in range(150):
        item = {"PK": key.pk, "SK": "1", **random_attributes(random)}
        condition = random_condition(random)
        await direct.put(Put(CONFIG, item))
        try:
            await direct.put(Put(CONFIG, item, condition))
        except ConditionFailedError as failure:
            assert not condition.holds(item), condition
            assert failure.item == item
        else:
            assert condition.holds(item), condition


async def test_conditions_without_parts(direct: DynamoDbStore, key: Key) -> None:
    """All of nothing holds of any item and of none; any of nothing never does."""
    item = {"PK": key.pk, "SK": "1"}
    for _ in range(2):
        await direct.put(Put(CONFIG, item, And(())))
        with pytest.raises(ConditionFailedError):
            await direct.put(Put(CONFIG, item, Or(())))
    with pytest.raises(ConditionFailedError):
        await direct.put(Put(CONFIG, item, ~And(())))


async def test_text_that_is_not_text(direct: DynamoDbStore, key: Key) -> None:
    """A lone surrogate in an unchecked name is the caller's mistake, not a crash."""
    with pytest.raises(InvalidOperationError):
        await direct.update(Update(CONFIG, key, (Remove("\ud800"),)))
