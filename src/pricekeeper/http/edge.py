"""The edge where bytes become values: strict JSON, and every mistake told at once.

JSON is taken literally: duplicate keys, lone surrogates, NaN, a byte order mark or trailing
characters are refused, because two readers of such a body may disagree about what it says.
A body that parses is converted to the wire type in one step; only if that fails is it walked
field by field, to list all that is wrong and not just the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec
from starlette.requests import ClientDisconnect

from pricekeeper.errors import PriceKeeperError
from pricekeeper.http.incoming import Incoming

BODY_BYTES_MAX: Final = 1024 * 1024
ERRORS_MAX: Final = 100
"""No more mistakes than this are told: the rest shows when these are mended."""

NAME_SHOWN_MAX: Final = 80
_Wire = TypeVar("_Wire")
_JSON: Final = ("application/json", None)
_ONCE: Final = frozenset({b"authorization", b"x-api-key", b"content-type", b"host"})
_WHERE: Final = re.compile(r" - at `\$?(.*)`$")


@dataclass(frozen=True, slots=True)
class FieldMistake:
    """One thing that is wrong with a request, and where."""

    field: str
    message: str


class RequestRefusedError(PriceKeeperError):
    """A request that can't be understood; ``mistakes`` names each bad field."""

    code = "INVALID_REQUEST"

    def __init__(self, detail: str, mistakes: tuple[FieldMistake, ...] = ()) -> None:
        super().__init__(detail)
        self.mistakes = mistakes


class BodyTooLargeError(PriceKeeperError):
    """The body is larger than any request of ours needs to be."""

    code = "PAYLOAD_TOO_LARGE"


def refuse_twofold(request: Incoming) -> None:
    """Refuse a request that says twice who it is from or what it brings: whom would one believe."""
    if twice := request.repeated() & _ONCE:
        names = ", ".join(sorted(name.decode() for name in twice))
        raise RequestRefusedError(f"sent more than once: {names}")


async def read_body(request: Incoming) -> bytes:
    """The whole body, refused as soon as it is known to be too large."""
    declared = request.header(b"content-length") or ""
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise BodyTooLargeError(f"the body may have {BODY_BYTES_MAX} bytes at most")
    body = b""
    while True:  # ends with the body, or with the bound on it
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        body = body + part if body else part
        if len(body) > BODY_BYTES_MAX:
            raise BodyTooLargeError(f"the body may have {BODY_BYTES_MAX} bytes at most")
        if not message.get("more_body", False):
            return body


async def read_json(request: Incoming, wire: type[_Wire]) -> _Wire:
    """The body as a value of the wire type."""
    kind = request.header(b"content-type")
    if kind not in _JSON and (kind or "").partition(";")[0].strip().lower() not in _JSON:
        raise RequestRefusedError("send the body as Content-Type: application/json")
    return parse_json(await read_body(request), wire)


def parse_json(body: bytes, wire: type[_Wire]) -> _Wire:
    """Bytes to a value of the wire type, or every mistake in them."""
    return convert(strict_json(body), wire)


def convert(plain: Any, wire: type[_Wire], at: str = "") -> _Wire:
    """Plain JSON to a value of the wire type, or every mistake in it."""
    try:
        return msgspec.convert(plain, wire)
    except msgspec.ValidationError as error:
        mistakes: list[FieldMistake] = []
        for mistake in _mistakes(plain, wire, at):
            mistakes.append(mistake)
            if len(mistakes) == ERRORS_MAX:
                break
        told = tuple(mistakes) or (_told(error, at),)
        if len(told) > 1:
            detail = f"{len(told)} fields are wrong: {', '.join(m.field for m in told[:5])}"
        else:
            detail = f"{told[0].field or 'the body'}: {told[0].message}"
        raise RequestRefusedError(detail, told) from None


def strict_json(body: bytes) -> Any:
    """Plain JSON values, refusing whatever two readers could understand differently."""
    try:
        text = body.decode()
        plain = _STRICT.decode(text)
        if "\\u" in text:
            json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeError:
        raise RequestRefusedError("the body is not valid UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise RequestRefusedError(f"the body is not JSON: {error.msg}, at {error.pos}") from None
    except RecursionError:
        raise RequestRefusedError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestRefusedError(f"the body is not acceptable JSON: {error}") from None
    return plain


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _mistakes(plain: Any, wire: Any, at: str) -> Iterator[FieldMistake]:
    """Walk structs, dicts and lists; where those are fine by themselves, ask msgspec."""
    inside = _mistakes_inside(plain, wire, at)
    first = next(inside, None)
    if first is None:
        yield from _leaf_mistakes(plain, wire, at)
    else:
        yield first
        yield from inside


def _mistakes_inside(plain: Any, wire: Any, at: str) -> Iterator[FieldMistake]:
    kind, arguments = _walkable(wire)
    if kind is dict and isinstance(plain, dict):
        for name, member in plain.items():
            for mistake in _leaf_mistakes(name, arguments[0], at):
                yield FieldMistake(at, f"the key {name[:NAME_SHOWN_MAX]!r}: {mistake.message}")
            yield from _mistakes(member, arguments[1], _below(at, name))
    elif kind is list and isinstance(plain, list):
        for place, member in enumerate(plain):
            yield from _mistakes(member, arguments[0], f"{at}[{place}]")
    elif kind is msgspec.Struct and isinstance(plain, dict):
        yield from _field_mistakes(plain, arguments[0], at)


def _field_mistakes(plain: dict[str, Any], wire: Any, at: str) -> Iterator[FieldMistake]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(wire)}
    for name, field in fields.items():
        if name in plain:
            yield from _mistakes(plain[name], field.type, _below(at, name))
        elif field.required:
            yield FieldMistake(_below(at, name), "is required")
    for name in plain.keys() - fields.keys():
        yield FieldMistake(_below(at, name), "is not a field of this request")


def _walkable(wire: Any) -> tuple[Any, tuple[Any, ...]]:
    """What kind of container the type is, below annotations and ``| None``."""
    if get_origin(wire) is Annotated:
        return _walkable(get_args(wire)[0])
    options = [option for option in get_args(wire) if option is not type(None)]
    if get_origin(wire) in (Union, UnionType) and len(options) == 1:
        return _walkable(options[0])
    if isinstance(wire, type) and issubclass(wire, msgspec.Struct):
        return msgspec.Struct, (wire,)
    return get_origin(wire), get_args(wire)


def _leaf_mistakes(plain: Any, wire: Any, at: str) -> Iterator[FieldMistake]:
    try:
        msgspec.convert(plain, wire)
    except msgspec.ValidationError as error:
        yield _told(error, at)


def _told(error: msgspec.ValidationError, at: str) -> FieldMistake:
    text = str(error)
    where = _WHERE.search(text)
    inner = "" if where is None else where.group(1)
    message = _WHERE.sub("", text).replace("`", "")
    return FieldMistake((at + inner).lstrip("."), message[:1].lower() + message[1:])


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
