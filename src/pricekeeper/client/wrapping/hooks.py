"""Handlers of botocore's events, for blocking and for awaiting clients.

``before-call`` authorizes: an error there sends nothing. Each attempt has ``request-created``
(before and after signing) and ``response-received``; then ``after-call`` or ``after-call-error``. A
handler is a generator that yields what to wait for.

A denial is an exception of the AWS client and a `ServiceError`: spent budgets are
``ServiceQuotaExceededException``, rate limits ``ThrottlingException``, a freeze
``AccessDeniedException``. botocore does not retry them.
"""

from __future__ import annotations

import io
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from pricekeeper.bedrock import Operation
from pricekeeper.client.answers import Authorization
from pricekeeper.client.errors import (
    DeniedError,
    ForbiddenError,
    MissingError,
    QuotaSpentError,
    RateLimitedError,
    RejectedError,
    ServiceError,
)
from pricekeeper.client.keeper import AsyncPriceKeeper, PriceKeeper
from pricekeeper.client.wrapping.async_streams import (
    ClientStreams,
    meter_async_stream,
    replay_async,
)
from pricekeeper.client.wrapping.metered_call import Ask, MeteredCall, Options
from pricekeeper.client.wrapping.streams import meter_stream

SERVICE: Final = "bedrock-runtime"
_KEY: Final = "pricekeeper"
_SUCCESS: Final = 300
_COUNTED_BY_GATEWAY: Final = "x-pricekeeper-authorization-id"
"""Set on answers of our gateway, which has settled the call."""


Waiting: TypeAlias = Callable[[], Any]
"""A step to wait for: returns its result, or an awaitable of it."""
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
        """Register with a client's events; a second time changes nothing."""
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
        # After the handler that signs: without credentials nothing is sent.
        signed = f"request-created.{SERVICE}"
        handler = self._handler(self._signed)
        events.register_last(signed, handler, unique_id=f"pricekeeper-{signed}")

    @abstractmethod
    def _handler(self, step: Callable[..., Steps]) -> Callable[..., Any]: ...

    @abstractmethod
    def _meter(self, stream: Any, call: MeteredCall, service_tier: str | None) -> None: ...

    @abstractmethod
    def _replay(self, body: Any, data: bytes) -> Any: ...

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


QUOTA: Final = "ServiceQuotaExceededException"
THROTTLING: Final = "ThrottlingException"
ACCESS: Final = "AccessDeniedException"
UNAVAILABLE: Final = "ServiceUnavailableException"
_STATUS: Final = {
    QUOTA: HTTPStatus.BAD_REQUEST,
    THROTTLING: HTTPStatus.TOO_MANY_REQUESTS,
    ACCESS: HTTPStatus.FORBIDDEN,
    UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    "ResourceNotFoundException": HTTPStatus.NOT_FOUND,
    "ValidationException": HTTPStatus.BAD_REQUEST,
}
_CODES: Final[tuple[tuple[type[ServiceError], str], ...]] = (
    (RateLimitedError, THROTTLING),
    (QuotaSpentError, QUOTA),
    (ForbiddenError, ACCESS),
    (MissingError, "ResourceNotFoundException"),
    (RejectedError, "ValidationException"),
)
_KINDS_MAX: Final = 256


def code_of(error: ServiceError) -> str:
    """The best Bedrock error code; ``ServiceUnavailableException`` by default."""
    if isinstance(error, DeniedError):
        if any(one.kind == "FROZEN" for one in error.denied_by):
            return ACCESS
        return THROTTLING if error.by_speed else QUOTA
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNAVAILABLE)


def as_client_error(error: ServiceError, exceptions: Any, operation_name: str) -> Exception:
    """The error as one of the client's ``exceptions``."""
    code = code_of(error)
    theirs = exceptions.from_code(code)
    kind = _kind(code, theirs, type(error))  # type: ignore[arg-type]  # mypy: no class is hashable
    return kind(error, code, operation_name)


@lru_cache(maxsize=_KINDS_MAX)
def _kind(code: str, theirs: type[Any], ours: type[Any]) -> type[Exception]:
    return type(code, (theirs, ours), {"__init__": _begin, "__module__": __name__})


def _begin(self: Any, error: ServiceError, code: str, operation_name: str) -> None:
    # Not a parent's __init__: each would pass its arguments to the other.
    message = f"An error occurred ({code}) when calling the {operation_name} operation: {error}"
    Exception.__init__(self, message)
    self.operation_name = operation_name
    self.problem, self.code = error.problem, error.code
    self.response = {
        "Error": {"Code": code, "Message": str(error)},
        "ResponseMetadata": {
            "HTTPStatusCode": int(_STATUS[code]),
            "RequestId": error.problem.request_id,
            "HTTPHeaders": {},
            "RetryAttempts": 0,
        },
    }
