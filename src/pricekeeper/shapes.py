"""Finds every way in which plain data differs from a type, not only the first.

msgspec stops at the first mistake, so this asks it about each part. The cost is proportional to the
data's length, which a caller chooses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from pricekeeper.errors import FieldError, RequestRefusedError

NAME_SHOWN_MAX: Final = 80
MESSAGE_SHOWN_MAX: Final = 200
ERRORS_MAX: Final = 100
MESSAGE: Final = "message"
"""The key in ``extra`` of `msgspec.Meta` for a type's own error message."""
_AT: Final = " - at `"

_Shape = TypeVar("_Shape")


class Wording(NamedTuple):
    """Error messages in place of msgspec's."""

    unknown: str
    """For an unknown field; ``{fields}`` are the known ones."""
    no_object: str = ""
    """For a value that is not an object; if empty, msgspec's message."""


OF_A_REQUEST: Final = Wording("is not a field of this request")
OF_A_FILE: Final = Wording(
    "is unknown; there may be {fields}", "must be a mapping of names to values"
)


def shape_errors(
    value: Any, kind: Any, path: str = "", wording: Wording = OF_A_REQUEST
) -> Iterator[FieldError]:
    """The mistakes in the value, each with its path.

    Structs, dicts and lists are walked. A list longer than its bound is not walked: its length is
    the mistake.
    """
    if value is not None:
        kind = _without_null(kind)
    if isinstance(value, (dict, list)) and len(value) > _length_max(kind):
        yield from _leaf_errors(value, kind, path)
        return
    inside = _inner_errors(value, kind, path, wording)
    first = next(inside, None)
    if first is None:
        yield from _leaf_errors(value, kind, path)
    else:
        yield first
        yield from inside


def convert(plain: Any, kind: type[_Shape]) -> _Shape:
    """Plain JSON as a value of the type; raises `RequestRefusedError` with every mistake."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        mistakes = tuple(islice(shape_errors(plain, kind), ERRORS_MAX)) or (worded(error),)
        if len(mistakes) > 1:
            names = ", ".join(mistake.field for mistake in mistakes[:5])
            detail = f"{len(mistakes)} fields are wrong: {names}"
        else:
            detail = f"{mistakes[0].field or 'the body'}: {mistakes[0].message}"
        raise RequestRefusedError(detail, mistakes) from None


def members_of(plain: Any, kind: type[msgspec.Struct]) -> list[Any]:
    """The members of the only list of such a body, not yet judged.

    Raises with every mistake if the body as a whole is wrong.
    """
    ((name, field),) = _fields(kind).items()
    found = plain.get(name) if isinstance(plain, dict) and len(plain) == 1 else None
    if not isinstance(found, list) or not 1 <= len(found) <= _length_max(field.type):
        convert(plain, kind)
    return found or []


def worded(error: Exception, path: str = "") -> FieldError:
    """The message and path of msgspec's error."""
    text = str(error)
    message, found, inner = text.rpartition(_AT)
    if not found or not inner.endswith("`"):
        message, inner = text, "`"
    message = message.replace("`", "")[:MESSAGE_SHOWN_MAX]
    return FieldError(
        (path + inner[:-1].removeprefix("$")).lstrip("."), message[:1].lower() + message[1:]
    )


def cropped(name: str) -> str:
    """A name from outside, short enough to be sent back."""
    return name[:NAME_SHOWN_MAX]


def _inner_errors(value: Any, kind: Any, path: str, wording: Wording) -> Iterator[FieldError]:
    container, arguments = _container(kind)
    if container is dict and isinstance(value, dict):
        for name, member in value.items():
            for error in _leaf_errors(name, arguments[0], path):
                yield FieldError(path, f"the key {cropped(name)!r}: {error.message}")
            yield from shape_errors(member, arguments[1], _below(path, name), wording)
    elif container in (list, tuple) and isinstance(value, list):
        for index, member in enumerate(value):
            yield from shape_errors(member, arguments[0], f"{path}[{index}]", wording)
    elif container is msgspec.Struct and isinstance(value, dict):
        yield from _field_errors(value, arguments[0], path, wording)
    elif container is msgspec.Struct and wording.no_object:
        yield FieldError(path, wording.no_object)


def _field_errors(
    value: dict[str, Any], kind: Any, path: str, wording: Wording
) -> Iterator[FieldError]:
    fields = _fields(kind)
    for name, field in fields.items():
        if name in value:
            yield from shape_errors(value[name], field.type, _below(path, name), wording)
        elif field.required:
            yield FieldError(_below(path, name), "is required")
    for name in value:
        if name not in fields:
            message = wording.unknown.format(fields=", ".join(fields))
            yield FieldError(_below(path, name), message)


@functools.cache  # as many as there are types; working it out takes longer than a walk
def _fields(kind: Any) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _without_null(kind: Any) -> Any:
    options = [option for option in get_args(kind) if option is not NoneType]
    return options[0] if get_origin(kind) in (Union, UnionType) and len(options) == 1 else kind


def _container(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(kind) is Annotated:
        return _container(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return msgspec.Struct, (kind,)
    return get_origin(kind), get_args(kind)


def _length_max(kind: Any) -> float:
    bounds = (meta.max_length for meta in _metas(kind))
    return min((bound for bound in bounds if bound is not None), default=inf)


def _metas(kind: Any) -> Iterator[msgspec.Meta]:
    annotations = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return (meta for meta in annotations if isinstance(meta, msgspec.Meta))


def _leaf_errors(value: Any, kind: Any, path: str) -> Iterator[FieldError]:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # half a character is no text
        own = next((meta.extra[MESSAGE] for meta in _metas(kind) if meta.extra), None)
        yield worded(error, path) if own is None else FieldError(path, own)


def _below(path: str, name: str) -> str:
    return f"{path}.{cropped(name)}" if path else cropped(name)
