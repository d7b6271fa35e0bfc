"""What happens at each of botocore's events, for clients that wait and for those that await.

The order is botocore's: ``before-call``, then for each attempt ``request-created`` (twice of ours:
before the request is signed, and after that) and ``response-received``, then ``after-call`` or
``after-call-error``. The authorization is asked for in ``before-call``, when nothing can be wrong
with the parameters any more; raising there sends nothing.

What is done is written once, as steps: a generator that yields what has to be waited for. The two
kinds of hooks differ in how they wait.
"""

from __future__ import annotations

import io
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from pricekeeper.bedrock import Operation
from pricekeeper.client.answers import Authorization
from pricekeeper.client.errors import ServiceError
from pricekeeper.client.keeper import AsyncPriceKeeper, PriceKeeper
from pricekeeper.client.wrapping.async_streams import (
    ClientStreams,
    meter_async_stream,
    replay_async,
)
from pricekeeper.client.wrapping.denials import as_client_error
from pricekeeper.client.wrapping.metered_call import Ask, MeteredCall, Options
from pricekeeper.client.wrapping.streams import meter_stream

SERVICE: Final = "bedrock-runtime"
_KEY: Final = "pricekeeper"
_SUCCESS: Final = 300
_COUNTED_BY_GATEWAY: Final = "x-pricekeeper-authorization-id"
"""The header of an answer that came through our gateway: its call is settled already."""


Waiting: TypeAlias = Callable[[], Any]
"""Something to wait for: what it gives back is the result, or for who awaits an awaitable of it."""
Steps: TypeAlias = Generator[Waiting, Any, None]


class Hooks:
    """The handlers of one client's events."""

    def __init__(
        self, client: Any, keeper: PriceKeeper | AsyncPriceKeeper, options: Options
    ) -> None:
        self._client: Callable[[], Any] = weakref.ref(client)
        self._keeper = keeper
        self._options = options

    def register(self, events: Any) -> None:
        """Listen to the events of a client; a second time changes nothing."""
        steps: dict[str, Callable[..., Steps]] = {
            "before-call": self._before,
            "request-created": self._created,
            "response-received": self._received,
            "after-call": self._after,
            "after-call-error": self._failed,
        }
        for operation in Operation:
            for event, step in steps.items():
                name = f"{event}.{SERVICE}.{operation.api_name}"
                handler = self._handler(partial(step, operation))
                events.register(name, handler, unique_id=f"pricekeeper-{name}")
        # Behind the handler that signs: without credentials nothing is sent.
        signed = f"request-created.{SERVICE}"
        handler = self._handler(self._signed)
        events.register_last(signed, handler, unique_id=f"pricekeeper-{signed}")

    @abstractmethod
    def _handler(self, step: Callable[..., Steps]) -> Callable[..., Any]:
        """A handler for botocore that takes these steps."""

    @abstractmethod
    def _meter(self, stream: Any, call: MeteredCall, service_tier: str | None) -> None:
        """Have a stream metered."""

    @abstractmethod
    def _replay(self, body: Any, data: bytes) -> Any:
        """A body that can be read again, after it was read."""

    def _before(
        self, operation: Operation, params: dict[str, Any], context: Any, **_: object
    ) -> Steps:
        try:
            call = MeteredCall(self._keeper.engine, self._options, operation, params)
        except ServiceError as error:
            raise self._client_error(error, operation) from error
        authorization = yield from self._authorize(call.ask(), operation)
        try:
            call.grant(authorization, params)
        except ServiceError as error:
            raise self._client_error(error, operation) from error
        context[_KEY] = call

    def _created(self, operation: Operation, request: Any, **_: object) -> Steps:
        call: MeteredCall | None = request.context.get(_KEY)
        if call is not None and call.needs_authorization:
            call.grant_again((yield from self._authorize(call.ask_again(), operation)))

    def _authorize(
        self, asked: Ask, operation: Operation
    ) -> Generator[Waiting, Any, Authorization]:
        try:
            authorization: Authorization = yield lambda: self._keeper.authorize(**asked)
        except ServiceError as error:
            raise self._client_error(error, operation) from error
        return authorization

    def _signed(self, request: Any, **_: object) -> Steps:
        call: MeteredCall | None = request.context.get(_KEY)
        if call is not None:
            call.note_attempt()
        yield from ()

    def _received(
        self, _: Operation, context: Any, response_dict: Any, exception: Any, **__: object
    ) -> Steps:
        call: MeteredCall | None = context.get(_KEY)
        if call is not None:
            call.note_outcome(response_dict, exception)
        yield from ()

    def _after(
        self, operation: Operation, http_response: Any, parsed: Any, context: Any, **_: object
    ) -> Steps:
        call: MeteredCall | None = context.pop(_KEY, None)
        if call is None:
            return
        if http_response.status_code >= _SUCCESS:
            call.finish_failed("Bedrock refused the call")
        elif _COUNTED_BY_GATEWAY in http_response.headers:
            call.finish_elsewhere()
        elif operation is Operation.CONVERSE:
            call.finish_converse(parsed)
        elif operation is Operation.INVOKE:
            try:
                data: bytes = yield parsed["body"].read
            except BaseException:
                call.finish(None)
                raise
            call.finish_invoke(data, http_response.headers)
            parsed["body"] = self._replay(parsed["body"], data)
        else:
            tier = parsed.get("serviceTier")
            stream = parsed["stream" if operation.is_converse else "body"]
            self._meter(stream, call, tier if isinstance(tier, str) else None)

    def _failed(self, _: Operation, context: Any, **__: object) -> Steps:
        call: MeteredCall | None = context.pop(_KEY, None)
        if call is not None:
            call.finish_failed("the call was not made")
        yield from ()

    def _client_error(self, error: ServiceError, operation: Operation) -> Exception:
        client = self._client()
        if client is None:
            return error
        return as_client_error(error, client.exceptions, operation.api_name)


