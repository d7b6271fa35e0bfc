"""Reads the bytes of a body and judges it, in time linear in its length.

A long body is judged in another process (`main`). Its members travel as JSON texts, so the
gateway's process neither parses nor encodes the long ones.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import sys
from typing import Any, Final, TypeAlias

import msgspec

from pricekeeper.bedrock.families import Family, family_of_body
from pricekeeper.bedrock.judging import BedrockCall, CallBounds, judge
from pricekeeper.bedrock.lengths import ADDITIONAL, CONFIGS
from pricekeeper.bedrock.shapes import BodyRefusedError
from pricekeeper.bedrock.usage import NOT_JSON

VALUES_MAX: Final = 100_000
"""Each takes half a microsecond."""
MEMBERS_MAX: Final = 256
"""Of a body and of its settings; Bedrock knows about 30."""
EXPONENT_VALUES: Final = 20
"""Values that take as long to parse as a number with an exponent."""
DIGITS_AS_A_VALUE: Final = 32
SHORT_BODY_BYTES: Final = 16_384
"""A shorter body can't have too many values, and is judged within a millisecond."""
NESTED_MAX: Final = 100
"""Fewer lists and objects are not nested too deeply for Python, even on a stack deeper by this."""
SHORT_MEMBER_BYTES: Final = 1_024
"""A longer member is handed over as JSON text."""
ASKED: Final = struct.Struct(">II")
ANSWERED: Final = struct.Struct(">I")
_NO_BOUNDS: Final = CallBounds(0, 0)
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_outer: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode

Bytes: TypeAlias = bytes | bytearray


class Question(msgspec.Struct, frozen=True):
    """What to find out about a body."""

    family: Family | None
    is_told_by_body: bool = False
    headers: dict[str, str] = {}
    has_answer: bool = True
    is_free: bool = False
    is_signed: bool = False


class Judged(msgspec.Struct, frozen=True):
    """The call of a body, or why it is refused."""

    call: BedrockCall | None
    model: str = ""
    content_sha256: str = ""
    refused: str = ""


class _Invoke(msgspec.Struct):
    body: bytes


class _Input(msgspec.Struct):
    invoke: _Invoke = msgspec.field(name="invokeModel")


class _ToCount(msgspec.Struct):
    input: _Input


class _HandedOver(msgspec.Struct, frozen=True):
    judged: Judged
    members: dict[str, bytes]


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(_HandedOver).decode


def read_and_judge(question: Question, body: Bytes) -> Judged:
    """Judge the bytes of a body."""
    digest = hashlib.sha256(body).hexdigest() if question.is_signed else ""
    try:
        parsed = _read(body)
        family = family_of_body(parsed) if question.is_told_by_body else question.family
        model = parsed.get("model", "")
        if question.is_free:
            call = BedrockCall(_family_to_count(parsed), parsed, _NO_BOUNDS)
        else:
            call = judge(parsed, family, question.headers, has_answer=question.has_answer)
    except BodyRefusedError as error:
        return Judged(None, "", digest, str(error))
    return Judged(call, model if isinstance(model, str) else "", digest)


def hand_over(judged: Judged) -> bytes:
    """Encode a judged body for another process."""
    members = {}
    if judged.call is not None:
        members = {name: _encode(value) for name, value in judged.call.body.items()}
        call = msgspec.structs.replace(judged.call, body={})
        judged = msgspec.structs.replace(judged, call=call)
    return _pack(_HandedOver(judged, members))


def take_over(data: Bytes) -> Judged:
    """Decode what another process has judged; long members of the body stay JSON texts."""
    taken = _unpack(data)
    judged = taken.judged
    if judged.call is None:
        return judged
    body = {name: _member(name, text) for name, text in taken.members.items()}
    return msgspec.structs.replace(judged, call=msgspec.structs.replace(judged.call, body=body))


def weigh(body: Bytes) -> int:
    """An upper bound of the values in a JSON text; slow numbers count several times.

    Linear, without parsing. A string ends at a quotation mark that is not escaped. Outside of
    strings a value is the first of its container or follows a comma.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    named = bare.count(b'"') // 4  # a value has at most two strings: its name and itself
    if named > VALUES_MAX:
        return named
    outside = b"".join(bare.split(b'"')[::2]).translate(None, b" \t\r\n")
    marks = outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    numbers = outside.replace(b"true", b"").replace(b"false", b"")
    exponents = numbers.count(b"e") + numbers.count(b"E")
    return 1 + marks + EXPONENT_VALUES * exponents + len(outside) // DIGITS_AS_A_VALUE


def _read(body: Bytes) -> dict[str, Any]:
    if len(body) > SHORT_BODY_BYTES and weigh(body) > VALUES_MAX:
        raise BodyRefusedError(
            f"the body may have {VALUES_MAX} values at most, and fewer long numbers"
        )
    try:
        parsed = _decode(body)
        if body.count(b"[") + body.count(b"{") > NESTED_MAX:
            _check_writable(parsed)
    except NOT_JSON:
        raise BodyRefusedError("the body must be a JSON object") from None
    for holder in (parsed, *(parsed.get(name) for name in (*CONFIGS, ADDITIONAL))):
        if isinstance(holder, dict) and len(holder) > MEMBERS_MAX:
            raise BodyRefusedError(f"an object of settings may have {MEMBERS_MAX} members at most")
    return parsed


def _family_to_count(body: dict[str, Any]) -> Family | None:
    """``None`` if the body of a CountTokens request does not tell."""
    try:
        family = family_of_body(_read(msgspec.convert(body, _ToCount).input.invoke.body))
    except (msgspec.ValidationError, BodyRefusedError):
        return None
    return None if family is Family.OTHER else family


def _check_writable(parsed: Any) -> None:
    """Raise `RecursionError` for a body that is nested too deeply to be encoded later."""
    for _ in range(NESTED_MAX):
        parsed = [parsed]
    _encode(parsed)


def _member(name: str, text: bytes) -> Any:
    if len(text) <= SHORT_MEMBER_BYTES:
        return _decode_any(text)
    return _decode_outer(text) if name in CONFIGS and text[:1] == b"{" else msgspec.Raw(text)


def main() -> None:
    """Answer requests on a socket until it is closed: ``python -m pricekeeper.bedrock.reading FD``.

    A request is two lengths (`ASKED`), a `Question` and a body. A reply is a length (`ANSWERED`)
    and the bytes that `hand_over` makes.
    """
    decode = msgspec.msgpack.Decoder(Question).decode
    with socket.socket(fileno=int(sys.argv[1])) as asking, asking.makefile("rwb") as stream:
        while head := stream.read(ASKED.size):
            asked_bytes, body_bytes = ASKED.unpack(head)
            question = decode(stream.read(asked_bytes))
            answer = hand_over(read_and_judge(question, stream.read(body_bytes)))
            stream.write(ANSWERED.pack(len(answer)))
            stream.write(answer)
            stream.flush()


if __name__ == "__main__":
    main()
