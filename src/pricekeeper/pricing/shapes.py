"""Every way in which plain data differs from a type, not only the first.

msgspec stops at the first mistake, which is right for a request and tiresome for a file that
a person wrote. This walks the same types, so that what passes here is what msgspec accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from pricekeeper.errors import FieldError

_WHOLE = "file"


def shape_errors(kind: Any, value: Any, path: str = "") -> Iterator[FieldError]:
    """What is wrong with the value, each with the path to it; nothing if it fits.

    Bounded by the value: every part of it is looked at once.
    """
    if get_origin(kind) in (UnionType, Union):
        kinds = [member for member in get_args(kind) if member is not NoneType]
        if value is None or len(kinds) != 1:
            yield from _leaf_errors(kind, value, path)
        else:
            yield from shape_errors(kinds[0], value, path)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from _struct_errors(kind, value, path)
    elif get_origin(kind) is dict and isinstance(value, dict):
        for name, member in value.items():
            yield from shape_errors(get_args(kind)[1], member, _below(path, name))
    elif get_origin(kind) is tuple and isinstance(value, list):
        for index, member in enumerate(value):
            yield from shape_errors(get_args(kind)[0], member, f"{path}[{index}]")
    else:
        yield from _leaf_errors(kind, value, path)


def _struct_errors(kind: type[msgspec.Struct], value: Any, path: str) -> Iterator[FieldError]:
    if not isinstance(value, dict):
        yield FieldError(path or _WHOLE, "must be a mapping of names to values")
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name in value:
        if name not in fields:
            yield FieldError(_below(path, name), f"is unknown; there may be {', '.join(fields)}")
    for name, field in fields.items():
        if name in value:
            yield from shape_errors(field.type, value[name], _below(path, name))
        elif field.required:
            yield FieldError(_below(path, name), "is required")


def _leaf_errors(kind: Any, value: Any, path: str) -> Iterator[FieldError]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        told = str(error).partition(" - at ")[0].replace("`", "")
        yield FieldError(path or _WHOLE, told[:1].lower() + told[1:])


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)
