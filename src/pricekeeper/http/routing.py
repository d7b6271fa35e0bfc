"""From a path to its target, by a tree of segments.

One dict lookup per segment is faster than a regular expression per route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

_Target = TypeVar("_Target")


class _Node(Generic[_Target]):
    __slots__ = ("children", "name", "other", "target")

    def __init__(self) -> None:
        self.children: dict[str, _Node[_Target]] = {}
        self.other: _Node[_Target] | None = None
        self.name = ""
        self.target: _Target | None = None


class Paths(Generic[_Target]):
    """Targets by path; ``{name}`` matches one segment that is not empty."""

    def __init__(self) -> None:
        self._root: _Node[_Target] = _Node()

    def add(self, path: str, target: _Target) -> None:
        node = self._root
        for segment in path.split("/"):
            if segment.startswith("{"):
                node.name = segment.strip("{}")
                node.other = node.other or _Node()
                node = node.other
            else:
                node = node.children.setdefault(segment, _Node())
        node.target = target

    def find(self, path: str) -> tuple[_Target | None, Mapping[str, str]]:
        """The target of a path, if any, and its parameters. Literal segments win."""
        node, parameters = self._root, dict[str, str]()
        for segment in path.split("/"):
            child = node.children.get(segment)
            if child is None:
                if node.other is None or not segment:
                    return None, parameters
                parameters[node.name] = segment
                child = node.other
            node = child
        return node.target, parameters
