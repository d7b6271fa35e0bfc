"""YAML as a person means it: the traps of YAML 1.1 are closed."""

from typing import Any

import pytest

from pricekeeper.pricing.strict_yaml import DOCUMENT_BYTES_MAX, InvalidYamlError, load_strict_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3000000", 3_000_000),
        ("3_000_000", 3_000_000),
        ("-5", -5),
        ("0", 0),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("1__0", "1__0"),
        ("3.0", 3.0),
        ("1e6", 1e6),
        (".nan", ".nan"),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("2026-01-23", "2026-01-23"),
        ("", None),
        ("~", None),
        ("[1, two]", [1, "two"]),
        ("{<<: {x: 1}}", {"<<": {"x": 1}}),
    ],
)
def test_a_scalar_is_what_it_looks_like(text: str, value: Any) -> None:
    """Eight is not written 010, and Norway is not false."""
    assert load_strict_yaml(f"a: {text}") == {"a": value}
    assert type(load_strict_yaml(f"a: {text}")["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"line 3, column 1: the key 'a' is there twice"),
        ("x: {a: 1, 'a': 2}", "the key 'a' is there twice"),
        ("a: &x 1\nb: *x", "line 2.*: aliases are not supported"),
        ("1: one", "a key must be a name; put it in quotes"),
        ("true: one", "a key must be a name"),
        ("? [a]\n: one", "a key must be a name"),
        ("a: [1", "line 1"),
        ("a: b: c", "mapping values are not allowed"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: \x01", "special characters are not allowed"),
        ("--- 1\n--- 2", "another document"),
        ("[" * 5000, "nested too deeply"),
        ("a" * (DOCUMENT_BYTES_MAX + 1), "longer than"),
    ],
)
def test_what_is_unclear_is_refused_and_says_where(text: str, message: str) -> None:
    """Of two equal keys none wins, and nothing is repeated, constructed or endless."""
    with pytest.raises(InvalidYamlError, match=message):
        load_strict_yaml(text)
