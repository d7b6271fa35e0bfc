"""What an operation of the API is: the one description that serves it and documents it.

Routes, authentication, parsing, rate limits and the OpenAPI document all come from the same
`Operation` values, so that none of them can say something the others do not do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from types import NoneType
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from pricekeeper.authority import Attribution, Authority
from pricekeeper.bootstrap import Services
from pricekeeper.http.edge import JSON, read_json
from pricekeeper.http.encoding import EncodedAnswers
from pricekeeper.http.incoming import Incoming
from pricekeeper.http.limits import ApiLimits, Headers, sanitized
from pricekeeper.http.metrics import Metrics
from pricekeeper.tenants import Client, Policy
from pricekeeper.tokens import Principal
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.table import UseCase
from pricekeeper.wire.operation import UNDER_A_POLICY, Access, Operation

SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
NO_STORE: Final = ((b"cache-control", b"no-store"),)
JSON_TYPE: Final = JSON.encode()
_encode: Final = msgspec.json.Encoder().encode


class Stream(Protocol):
    """An answer whose parts come when they come."""

    def parts(self) -> AsyncIterator[bytes]:
        """Its parts, to be sent one by one."""
        ...

    def leave(self) -> None:
        """Let it end: nobody reads it any more."""
        ...

    async def close(self) -> None:
        """Give back what it holds, after its last part."""
        ...


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What goes back: a status, a value to encode (bytes go as they are) and headers."""

    status: int
    body: Any = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = JSON_TYPE
    security: tuple[tuple[bytes, bytes], ...] = SECURITY
    stream: Stream | None = None
    """What it goes on with, part by part, in place of a body."""

    def encoded(self) -> Answer:
        """The same, with bytes for a body if there is one."""
        if self.body is None or isinstance(self.body, bytes):
            return self
        return msgspec.structs.replace(self, body=_encode(self.body))


def encode_body(answer: Answer) -> bytes | None:
    """The body of an answer as it goes out, if it has one."""
    body = answer.body
    return body if body is None or type(body) is bytes else _encode(body)


class Call(Ask, msgspec.Struct):
    """One request over HTTP."""

    services: Services
    api_limits: ApiLimits
    metrics: Metrics
    encoded: EncodedAnswers
    request: Incoming
    request_id: str
    path: Mapping[str, str]
    principal: Principal | None = None
    body: Any = None
    authority: Authority | None = None
    """What the key allows that came; ``None`` if none came, or none was needed."""
    actor: str = ""
    """Which key came: by its name and id, or by its fingerprint if it has none."""
    limit_headers: Headers = ()
    """What the caller is told of its rate limit."""
    operation: Route | None = None
    """What is asked for, once the request is at the gate."""
    _policy: Policy | None = None

    def note_change(self) -> None:
        """Note that the request may be applied from here on, for when its time is up."""
        if self.request.deadline is not None:
            self.request.deadline.may_be_applied = True

    async def read_policy(self) -> Policy:
        """Read the policy of the client that the path names, once for the whole request."""
        tenants, client = self.services.tenants, self.client
        self._policy = tenants.recall_policy(client) or await tenants.find_policy(*client)
        return self._policy

    def set_policy(self, policy: Policy) -> None:
        """Set the policy of the client that the path names, which was in memory."""
        self._policy = policy

    @property
    def policy(self) -> Policy:
        """The policy that was read before the handler began."""
        if self._policy is None:  # pragma: no cover - the operation's access sees to it
            raise LookupError("this operation is declared without a policy")
        return self._policy

    @property
    def query(self) -> dict[str, str]:
        """The query by name; raises if what the operation declares comes more than once."""
        declared = () if self.operation is None else self.operation.query
        return self.request.query_once([parameter.name for parameter in declared])

    @property
    def expected_tag(self) -> str | None:
        return self.request.header(b"if-match")

    @property
    def caller(self) -> Client:
        if self.principal is None:  # pragma: no cover - the gate has let nobody else in
            raise LookupError("no client asks")
        return Client(self.principal.org_id, self.principal.app_id)

    @property
    def caller_name(self) -> str:
        """The caller's client id, or the name of its key."""
        return self.actor if self.principal is None else self.principal.client_id

    @property
    def address(self) -> str:
        """Where the request came from, in a form that can be part of a key."""
        return sanitized(self.request.client_host)

    def by(self, reason: str | None = None) -> Attribution:
        return Attribution(self.actor, self.address, self.request_id, reason, self.authority)


