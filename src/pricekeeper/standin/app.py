"""The ASGI application: from a path to an operation, and what becomes of the call.

It is plain ASGI, because benches use it as an upstream that costs next to nothing. uvicorn does
not cancel a handler whose caller has gone, so a call runs to its end; it is billed before the
first byte of its answer in any case. Signatures are not checked, and no body is ever logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from random import getrandbits
from typing import Any, Final, Protocol
from urllib.parse import unquote
from uuid import UUID

import msgspec

from pricekeeper.standin.converse import Converse
from pricekeeper.standin.count_tokens import CountTokens
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
from pricekeeper.standin.invoke import InvokeModel
from pricekeeper.standin.ledger import Ledger
from pricekeeper.standin.prompt import Body
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
"""What Bedrock takes at most."""
CONNECTION: Final = "pricekeeper.standin.connection"
"""The name of the ASGI extension by which the server hands over its connection."""

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
"""Those that have the model's id in the body."""
_TIMED_OUT: Final = ModelReply(
    b"<html><body><h1>504 Gateway Time-out</h1></body></html>", status=504, media_type=b"text/html"
)
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class PeerConnection(Protocol):
    """What ASGI does not offer: to see a peer leave without waiting for it, and to leave."""

    def is_closing(self) -> bool:
        """Whether the peer has gone, or is being left."""
        ...

    def close(self) -> None:
        """Leave, after what was written has been sent."""
        ...

    def watch(self) -> None:
        """Read on after a long body, so that a peer that leaves is seen."""
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
        """The whole body, unless it is too long."""
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
        """Wait until the connection is closed, by either side."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def hang_up(self) -> None:
        """Leave the caller alone with what it has got so far."""
        self.connection.close()
        await self.wait_until_gone()

    async def start(self, status: int, media_type: bytes, headers: Headers) -> None:
        """Send the head of an answer."""
        headers = [(b"content-type", media_type), (REQUEST_ID, self.id.encode()), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, body: bytes, *, more: bool = False) -> None:
        """Send a part of the body, or the last one."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, reply: ModelReply) -> None:
        """Send an answer in one piece."""
        headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
        await self.start(reply.status, reply.media_type, headers)
        await self.send(reply.body)


class StandIn:
    """A stand-in for Bedrock's runtime, and the ledger that says what it has billed."""

    def __init__(self, script: Script | None = None, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self._script = script or Script()
        self._fates = Fates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = _Exchange(scope, receive, send)
        try:
            await self._answer(scope, exchange)
        except ConnectionResetError:  # before it had said what it wanted
            return
        except asyncio.CancelledError:  # the stand-in is being stopped, with this one under way
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
        """Refuse, or run the model, bill it and answer."""
        prompt = endpoint.read(request)
        script = script_of(prompt.user_text, self._script)
        fate = self._fates.meet(prompt.user_text, script)
        if fate is not None and fate in REFUSALS:
            await _take(script.delay_ms)
            raise AwsFault(fate, "as scripted")
        turn = take_turn(exchange.id, request.model_id, endpoint.name, prompt, script)
        if not endpoint.is_free:
            self.ledger.bill(turn.entry())
        await _take(script.delay_ms)
        if fate == SILENT:
            await exchange.wait_until_gone()
            self.ledger.note_hang_up(turn.id)
        elif fate == GATEWAY_504:
            await exchange.answer(_TIMED_OUT)
        elif fate == HANGS_UP or (fate in {BREAKS_OFF, CUT} and not prompt.streams):
            await exchange.hang_up()
        elif exchange.connection.is_closing():
            self.ledger.note_hang_up(turn.id)
        elif prompt.streams:
            await self._stream(endpoint, turn, fate, script.between_ms, exchange)
        else:
            await exchange.answer(endpoint.reply(turn))

    async def _stream(
        self, endpoint: ModelApi, turn: Turn, fate: str | None, between_ms: int, exchange: _Exchange
    ) -> None:
        """Send the events of a stream, all of them or half of them."""
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
    """The operation of a raw path, and the model's id: an ARN has slashes, encoded or not."""
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
    """Take the time that the model takes."""
    if delay_ms:
        await asyncio.sleep(delay_ms / 1000)
