"""YAML without its traps, for a file in which a misread number costs money.

In YAML 1.1 ``010`` is eight, ``1:30`` is ninety, ``no`` is false, and the last of two equal keys
wins silently. Here a number is decimal, and a boolean is ``true`` or ``false``. Equal keys are
refused, and so are aliases: a small file could describe an endless one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, Final

import yaml

DOCUMENT_BYTES_MAX: Final = 1024 * 1024

_SCALARS: Final = (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
)


class InvalidYamlError(Exception):
    """The text is not strict YAML. The message gives the place."""


def load_strict_yaml(text: str) -> Any:
    """The one document in the text, as plain Python values."""
    if len(text.encode()) > DOCUMENT_BYTES_MAX:
        raise InvalidYamlError(f"longer than {DOCUMENT_BYTES_MAX} bytes")
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506  # it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidYamlError(f"{where}{error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidYamlError(str(error)) from error
    except RecursionError:
        raise InvalidYamlError("nested too deeply") from None


class _StrictLoader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own name and shape

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(
                None, None, "aliases are not supported: write the values out", self.get_mark()
            )
        return super().compose_node(parent, index)

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a name; put it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _starts in _SCALARS:
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), _starts
    )
