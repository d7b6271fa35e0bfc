"""Prints Converse's request shapes as botocore's model of ``bedrock-runtime`` has them.

The printed text belongs between the marks in ``src/pricekeeper/bedrock/body_shapes.py``; a test
compares the two, so that a newer model is noticed.
"""

from __future__ import annotations

from typing import Any, Final

from botocore.loaders import Loader

REQUEST: Final = "ConverseStreamRequest"
"""It has all members of ``ConverseRequest``, so both are judged by it."""
WIDTH: Final = 98


def shapes_of_model() -> str:
    """The shapes that Converse's request reaches, one a paragraph, without ``Stream`` in names."""
    shapes: dict[str, Any] = Loader().load_service_model("bedrock-runtime", "service-2")["shapes"]
    lines: dict[str, str] = {}
    waiting = [REQUEST]
    while waiting:  # ends: each shape is taken once
        name = waiting.pop(0)
        if name in lines:
            continue
        shape = shapes[name]
        members = {
            member: reference["shape"]
            for member, reference in shape["members"].items()
            if reference.get("location") != "uri"
        }
        mark = "|" if shape.get("union") else ":"
        words = [_member(member, kind, shapes) for member, kind in members.items()]
        lines[name] = _wrapped(f"{name} {mark}", words)
        waiting += [inner for kind in members.values() if (inner := _inside(kind, shapes))]
    return "\n".join(sorted(line.replace("Stream", "") for line in lines.values()))


def _inside(kind: str, shapes: dict[str, Any]) -> str | None:
    """The structure that a member is, or is a list of."""
    shape = shapes[kind]
    if shape["type"] == "list":
        return _inside(shape["member"]["shape"], shapes)
    return kind if shape["type"] == "structure" and not shape.get("document") else None


def _member(name: str, kind: str, shapes: dict[str, Any]) -> str:
    shape = shapes[kind]
    inner = _inside(kind, shapes)
    if shape["type"] == "list":
        return f"{name}=[{inner or ''}]"
    if shape["type"] == "map" or shape.get("document"):
        return f"{name}={'{}'}"
    return name if inner is None else f"{name}={inner}"


def _wrapped(head: str, words: list[str]) -> str:
    lines = [head]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


if __name__ == "__main__":
    print(shapes_of_model())
