"""What happens at each of botocore's events, for clients that wait and for those that await.

The order is botocore's: ``before-call``, then for each attempt ``request-created`` and
``response-received``, then ``after-call`` or ``after-call-error``. The authorization is asked for
in ``before-call``, when nothing can be wrong with the parameters any more; raising there sends
nothing.

What is done is written once, as steps: a generator that yields what has to be waited for. The two
kinds of hooks differ in how they wait.
"""

from __future__ import annotations

import io
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pricekeeper.bedrock import Operation
from pricekeeper.client.answers import Authorization
from pricekeeper.client.errors import ServiceError
from pricekeeper.client.fields import AuthorizeFields
from pricekeeper.client.keeper import AsyncPriceKeeper, Keeper, PriceKeeper
from pricekeeper.client.wrapping.async_streams import meter_async_stream, replay_async
from pricekeeper.client.wrapping.denials import as_client_error
from pricekeeper.client.wrapping.metered_call import Ask, MeteredCall, Options
from pricekeeper.client.wrapping.streams import meter_stream

SERVICE: Final = "bedrock-runtime"
_KEY: Final = "pricekeeper"
_SUCCESS: Final = 300


@dataclass(frozen=True, slots=True)
class Authorize:
    """Wait for an authorization."""

    asked: Ask
    more: AuthorizeFields


@dataclass(frozen=True, slots=True)
class Read:
    """Wait for all bytes of a reply."""

    body: Any


Steps: TypeAlias = Generator[Authorize | Read, Any, None]


class Hooks:
    """The handlers of one client's events."""

    def __init__(self, client: Any, keeper: Keeper, options: Options) -> None:
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
                events.register(
                    name, self._handler(step, operation), unique_id=f"pricekeeper-{name}"
                )

    @abstractmethod
    def _handler(self, step: Callable[..., Steps], operation: Operation) -> Callable[..., Any]:
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
        call = MeteredCall(self._keeper.engine, self._options, operation, params)
        try:
            authorization: Authorization = yield Authorize(*call.ask())
            call.grant(authorization, params)
        except ServiceError as error:
            raise self._client_error(error, operation) from error
        context[_KEY] = call

    def _created(self, operation: Operation, request: Any, **_: object) -> Steps:
        call: MeteredCall | None = request.context.get(_KEY)
        if call is None:
            return
        if call.needs_authorization:
            try:
                call.grant_again((yield Authorize(*call.ask_again())))
            except ServiceError as error:
                raise self._client_error(error, operation) from error
        call.note_attempt()

    def _received(
        self, _: Operation, context: Any, parsed_response: Any, exception: Any, **__: object
    ) -> Steps:
        call: MeteredCall | None = context.get(_KEY)
        if call is not None:
            call.note_outcome(parsed_response, exception)
        yield from ()

    def _after(
        self, operation: Operation, http_response: Any, parsed: Any, context: Any, **_: object
    ) -> Steps:
        call: MeteredCall | None = context.pop(_KEY, None)
        if call is None:
            return
        if http_response.status_code >= _SUCCESS:
            call.finish_refused("Bedrock refused the call")
        elif operation is Operation.CONVERSE:
            call.finish_converse(parsed)
        elif operation is Operation.INVOKE:
            try:
                data: bytes = yield Read(parsed["body"])
            except BaseException:
                call.finish_stream(None)
                raise
            call.finish_invoke(data, http_response.headers)
            parsed["body"] = self._replay(parsed["body"], data)
        else:
            tier = parsed.get("serviceTier")
            stream = parsed["stream" if operation.is_converse else "body"]
            self._meter(stream, call, tier if isinstance(tier, str) else None)

    def _failed(self, _: Operation, context: Any, **__: object) -> Steps:
        call: MeteredCall | None = context.pop(_KEY, None)
        if call is not None:  # what may be billed was left behind by `note_outcome`
            call.finish_refused("the call was not made")
        yield from ()

    def _client_error(self, error: ServiceError, operation: Operation) -> Exception:
        client = self._client()
        if client is None:
            return error
        return as_client_error(error, client.exceptions, operation.api_name)


class BlockingHooks(Hooks):
    """For boto3 and botocore."""

    _keeper: PriceKeeper

    def _handler(self, step: Callable[..., Steps], operation: Operation) -> Callable[..., Any]:
        def handler(**kwargs: Any) -> None:
            steps = step(operation, **kwargs)
            result: Any = None
            take = steps.send
            while True:  # ends with the steps
                try:
                    wanted = take(result)
                except StopIteration:
                    return
                try:
                    result, take = self._wait(wanted), steps.send
                except BaseException as error:  # noqa: BLE001 - the steps decide
                    result, take = error, steps.throw

        return handler

    def _wait(self, wanted: Authorize | Read) -> Any:
        if isinstance(wanted, Read):
            return wanted.body.read()
        return self._keeper.authorize(**wanted.asked, **wanted.more)

    def _meter(self, stream: Any, call: MeteredCall, service_tier: str | None) -> None:
        meter_stream(stream, call, call.stream_usage(service_tier))

    def _replay(self, body: Any, data: bytes) -> Any:
        from botocore.response import StreamingBody  # noqa: PLC0415 - loaded with the client

        body.close()
        return StreamingBody(io.BytesIO(data), len(data))


class AwaitingHooks(Hooks):
    """For aiobotocore and aioboto3, which await their handlers."""

    _keeper: AsyncPriceKeeper

    def _handler(self, step: Callable[..., Steps], operation: Operation) -> Callable[..., Any]:
        async def handler(**kwargs: Any) -> None:
            steps = step(operation, **kwargs)
            result: Any = None
            take = steps.send
            while True:  # ends with the steps
                try:
                    wanted = take(result)
                except StopIteration:
                    return
                try:
                    result, take = await self._wait(wanted), steps.send
                except BaseException as error:  # noqa: BLE001 - the steps decide
                    result, take = error, steps.throw

        return handler

    async def _wait(self, wanted: Authorize | Read) -> Any:
        if isinstance(wanted, Read):
            return await wanted.body.read()
        return await self._keeper.authorize(**wanted.asked, **wanted.more)

    def _meter(self, stream: Any, call: MeteredCall, service_tier: str | None) -> None:
        meter_async_stream(stream, call, call.stream_usage(service_tier))

    def _replay(self, body: Any, data: bytes) -> Any:
        return replay_async(body, data)
