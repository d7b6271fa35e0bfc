"""A request over HTTP, its answer, and an operation as HTTP serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, fields
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


class Stream(Protocol):
    """An answer that is sent in parts as they come."""

    def parts(self) -> AsyncIterator[bytes]: ...

    def leave(self) -> None: ...

    async def close(self) -> None: ...


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A status, a body to encode (bytes are sent unchanged) and headers."""

    status: int
    body: Any = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = JSON_TYPE
    security: tuple[tuple[bytes, bytes], ...] = SECURITY
    stream: Stream | None = None


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
    """What the caller's key allows; ``None`` without a key."""
    actor: str = ""
    """The caller's key: its name and id, or its fingerprint."""
    limit_headers: Headers = ()
    operation: Route | None = None
    """``None`` before the gate."""
    policy: Policy = None  # type: ignore[assignment]
    """Read before the handler of an operation that is under a policy."""

    def note_change(self) -> None:
        """From now on the request may be applied; a deadline error says so."""
        if self.request.deadline is not None:
            self.request.deadline.may_be_applied = True

    async def read_policy(self) -> Policy:
        """Read the policy of the client in the path, once per request."""
        tenants, client = self.services.tenants, self.client
        self.policy = tenants.recall_policy(client) or await tenants.find_policy(*client)
        return self.policy

    @property
    def query(self) -> dict[str, str]:
        declared = () if self.operation is None else self.operation.query
        return self.request.query_once([parameter.name for parameter in declared])

    @property
    def expected_tag(self) -> str | None:
        return self.request.header(b"if-match")

    @property
    def caller(self) -> Client:
        if self.principal is None:  # pragma: no cover - refused at the gate
            raise LookupError("no client asks")
        return Client(self.principal.org_id, self.principal.app_id)

    @property
    def caller_name(self) -> str:
        return self.actor if self.principal is None else self.principal.client_id

    @property
    def address(self) -> str:
        """In a form that can be part of a key."""
        return sanitized(self.request.client_host)

    def by(self, reason: str | None = None) -> Attribution:
        return Attribution(self.actor, self.address, self.request_id, reason, self.authority)


class Reply(Protocol):
    """Takes the answer to a request that has no task."""

    may_be_applied: bool
    """Whether a deadline error says that it may be applied. True at first."""
    is_answered: bool
    """Also when its time is up."""

    def send(self, answer: Answer) -> None: ...

    def refuse_for_room(self) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def finish(self, work: Coroutine[Any, Any, Answer]) -> None:
        """Answer with the result of this work, or its problem, in a task."""
        ...


Handler: TypeAlias = Callable[[Call], Coroutine[Any, Any, Answer]]
BodyReader: TypeAlias = Callable[[Incoming, Any], Awaitable[Any]]
"""Receives a body of the operation's type."""
Beginning: TypeAlias = Callable[[Call, Reply], bool]
"""Starts a complete, admitted request without a task; returns whether it did. If not, it has done
nothing, and the handler serves the request."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Route(Operation[Any]):
    """An operation as HTTP serves it."""

    handler: Handler
    begin: Beginning | None = None
    begins_early: bool = False
    """Whether it may begin before its body has come."""
    read: BodyReader = read_json
    """Decides the media types that it takes."""
    reads_itself: bool = False
    """Whether the handler reads body and policy and calls `note_change`."""
    by_secret: bool = False
    """Whether the client's secret opens it, by HTTP Basic only."""
    oauth: bool = False
    limits_itself: bool = False
    """Because the handler authenticates the client itself."""
    bounds_itself: bool = False
    has_csv: bool = False
    """Whether a caller that accepts CSV gets the rows of its answer as CSV."""
    events: Mapping[str, Any] = field(default_factory=dict)
    """The types of the events of a stream by name."""

    @property
    def is_plain(self) -> bool:
        """Needs only a token, a policy and perhaps a JSON body."""
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

    *_, created = operation.statuses

    async def answer(call: Call) -> Answer:
        made = await case(call)
        if created != status and made.status == "created":
            return Answer(created, made, headers)
        return Answer(status, made, headers)

    return answer
