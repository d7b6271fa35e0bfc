"""The edge where bytes become values: strict JSON, and every mistake told at once.

JSON is taken literally: duplicate keys, lone surrogates, NaN, a byte order mark or trailing
characters are refused, because two readers of such a body may disagree about what it says.
A body that parses is converted to the wire type in one step; only if that fails is it walked
field by field, to list all that is wrong and not just the first.

A caller chooses what is parsed here, so the cost of every function grows with the length of its
input and not faster (`tests/http/test_linear.py`).
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import parse_qsl

import msgspec

from pricekeeper.errors import FieldError, PriceKeeperError, RequestRefusedError
from pricekeeper.http.incoming import CallerLeftError, Incoming
from pricekeeper.shapes import convert, cropped, members_of

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
MERGE_PATCH: Final = "application/merge-patch+json"
FORM_FIELDS_MAX: Final = 20
BODY_BYTES_MAX: Final = 16 * 1024
"""Of every operation but batches and settings."""
BATCH_BYTES_MAX: Final = 1024 * 1024
SETTINGS_BYTES_MAX: Final = 256 * 1024
"""Room for limits of their own for every model label."""
VALUES_MAX: Final = 20_000
"""Of a body. Each value costs the event loop up to a microsecond. A batch of 100 records with all
that a record may have takes a sixth of these."""
COLLECTED_LENGTH_MAX: Final = 64 * 1024
_UNSURE: Final = object()
_Wire = TypeVar("_Wire")
_ONCE: Final = frozenset({b"authorization", b"x-api-key", b"content-type", b"host"})


class _NotAcceptableError(ValueError):
    """JSON that two readers could understand differently."""


class BodyTooLargeError(PriceKeeperError):
    """The body is larger than any request of ours needs to be."""

    code = "PAYLOAD_TOO_LARGE"


def refuse_repeated(request: Incoming) -> None:
    """Refuse a request that says twice who sends it or what it carries: the two may differ."""
    if twice := request.repeated() & _ONCE:
        names = ", ".join(sorted(name.decode() for name in twice))
        raise RequestRefusedError(f"sent more than once: {names}")


async def read_body(request: Incoming, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Receive the whole body, and refuse it as soon as it is known to be too large."""
    declared = request.header(b"content-length") or ""
    if declared.isdigit() and int(declared) > bytes_max:
        raise BodyTooLargeError(f"the body may have {bytes_max} bytes at most")
    body = request.exchange.take_body()
    if body is not None:
        if len(body) > bytes_max:
            raise BodyTooLargeError(f"the body may have {bytes_max} bytes at most")
        return body
    if request.deadline is None:
        return await _receive_body(request, bytes_max)
    with request.deadline.pause():
        return await _receive_body(request, bytes_max)


async def _receive_body(request: Incoming, bytes_max: int) -> bytes:
    body = bytearray()  # it grows in place: joining two parts anew would copy all before them
    while True:  # ends with the body, or with the bound on it
        message: Any = await request.exchange.receive()
        if message["type"] == "http.disconnect":
            raise CallerLeftError
        part: bytes = message.get("body", b"")
        if len(body) + len(part) > bytes_max:
            raise BodyTooLargeError(f"the body may have {bytes_max} bytes at most")
        last = not message.get("more_body", False)
        if last and not body:
            return part
        body += part
        if last:
            return bytes(body)


async def read_json(request: Incoming, wire: type[_Wire]) -> _Wire:
    """Receive the body, and convert it to the wire type."""
    if _media_type(request) not in (JSON, None):
        raise RequestRefusedError(f"send the body as Content-Type: {JSON}")
    return parse_json(await read_body(request), wire)


def take_json(request: Incoming, wire: type[_Wire]) -> _Wire | None:
    """The same, if all of it is here and nothing is wrong with it; else it is left to be read."""
    body = request.exchange.peek_body()
    if body is None or len(body) > BODY_BYTES_MAX or _media_type(request) not in (JSON, None):
        return None
    try:
        return parse_json(body, wire)
    except RequestRefusedError:
        return None


async def read_json_if_any(request: Incoming, wire: type[_Wire]) -> _Wire:
    """Receive a body that may be left out; without one, everything has its default."""
    body = await read_body(request)
    return parse_json(body, wire) if body else wire()


async def read_members(request: Incoming, wire: type[msgspec.Struct]) -> list[Any]:
    """Receive a batch; its members as they came, because each of them is judged by itself."""
    return members_of(strict_json(await read_body(request, BATCH_BYTES_MAX)), wire)


async def read_settings(request: Incoming, _: type[msgspec.Struct]) -> dict[str, Any]:
    """Receive settings as a plain object.

    `tenants.parsing` converts it to the wire type, together with what else has to hold of it: so
    one answer names every mistake.
    """
    plain = strict_json(await read_body(request, SETTINGS_BYTES_MAX))
    if not isinstance(plain, dict):
        mistake = FieldError("", "expected an object")
        raise RequestRefusedError("the body must be a JSON object", (mistake,))
    return plain