class Reply(Protocol):
    """Where the answer to a request goes for which no task waits."""

    may_be_applied: bool
    """Whether, if its time is up, the answer says it may be applied. True at first."""
    is_answered: bool
    """Whether it has its answer: because its time was up, if nobody has given one."""

    def send(self, answer: Answer) -> None:
        """Answer the request."""
        ...

    def refuse_for_room(self) -> None:
        """Answer that there is no room for it now."""
        ...

    def fail(self, error: Exception) -> None:
        """Answer it with the problem that tells the error."""
        ...

    def finish(self, work: Coroutine[Any, Any, Answer]) -> None:
        """Answer it with what that comes to, in a task: also with the problem that it raises."""
        ...


Handler: TypeAlias = Callable[[Call], Coroutine[Any, Any, Answer]]
BodyReader: TypeAlias = Callable[[Incoming, Any], Awaitable[Any]]
"""Receives a body of the type that an operation declares."""
Beginning: TypeAlias = Callable[[Call, Reply], bool]
"""Begins a request that is whole and admitted, to answer it later; returns whether it did. What has
to be awaited first, or is going to be refused, is left to the handler, with nothing done of it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Route(Operation[Any]):
    """An operation as HTTP serves it."""

    handler: Handler
    begin: Beginning | None = None
    """Serves most of its requests without a task."""
    begins_early: bool = False
    """Whether it may begin before its body has come."""
    read: BodyReader = read_json
    """Receives the body, and so decides the media types that it takes."""
    reads_itself: bool = False
    """Whether the handler itself reads body and policy and calls `note_change`."""
    by_secret: bool = False
    """Whether the client's secret opens it, by HTTP Basic only."""
    oauth: bool = False
    """Whether errors have the form of RFC 6749."""
    limits_itself: bool = False
    """Whether the handler charges the rate limit, because it authenticates the client itself."""
    bounds_itself: bool = False
    """Whether it needs no deadline."""
    has_csv: bool = False
    """Whether a caller that accepts CSV gets the rows of its answer as CSV."""
    events: Mapping[str, Any] = field(default_factory=dict)
    """The types of the events of a stream by name."""

    @property
    def is_plain(self) -> bool:
        """Whether its handler needs only a token, a policy and perhaps a JSON body."""
        reads_json = self.read is read_json and not self.reads_itself
        return self.access is Access.APP and reads_json and not self.bounds_itself

    async def perform(self, call: Call) -> Answer:
        """Read the body and the policy that the handler needs, then run it.

        The policy is read last: a freeze must also stop a caller that sends its body slowly.
        """
        if self.reads_itself:
            return await self.handler(call)
        if self.body is not None:
            call.body = await self.read(call.request, self.body)
        if self.access in UNDER_A_POLICY:
            await call.read_policy()
        if self.method != "GET":
            call.note_change()
        return await self.handler(call)


def route(operation: Operation[Any], handler: Handler, **more: Any) -> Route:
    """Serve an operation by a handler; ``more`` are fields of `Route`."""
    stated = {one.name: getattr(operation, one.name) for one in fields(Operation)}
    return Route(**stated, handler=handler, **more)


def answer_with(operation: Operation[Any], case: UseCase) -> Handler:
    """A handler that answers with the result of a use case."""
    status, headers = operation.statuses[0], NO_STORE if operation.is_private else ()
    if operation.answer is NoneType:

        async def answer_nothing(call: Call) -> Answer:
            await case(call)
            return Answer(status, None, headers)

        return answer_nothing

    creates = HTTPStatus.CREATED in operation.statuses[1:]

    async def answer(call: Call) -> Answer:
        made = await case(call)
        if creates and made.status == "created":
            return Answer(HTTPStatus.CREATED, made, headers)
        return Answer(status, made, headers)

    return answer
