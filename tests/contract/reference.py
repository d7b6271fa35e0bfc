"""A plain-dict model of a store, for comparison.

Written apart from the code it checks, in the simplest way that could be right: values are
tagged with their DynamoDB type, so that nothing of Python's own equality or ordering leaks in.
"""

from typing import Any, TypeAlias

from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage import Action, Add, Delete, Item, Key, Put, Remove, Set, Update, Write

Tagged: TypeAlias = tuple[str, Any]
Words: TypeAlias = tuple[Any, ...]


def tag(value: Any) -> Tagged:
    match value:
        case None:
            return "null", None
        case bool():
            return "bool", value
        case int():
            return "number", value
        case str():
            return "string", value
        case bytes():
            return "binary", value
        case set() | frozenset():
            return "set", tuple(sorted(value))
        case list() | tuple():
            return "list", tuple(map(tag, value))
        case dict():
            return "map", tuple(sorted((name, tag(member)) for name, member in value.items()))
    raise AssertionError(value)


def holds(words: Words, item: Item) -> bool:
    """Evaluate a condition given as words, the way DynamoDB's manual puts it."""
    match words:
        case "and", left, right:
            return holds(left, item) and holds(right, item)
        case "or", left, right:
            return holds(left, item) or holds(right, item)
        case "not", inner:
            return not holds(inner, item)
        case "exists", name:
            return name in item
        case comparison, name, value:
            have = tag(item[name]) if name in item else ("nothing", None)
            want = tag(value)
            if comparison == "=":
                return have == want
            if comparison == "<>":
                return have != want
            if have[0] != want[0]:
                return False
            return bool(have[1] < want[1] if comparison == "<" else have[1] >= want[1])
    raise AssertionError(words)


def changed(key: Key, actions: tuple[Action, ...], old: Item | None) -> Item:
    item: Item = {"PK": key.pk, "SK": key.sk} if old is None else dict(old)
    for action in actions:
        name = action.attribute
        if isinstance(action, Remove):
            item = {other: value for other, value in item.items() if other != name}
        elif isinstance(action, Set):
            item[name] = action.value
        elif isinstance(action, Add):
            kinds = tag(item[name])[0] if name in item else None, tag(action.value)[0]
            if kinds[0] is None:
                item[name] = action.value
            elif kinds == ("number", "number"):
                item[name] += action.value
            elif kinds == ("set", "set"):
                item[name] = frozenset(item[name]).union(action.value)  # type: ignore[arg-type]
            else:
                raise InvalidOperationError("types")
    return item


class Model:
    """Items in a dict, each with the second it ends at, if it ends."""

    def __init__(self) -> None:
        self.items: dict[Key, Item] = {}
        self.now = 0

    def at(self, key: Key) -> Item | None:
        item = self.items.get(key)
        ends = None if item is None else item.get("expires_at_epoch")
        return None if ends is not None and ends <= self.now else item

    def refused(self, words: Words | None, key: Key) -> bool:
        return words is not None and not holds(words, self.at(key) or {})

    def apply(self, operation: Write) -> Item | None:
        """What remains at the operation's key."""
        match operation:
            case Put():
                return operation.item
            case Update():
                return changed(operation.key, operation.actions, self.at(operation.key))
            case Delete():
                return None
        return self.at(operation.key)

    def keep(self, key: Key, item: Item | None) -> None:
        if item is None:
            self.items.pop(key, None)
        else:
            self.items[key] = item
