"""Whether JSON is what botocore's service model of Bedrock's runtime says, and nothing else.

botocore's own parser can't tell: it drops members that it does not know and misses none.
"""

import json
from base64 import b64decode
from typing import Any

import botocore.session
from botocore.model import ListShape, MapShape, Shape, StructureShape

_MODEL = botocore.session.get_session().get_service_model("bedrock-runtime")
_SCALARS: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "double": (int, float),
    "float": (int, float),
    "integer": int,
    "long": int,
    "string": str,
    "timestamp": str,
}


def output_of(operation: str) -> StructureShape:
    """What an operation answers."""
    answer = _MODEL.operation_model(operation).output_shape
    assert answer is not None
    return answer


def complaints(expected: Shape, value: Any, path: str = "$") -> list[str]:
    """What is wrong with a value, each with the path to it; nothing if all is right."""
    if getattr(expected, "is_document_type", False):
        return []
    if isinstance(expected, StructureShape):
        return _about_structure(expected, value, path)
    if isinstance(expected, ListShape):
        if not isinstance(value, list):
            return [f"{path}: not a list"]
        member = expected.member
        return [
            found
            for index, part in enumerate(value)
            for found in complaints(member, part, f"{path}[{index}]")
        ]
    if isinstance(expected, MapShape):
        if not isinstance(value, dict):
            return [f"{path}: not a map"]
        return [
            found
            for key, part in value.items()
            for found in complaints(expected.value, part, f"{path}.{key}")
        ]
    return _about_scalar(expected, value, path)


def _about_structure(expected: StructureShape, value: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: not a structure"]
    members = body_members(expected)
    found = [f"{path}.{name}: unknown" for name in value if name not in members]
    found += [
        f"{path}.{name}: missing"
        for name in expected.required_members
        if name in members and name not in value
    ]
    if expected.is_tagged_union and len(value) != 1:
        found.append(f"{path}: a union has one member")
    for name, part in value.items():
        if name in members:
            found += complaints(members[name], part, f"{path}.{name}")
    return found


def _about_scalar(expected: Shape, value: Any, path: str) -> list[str]:
    kind = expected.type_name
    if kind == "blob":
        try:
            b64decode(value, validate=True)
        except (TypeError, ValueError):
            return [f"{path}: not base64"]
        return []
    if not isinstance(value, _SCALARS[kind]) or (kind != "boolean" and isinstance(value, bool)):
        return [f"{path}: not a {kind}"]
    allowed = expected.metadata.get("enum")
    if allowed and value not in allowed:
        return [f"{path}: not one of {allowed}"]
    least = expected.metadata.get("min")
    size = len(value) if isinstance(value, str) else value
    if least is not None and size < least:
        return [f"{path}: less than {least}"]
    return []


def body_members(expected: StructureShape) -> dict[str, Shape]:
    """The members that are in a body, and not in headers or in a stream."""
    return {
        name: member
        for name, member in expected.members.items()
        if not member.serialization.get("location") and not member.serialization.get("eventstream")
    }


def header_complaints(expected: StructureShape, headers: dict[str, str]) -> list[str]:
    """What is wrong with the members of an answer that are in its headers."""
    found = []
    for name, member in expected.members.items():
        header = member.serialization.get("name", "").lower()
        if member.serialization.get("location") != "header":
            continue
        if header in headers:
            found += _about_scalar(member, headers[header], f"header {header}")
        elif name in expected.required_members:
            found.append(f"header {header}: missing")
    return found


def event_complaints(stream: str, event: tuple[str, str, Any]) -> list[str]:
    """What is wrong with an event of a stream whose shape has that name."""
    kind, name, payload = event
    known = _MODEL.shape_for(stream)
    assert isinstance(known, StructureShape)
    expected = known.members.get(name)
    if expected is None:
        return [f"{name}: no such event"]
    is_exception = bool(expected.metadata.get("exception"))
    if is_exception != (kind == "exception"):
        return [f"{name}: is no {kind}"]
    return complaints(expected, payload, name)


def decoded_part(event: tuple[str, str, Any]) -> Any:
    """What the family says in a chunk of InvokeModel's stream."""
    _, name, payload = event
    assert name == "chunk"
    return json.loads(b64decode(payload["bytes"]))