async def read_patch(request: Incoming, wire: type[msgspec.Struct]) -> dict[str, Any]:
    """Receive a merge patch of settings (RFC 7396), which may also call itself plain JSON."""
    if _media_type(request) not in (MERGE_PATCH, JSON, None):
        raise RequestRefusedError(f"send the patch as Content-Type: {MERGE_PATCH} or {JSON}")
    return await read_settings(request, wire)


async def read_parameters(request: Incoming, wire: type[_Wire]) -> _Wire:
    """Receive parameters as a form or as JSON, as RFC 6749 has it, and convert them."""
    body, kind = await read_body(request), _media_type(request)
    if kind not in (FORM, JSON):
        raise RequestRefusedError(f"send the parameters as {FORM} or {JSON}")
    return convert(parse_form(body) if kind == FORM else strict_json(body), wire)


def _media_type(request: Incoming) -> str | None:
    kind = request.header(b"content-type")
    return kind if kind in (JSON, None) else kind.partition(";")[0].strip().lower()


def parse_json(body: bytes, wire: type[_Wire]) -> _Wire:
    """The bytes as a value of the wire type; raises with every mistake in them."""
    return convert(strict_json(body), wire)


def strict_json(body: bytes) -> Any:
    """The bytes as plain JSON; raises for whatever two readers could understand differently."""
    commas = body.count(b",")
    if commas + body.count(b"{") + body.count(b"[") > VALUES_MAX:
        raise RequestRefusedError(f"the body may have {VALUES_MAX:,} values at most")
    plain = _UNSURE
    if b"\\" not in body and len(body) < COLLECTED_LENGTH_MAX and body.isascii():
        plain = _read_quickly(body, commas)
    return _read_strictly(body) if plain is _UNSURE else plain


def _read_quickly(body: bytes, commas: int) -> Any:
    """What `_read_strictly` would return, or that this can't be told."""
    try:
        plain = _decode_quickly(body)
        return plain if _commas_of(plain) == commas else _UNSURE
    except (msgspec.DecodeError, RecursionError):
        return _UNSURE


def _read_strictly(body: bytes) -> Any:
    try:
        text = body.decode()
        plain = _decode(text)
        if "\\u" in text:
            json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeError:
        raise RequestRefusedError("the body is not valid UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise RequestRefusedError(f"the body is not JSON: {error.msg}, at {error.pos}") from None
    except RecursionError:
        raise RequestRefusedError("the body is nested too deeply") from None
    except _NotAcceptableError as error:
        raise RequestRefusedError(f"the body is not acceptable JSON: {error}") from None
    except ValueError:  # Python converts only so many digits
        raise RequestRefusedError("the body has a number with too many digits") from None
    return plain


def parse_form(body: bytes) -> dict[str, str]:
    """The fields of a form, each of them once."""
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )
    except (UnicodeError, ValueError):
        raise RequestRefusedError("the body is not a form") from None
    made = dict(pairs)
    if len(made) < len(pairs):
        raise RequestRefusedError("a parameter is there twice")
    return made


def _decode(text: str) -> Any:
    """Decode the text; while a long one is decoded, Python collects no garbage.

    What JSON is decoded to has no cycles, so there is nothing to be found, and looking through some
    hundred thousand new lists again and again takes eight times as long as making them.
    """
    if len(text) < COLLECTED_LENGTH_MAX or not gc.isenabled():
        return _STRICT.decode(text)
    gc.disable()
    try:
        return _STRICT.decode(text)
    finally:
        gc.enable()


def _commas_of(plain: Any) -> int:
    """How many commas are in the JSON of that value, if none is in a text.

    A name that was there twice has a comma which is not counted here. So if all commas of a body
    are, each name was there once.
    """
    members = plain.values() if type(plain) is dict else plain if type(plain) is list else ()
    commas = len(members) - 1 if members else 0
    for member in members:
        kind = type(member)
        if kind is dict or kind is list:
            commas += _commas_of(member)
    return commas


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = _first_repeated(name for name, _ in pairs)
        raise _NotAcceptableError(f"the key {cropped(twice)!r} is there twice")
    return made


def _first_repeated(names: Iterator[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise LookupError("no name is there twice")


def _no_constant(name: str) -> NoReturn:
    raise _NotAcceptableError(f"{name} is not a number")


_decode_quickly: Final = msgspec.json.Decoder().decode
"""Takes no JSON that `_STRICT` does not take, but for names that are there twice; and all that it
takes means the same to both, where everything is ASCII and nothing is escaped."""
_STRICT: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
