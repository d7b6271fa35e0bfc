"""Random items and conditions over a few attributes, so that they often meet."""

from random import Random
from typing import Any

from pricekeeper.storage import Condition, attr
from pricekeeper.storage.expressions import And, Comparison, Or

NAMES = ["n", "s", "size", "x.y", EXPIRY := "expires_at_epoch"]
VALUES: list[Any] = [
    0,
    5,
    -1,
    "",
    "a",
    "ab",
    True,
    False,
    None,
    b"a",
    [1],
    {"k": 1},
    frozenset("a"),
]
COMPARISONS: list[Comparison] = ["=", "<>", "<", "<=", ">", ">="]


def random_attributes(random: Random) -> dict[str, Any]:
    """Some of the names, each with some value."""
    return {name: random.choice(VALUES) for name in NAMES[:-1] if random.random() < 0.6}


def random_condition(random: Random, depth: int = 3) -> Condition:
    """A tree of up to that depth."""
    if depth == 0 or random.random() < 0.3:
        return _leaf(random)
    parts = tuple(random_condition(random, depth - 1) for _ in range(random.randint(1, 3)))
    return random.choice([And(parts), Or(parts), ~parts[0]])


def _leaf(random: Random) -> Condition:
    attribute, value = attr(random.choice(NAMES)), random.choice(VALUES)
    leaves = [attribute.eq(value), attribute.ne(value), attribute.exists(), attribute.absent()]
    if type(value) in (int, str, bytes):
        leaves += [attribute.lt(value), attribute.le(value), attribute.gt(value)]
    return random.choice(leaves)
