"""Renders operations and conditions as DynamoDB requests: plain dicts, ready to be encoded.

Names and values are always placeholders, so none can be a reserved word or syntax. Parentheses
stand only around a compound part of a condition, because DynamoDB refuses redundant ones.

Every write asks for the item that failed its condition, every request for its capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from pricekeeper.storage.dynamodb.wire import Attributes, encode, encode_item, encode_key
from pricekeeper.storage.expressions import (
    Action,
    Add,
    And,
    Compare,
    Condition,
    Exists,
    Not,
    Or,
    Set,
)
from pricekeeper.storage.operations import Check, Delete, Put, Query, Update, Write
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import PARTITION_KEY, SORT_KEY, Value

RequestBody: TypeAlias = dict[str, Any]

_SHARED_TYPES: Final = frozenset({str, int, bytes})
_KINDS_IN_TRANSACTION: Final = {
    Put: "Put",
    Update: "Update",
    Delete: "Delete",
    Check: "ConditionCheck",
}


class Placeholders:
    """The names and values in the expressions of one request."""

    __slots__ = ("_names", "_shared", "_values")

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._shared: dict[tuple[type, Value], str] = {}

    def name(self, attribute: str) -> str:
        placeholder = self._names.get(attribute)
        if placeholder is None:
            placeholder = self._names[attribute] = f"#{len(self._names)}"
        return placeholder

    def value(self, value: Value) -> str:
        kind = type(value)
        if kind not in _SHARED_TYPES:
            placeholder = f":{len(self._values)}"
            self._values[placeholder] = encode(value)
            return placeholder
        shared = (kind, value)
        known = self._shared.get(shared)
        if known is None:
            known = self._shared[shared] = f":{len(self._values)}"
            self._values[known] = {"N": str(value)} if kind is int else encode(value)
        return known

    def add_to(self, request: RequestBody) -> None:
        """Add the names and values to the request; DynamoDB refuses empty ones."""
        if self._names:
            request["ExpressionAttributeNames"] = {
                placeholder: name for name, placeholder in self._names.items()
            }
        if self._values:
            request["ExpressionAttributeValues"] = self._values


def condition_text(condition: Condition, into: Placeholders) -> str:
    """The condition as an expression."""
    return _CONDITIONS[type(condition)](condition, into)


def update_text(actions: Sequence[Action], into: Placeholders) -> str:
    """The actions as an expression: each clause once, in the order of first use."""
    clauses: dict[str, list[str]] = {}
    for action in actions:
        name = into.name(action.attribute)
        if isinstance(action, Set):
            clauses.setdefault("SET", []).append(f"{name} = {into.value(action.value)}")
        elif isinstance(action, Add):
            clauses.setdefault("ADD", []).append(f"{name} {into.value(action.value)}")
        else:
            clauses.setdefault("REMOVE", []).append(name)
    return " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses.items())


def _compare(condition: Compare, into: Placeholders) -> str:
    return f"{into.name(condition.attribute)} {condition.comparison} {into.value(condition.value)}"


def _exists(condition: Exists, into: Placeholders) -> str:
    return f"attribute_exists({into.name(condition.attribute)})"


def _not(condition: Not, into: Placeholders) -> str:
    if isinstance(condition.part, Exists):
        return f"attribute_not_exists({into.name(condition.part.attribute)})"
    return f"NOT {_part(condition.part, into)}"


def _and(condition: And, into: Placeholders) -> str:
    return _joined(condition.parts, " AND ", " OR ", into)


def _or(condition: Or, into: Placeholders) -> str:
    return _joined(condition.parts, " OR ", " AND ", into)


def _joined(parts: Sequence[Condition], word: str, opposite: str, into: Placeholders) -> str:
    if len(parts) > 1:
        return word.join([_part(part, into) for part in parts])
    if parts:
        return condition_text(parts[0], into)
    key = into.name(PARTITION_KEY)  # all of nothing is always true, any of nothing never
    return f"attribute_exists({key}){opposite}attribute_not_exists({key})"


def _part(part: Condition, into: Placeholders) -> str:
    text = condition_text(part, into)
    return f"({text})" if _is_compound(part) else text


def _is_compound(condition: Condition) -> bool:
    if isinstance(condition, (And, Or)):
        return len(condition.parts) != 1 or _is_compound(condition.parts[0])
    return isinstance(condition, Not) and not isinstance(condition.part, Exists)


_CONDITIONS: Final[dict[type[Condition], Callable[[Any, Placeholders], str]]] = {
    Compare: _compare,
    Exists: _exists,
    Not: _not,
    And: _and,
    Or: _or,
}


class Renderer:
    """Makes requests for tables whose names start with a prefix."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def table_name(self, table: Table) -> str:
        return self._prefix + table.name

    def write(self, operation: Write, condition: Condition | None) -> RequestBody:
        request: RequestBody = {
            "TableName": self.table_name(operation.table),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        into = Placeholders()
        if isinstance(operation, Put):
            request["Item"] = encode_item(operation.item)
        else:
            request["Key"] = encode_key(operation.key)
            if isinstance(operation, Update):
                request["UpdateExpression"] = update_text(operation.actions, into)
        if condition is not None:
            request["ConditionExpression"] = condition_text(condition, into)
        into.add_to(request)
        return request

    def single_write(
        self, operation: Put | Update | Delete, condition: Condition | None, returned: str = "NONE"
    ) -> RequestBody:
        request = self.write(operation, condition)
        request["ReturnValues"] = returned
        request["ReturnConsumedCapacity"] = "TOTAL"
        return request

    def transaction(
        self, writes: Sequence[tuple[Write, Condition | None]], client_token: str
    ) -> RequestBody:
        return {
            "TransactItems": [
                {_KINDS_IN_TRANSACTION[type(operation)]: self.write(operation, condition)}
                for operation, condition in writes
            ],
            "ClientRequestToken": client_token,
            "ReturnConsumedCapacity": "TOTAL",
        }

    def get(self, table: Table, key: Key, *, consistent: bool) -> RequestBody:
        return {
            "TableName": self.table_name(table),
            "Key": encode_key(key),
            "ConsistentRead": consistent,
            "ReturnConsumedCapacity": "TOTAL",
        }

    def batch_get(self, keys: Sequence[tuple[Table, Key]], *, consistent: bool) -> RequestBody:
        by_table: dict[str, list[Attributes]] = {}
        for table, key in keys:
            by_table.setdefault(self.table_name(table), []).append(encode_key(key))
        return {
            "RequestItems": {
                name: {"Keys": wanted, "ConsistentRead": consistent}
                for name, wanted in by_table.items()
            },
            "ReturnConsumedCapacity": "TOTAL",
        }

    def query(
        self, query: Query, limit: int, start: Attributes | None, *, consistent: bool
    ) -> RequestBody:
        into = Placeholders()
        text = f"{into.name(PARTITION_KEY)} = {into.value(query.pk)}"
        if query.prefix or query.first or query.last:
            text += f" AND {_range_text(query, into)}"
        request: RequestBody = {
            "TableName": self.table_name(query.table),
            "KeyConditionExpression": text,
            "ConsistentRead": consistent,
            "ScanIndexForward": not query.descending,
            "Limit": limit,
            "ReturnConsumedCapacity": "TOTAL",
        }
        if start is not None:
            request["ExclusiveStartKey"] = start
        into.add_to(request)
        return request


def _range_text(query: Query, into: Placeholders) -> str:
    """The condition on the sort key. DynamoDB takes one, so two ends become a BETWEEN."""
    sort_key = into.name(SORT_KEY)
    if query.prefix:
        return f"begins_with({sort_key}, {into.value(query.prefix)})"
    if query.first and query.last:
        return f"{sort_key} BETWEEN {into.value(query.first)} AND {into.value(query.last)}"
    if query.first:
        return f"{sort_key} >= {into.value(query.first)}"
    return f"{sort_key} <= {into.value(query.last)}"
