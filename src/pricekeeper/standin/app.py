"""The stand-in's ASGI application: it finds the operation, bills the call and answers.

A call runs to its end even if its caller leaves. Signatures are not checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from random import getrandbits
from typing import Any, Final, Protocol
from urllib.parse import unquote
from uuid import UUID

import msgspec

from pricekeeper.standin.endpoint import (
    JSON,
    REQUEST_ID,
    Headers,
    ModelApi,
    ModelReply,
    ModelRequest,
    ModelStream,
    refuse_as_aws,
)
from pricekeeper.standin.ledger import Ledger
from pricekeeper.standin.operations import Converse, CountTokens, InvokeModel
from pricekeeper.standin.read_request import Body
from pricekeeper.standin.refusals import REFUSALS, AwsFault
from pricekeeper.standin.script import (
    BREAKS_OFF,
    CUT,
    GATEWAY_504,
    HANGS_UP,
    SILENT,
    Fates,
    Script,
    script_of,
)
from pricekeeper.standin.sse import ChatCompletions, Messages
from pricekeeper.standin.turn import Turn, take_turn

BODY_BYTES_MAX: Final = 25 * 1024 * 1024
"""Bedrock's limit."""
CONNECTION: Final = "pricekeeper.standin.connection"
"""The ASGI extension with the server's connection."""

_MODEL: Final = b"/model/"
_MODEL_OPERATIONS: Final[dict[bytes, ModelApi]] = {
    b"converse": Converse(streams=False),
    b"converse-stream": Converse(streams=True),
    b"count-tokens": CountTokens(),
    b"invoke": InvokeModel(streams=False),
    b"invoke-with-response-stream": InvokeModel(streams=True),
}
_OTHER_OPERATIONS: Final[dict[bytes, ModelApi]] = {
    b"/openai/v1/chat/completions": ChatCompletions(),
    b"/anthropic/v1/messages": Messages(),
}
"""With the model's id in the body."""
_TIMED_OUT: Final = ModelReply(
    b"<html><body><h1>504 Gateway Time-out</h1></body></html>", status=504, media_type=b"text/html"
)
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class PeerConnection(Protocol):
    """What ASGI lacks: to notice a peer that leaves, and to close."""

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...

    def watch(self) -> None:
        """After a long body, notice when the peer leaves."""
        ...


class _Exchange:
    """One request and its answer."""

    __slots__ = ("_receive", "_send", "connection", "id")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.connection: PeerConnection = scope["extensions"][CONNECTION]
        self.id = str(UUID(int=getrandbits(128), version=4))

    async def read_body(self) -> bytes:
        parts, length, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            part = message.get("body", b"")
            length += len(part)
            if length > BODY_BYTES_MAX:
                raise AwsFault("RequestEntityTooLargeException", "the body has more than 25 MiB")
            parts.append(part)
            more = message.get("more_body", False)
        self.connection.watch()
        return b"".join(parts)

    async def wait_until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def hang_up(self) -> None:
        """Close the connection in mid-answer."""
        self.connection.close()
        await self.wait_until_gone()

    async def start(self, status: int, media_type: bytes, headers: Headers) -> None:
        headers = [(b"content-type", media_type), (REQUEST_ID, self.id.encode()), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, body: bytes, *, more: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, reply: ModelReply) -> None:
        headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
        await self.start(reply.status, reply.media_type, headers)
        await self.send(reply.body)


class StandIn:
    """Bedrock's runtime without models, and its ledger."""

    def __init__(self, script: Script | None = None, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self._script = script or Script()
        self._fates = Fates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        try:
            await self._answer(scope, exchange)
        except ConnectionResetError:  # before the request was complete
            return
        except asyncio.CancelledError:  # the stand-in stops
            return

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        method, path = scope["method"], scope["raw_path"]
        if path == b"/ledger":
            await exchange.answer(self._answer_about_ledger(method))
            return
        endpoint, model_id = _endpoint_of(path) if method == "POST" else (None, "")
        if endpoint is None:
            unknown = AwsFault("UnknownOperationException", f"there is no {method} of this path")
            await exchange.answer(refuse_as_aws(unknown))
            return
        self.ledger.count_attempt(endpoint.name)
        try:
            body = _parsed(await exchange.read_body())
            request = ModelRequest(model_id or str(body.get("model")), dict(scope["headers"]), body)
            await self._call(endpoint, request, exchange)
        except AwsFault as refusal:
            await exchange.answer(endpoint.refuse(refusal))

    async def _call(self, endpoint: ModelApi, request: ModelRequest, exchange: _Exchange) -> None:
        """Refuse the call, or run the model, bill and answer."""
        asked = endpoint.read(request)
        script = script_of(asked.user_text, self._script)
        fate = self._fates.meet(asked.user_text, script)
        if fate is not None and fate in REFUSALS:
            await _take(script.delay_ms)
            raise AwsFault(fate, "as scripted")
        turn = take_turn(exchange.id, request.model_id, endpoint.name, asked, script)
        if not endpoint.is_free:
            self.ledger.bill(turn.entry())
        await _take(script.delay_ms)
        if fate == SILENT:
            await exchange.wait_until_gone()
            self.ledger.note_hang_up(turn.id)
        elif fate == GATEWAY_504:
            await exchange.answer(_TIMED_OUT)
        elif fate == HANGS_UP or (fate in {BREAKS_OFF, CUT} and not asked.streams):
            await exchange.hang_up()
        elif exchange.connection.is_closing():
            self.ledger.note_hang_up(turn.id)
        elif asked.streams:
            await self._stream(endpoint, turn, fate, script.between_ms, exchange)
        else:
            await exchange.answer(endpoint.reply(turn))

    async def _stream(
        self, endpoint: ModelApi, turn: Turn, fate: str | None, between_ms: int, exchange: _Exchange
    ) -> None:
        """Send a stream, or half of it."""
        stream = endpoint.stream(turn)
        frames = _fated_frames(stream, fate, endpoint)
        await exchange.start(200, stream.media_type, [*stream.headers])
        for frame in frames:
            await _take(between_ms)
            if exchange.connection.is_closing():
                self.ledger.note_hang_up(turn.id)
                return
            await exchange.send(frame, more=True)
        if fate == CUT:
            await exchange.hang_up()
        else:
            await exchange.send(b"")

    def _answer_about_ledger(self, method: str) -> ModelReply:
        if method == "GET":
            return ModelReply(msgspec.json.encode(self.ledger.statement()))
        if method == "DELETE":
            self.ledger.clear()
            self._fates.clear()
            return ModelReply(b"{}")
        return ModelReply(b'{"message":"GET or DELETE"}', [(b"allow", b"GET, DELETE")], 405, JSON)


def _endpoint_of(path: bytes) -> tuple[ModelApi | None, str]:
    """The operation and model id; an ARN's slashes may be encoded."""
    if path.startswith(_MODEL):
        model, _, operation = path[len(_MODEL) :].rpartition(b"/")
        return _MODEL_OPERATIONS.get(operation) if model else None, unquote(model.decode())
    return _OTHER_OPERATIONS.get(path), ""


def _parsed(body: bytes) -> Body:
    try:
        return _decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise AwsFault("ValidationException", "the body is not a JSON object") from None


def _fated_frames(stream: ModelStream, fate: str | None, endpoint: ModelApi) -> list[bytes]:
    if fate not in {BREAKS_OFF, CUT}:
        return stream.frames
    half = stream.frames[: stream.ends_after]
    return [*half, endpoint.failure()] if fate == BREAKS_OFF else half


async def _take(delay_ms: int) -> None:
    if delay_ms:
        await asyncio.sleep(delay_ms / 1000)
