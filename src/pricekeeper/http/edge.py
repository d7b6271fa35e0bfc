"""Parses bodies: strict JSON and forms, with every mistake listed.

Duplicate keys, lone surrogates, NaN, a byte order mark and trailing characters are refused: two
readers may disagree about them. Callers choose the input, so each function takes linear time.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from contextlib import nullcontext
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
"""Except batches and settings."""
BATCH_BYTES_MAX: Final = 1024 * 1024
SETTINGS_BYTES_MAX: Final = 256 * 1024
"""Enough for rate limits of every model label."""
VALUES_MAX: Final = 20_000
"""Each costs the event loop up to 1 µs. 100 full records have a sixth of them."""
COLLECTED_LENGTH_MAX: Final = 64 * 1024
_UNSURE: Final = object()
_Wire = TypeVar("_Wire")
_ONCE: Final = frozenset({b"authorization", b"x-api-key", b"content-type", b"host"})


class _NotAcceptableError(ValueError):
    """JSON that two readers could read differently."""


class BodyTooLargeError(PriceKeeperError):
    """The body is larger than the operation allows."""

    code = "PAYLOAD_TOO_LARGE"


def refuse_repeated(request: Incoming) -> None:
    """Refuse repeated headers for credentials, type or host: they may differ."""
    if twice := request.repeated() & _ONCE:
        names = ", ".join(sorted(name.decode() for name in twice))
        raise RequestRefusedError(f"sent more than once: {names}")


async def read_body(request: Incoming, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Receive the whole body; refuse it once it is too large."""
    declared = request.header(b"content-length") or ""
    if declared.isdigit():
        _check_size(int(declared), bytes_max)
    body = request.exchange.take_body()
    if body is not None:
        _check_size(len(body), bytes_max)
        return body
    with nullcontext() if request.deadline is None else request.deadline.pause():
        return await _receive_body(request, bytes_max)


def _check_size(count: int, bytes_max: int) -> None:
    if count > bytes_max:
        raise BodyTooLargeError(f"the body may have {bytes_max} bytes at most")


async def _receive_body(request: Incoming, bytes_max: int) -> bytes:
    body = bytearray()  # grows in place; joining parts would copy them each time
    while True:
        message: Any = await request.exchange.receive()
        if message["type"] == "http.disconnect":
            raise CallerLeftError
        part: bytes = message.get("body", b"")
        _check_size(len(body) + len(part), bytes_max)
        last = not message.get("more_body", False)
        if last and not body:
            return part
        body += part
        if last:
            return bytes(body)


async def read_json(request: Incoming, wire: type[_Wire]) -> _Wire:
    """Receive the body as its wire type."""
    if _media_type(request) not in (JSON, None):
        raise RequestRefusedError(f"send the body as Content-Type: {JSON}")
    return parse_json(await read_body(request), wire)


def take_json(request: Incoming, wire: type[_Wire]) -> _Wire | None:
    """Parse a body that is complete and valid; leave others to `read_json`."""
    body = request.exchange.peek_body()
    if body is None or len(body) > BODY_BYTES_MAX or _media_type(request) not in (JSON, None):
        return None
    try:
        return parse_json(body, wire)
    except RequestRefusedError:
        return None


async def read_json_if_any(request: Incoming, wire: type[_Wire]) -> _Wire:
    """Receive an optional body; without one, all fields have their defaults."""
    body = await read_body(request)
    return parse_json(body, wire) if body else wire()


async def read_members(request: Incoming, wire: type[msgspec.Struct]) -> list[Any]:
    """Receive a batch; its members stay unparsed, because each is judged by itself."""
    return members_of(strict_json(await read_body(request, BATCH_BYTES_MAX)), wire)


async def read_settings(request: Incoming, _: type[msgspec.Struct]) -> dict[str, Any]:
    """Receive settings as an object; `tenants.parsing` then lists every mistake in one answer."""
    plain = strict_json(await read_body(request, SETTINGS_BYTES_MAX))
    if not isinstance(plain, dict):
        mistake = FieldError("", "expected an object")
        raise RequestRefusedError("the body must be a JSON object", (mistake,))
    return plain


async def read_patch(request: Incoming, wire: type[msgspec.Struct]) -> dict[str, Any]:
    """Receive a merge patch of settings (RFC 7396), also as plain JSON."""
    if _media_type(request) not in (MERGE_PATCH, JSON, None):
        raise RequestRefusedError(f"send the patch as Content-Type: {MERGE_PATCH} or {JSON}")
    return await read_settings(request, wire)


async def read_parameters(request: Incoming, wire: type[_Wire]) -> _Wire:
    """Receive parameters as a form (RFC 6749) or as JSON."""
    body, kind = await read_body(request), _media_type(request)
    if kind not in (FORM, JSON):
        raise RequestRefusedError(f"send the parameters as {FORM} or {JSON}")
    return convert(parse_form(body) if kind == FORM else strict_json(body), wire)


def _media_type(request: Incoming) -> str | None:
    kind = request.headers.get(b"content-type")
    return None if kind is None else kind.decode("latin-1").partition(";")[0].strip().lower()


def parse_json(body: bytes, wire: type[_Wire]) -> _Wire:
    """Parse a wire type; raises with every mistake."""
    return convert(strict_json(body), wire)


def strict_json(body: bytes) -> Any:
    """Parse plain JSON; raises if two readers could read it differently."""
    commas = body.count(b",")
    if commas + body.count(b"{") + body.count(b"[") > VALUES_MAX:
        raise RequestRefusedError(f"the body may have {VALUES_MAX:,} values at most")
    plain = _UNSURE
    if b"\\" not in body and len(body) < COLLECTED_LENGTH_MAX and body.isascii():
        plain = _read_quickly(body, commas)
    return _read_strictly(body) if plain is _UNSURE else plain


def _read_quickly(body: bytes, commas: int) -> Any:
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
    except ValueError:
        raise RequestRefusedError("the body has a number with too many digits") from None
    return plain


def parse_form(body: bytes) -> dict[str, str]:
    """The fields of a form; a repeated field is refused."""
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
    """Decode without garbage collection while the text is long.

    Decoded JSON has no cycles, and scanning 100,000 new lists takes eight times as long as making
    them.
    """
    if len(text) < COLLECTED_LENGTH_MAX or not gc.isenabled():
        return _STRICT.decode(text)
    gc.disable()
    try:
        return _STRICT.decode(text)
    finally:
        gc.enable()


def _commas_of(plain: Any) -> int:
    """The number of commas in the JSON of a value, outside of texts.

    A repeated name adds a comma that is not counted here, so an equal count proves there is none.
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
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise _NotAcceptableError(f"the key {cropped(twice)!r} is there twice")
    return made


def _no_constant(name: str) -> NoReturn:
    raise _NotAcceptableError(f"{name} is not a number")


_decode_quickly: Final = msgspec.json.Decoder().decode
"""Accepts what `_STRICT` accepts, and repeated names; same result for ASCII without escapes."""
_STRICT: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
