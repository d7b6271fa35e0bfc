"""What Hypothesis draws operations from: few names and values, so that they meet."""

from hypothesis import strategies as st

from contract.reference import Words
from pricekeeper.storage import Add, Condition, Remove, Set, attr

NAMES = ("a", "b", "c")

values = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(["", "x", "xy", "é"]),
    st.booleans(),
    st.none(),
    st.sampled_from([b"", b"x", b"xy"]),
    st.frozensets(st.sampled_from("xyz"), min_size=1),
    st.lists(st.one_of(st.integers(-1, 1), st.booleans(), st.sampled_from(["x"])), max_size=2),
    st.dictionaries(
        st.sampled_from("xy"), st.one_of(st.integers(-1, 1), st.booleans()), max_size=2
    ),
)
names = st.sampled_from(NAMES)
ordered = st.one_of(st.integers(-3, 3), st.sampled_from(["", "x", "é"]), st.sampled_from([b"x"]))
leaves = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), names, values),
    st.tuples(st.sampled_from(["<", ">="]), names, ordered),
    st.tuples(st.just("exists"), st.sampled_from([*NAMES, "PK"])),
)
conditions = st.none() | st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)
    ),
    max_leaves=4,
)
actions = st.lists(
    st.one_of(
        st.tuples(names, values).map(lambda drawn: Set(*drawn)),
        st.tuples(names).map(lambda drawn: Remove(*drawn)),
        st.tuples(names, st.integers(-3, 3)).map(lambda drawn: Add(*drawn)),
        st.tuples(names, st.frozensets(st.sampled_from("xyz"), min_size=1)).map(
            lambda drawn: Add(*drawn)
        ),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda action: action.attribute,
).map(tuple)
attributes = st.dictionaries(names, values, max_size=3)
lifetimes = st.none() | st.sampled_from([-5, 1_000, 2_000])
slots = st.integers(0, 3)


def condition(words: Words | None) -> Condition | None:  # noqa: PLR0911 - one case per kind
    """The condition under test, from the same words that the model reads."""
    match words:
        case None:
            return None
        case "and", left, right:
            return certainly(left) & certainly(right)
        case "or", left, right:
            return certainly(left) | certainly(right)
        case "not", inner:
            return ~certainly(inner)
        case "exists", name:
            return attr(name).exists()
        case "=", name, value:
            return attr(name).eq(value)
        case "<>", name, value:
            return attr(name).ne(value)
        case "<", name, value:
            return attr(name).lt(value)
        case ">=", name, value:
            return attr(name).ge(value)
    raise AssertionError(words)


def certainly(words: Words) -> Condition:
    made = condition(words)
    assert made is not None
    return made