class BlockingHooks(Hooks):
    """For boto3 and botocore."""

    def _handler(self, step: Callable[..., Steps]) -> Callable[..., Any]:
        def handler(**kwargs: Any) -> None:
            steps = step(**kwargs)
            with suppress(StopIteration):
                wanted = next(steps)
                while True:  # ends with the steps
                    try:
                        result = wanted()
                    except BaseException as error:  # noqa: BLE001 - the steps decide
                        wanted = steps.throw(error)
                    else:
                        wanted = steps.send(result)

        return handler

    def _meter(self, stream: Any, call: MeteredCall, service_tier: str | None) -> None:
        meter_stream(stream, call, call.stream_usage(service_tier))

    def _replay(self, body: Any, data: bytes) -> Any:
        from botocore.response import StreamingBody  # noqa: PLC0415 - loaded with the client

        body.close()
        return StreamingBody(io.BytesIO(data), len(data))


class AwaitingHooks(Hooks):
    """For aiobotocore and aioboto3, which await their handlers."""

    def __init__(self, client: Any, keeper: AsyncPriceKeeper, options: Options) -> None:
        super().__init__(client, keeper, options)
        self._streams = ClientStreams()

    def _handler(self, step: Callable[..., Steps]) -> Callable[..., Any]:
        async def handler(**kwargs: Any) -> None:
            steps = step(**kwargs)
            with suppress(StopIteration):
                wanted = next(steps)
                while True:  # ends with the steps
                    try:
                        result = await wanted()
                    except BaseException as error:  # noqa: BLE001 - the steps decide
                        wanted = steps.throw(error)
                    else:
                        wanted = steps.send(result)

        return handler

    def _meter(self, stream: Any, call: MeteredCall, service_tier: str | None) -> None:
        usage = call.stream_usage(service_tier)
        meter_async_stream(stream, call, usage, self._streams, self._client())

    def _replay(self, body: Any, data: bytes) -> Any:
        return replay_async(body, data)
