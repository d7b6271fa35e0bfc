"""What an operation of the API is: the one description that serves it and documents it.

Routes, authentication, parsing, rate limits and the OpenAPI document all come from the same
`Operation` values, so that none of them can say something the others do not do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from pricekeeper.authority import NO_ORG, Authority, Coverage, Role, only
from pricekeeper.bootstrap import Services
from pricekeeper.http.edge import JSON, read_json
from pricekeeper.http.encoding import EncodedAnswers
from pricekeeper.http.incoming import Incoming
from pricekeeper.http.limits import ApiLimits, Headers
from pricekeeper.http.metrics import Metrics
from pricekeeper.tenants import Client, Policy
from pricekeeper.tokens import Principal
from pricekeeper.values import AppId, OrgId


class Access(Enum):
    """Who may call an operation."""

    PUBLIC = "anybody"
    PROVISIONING = "whoever has a key with the operation's role, for the path's organisation"
    DEPLOYMENT = "the same, but with no organisation's own key"
    APP = "the app that the path names, with its access token"
    ORG = "the organisation that the path names, with its access token"
    ANY_CLIENT = "any client, with its access token"
    METRICS = "whoever has the metrics token"


BY_KEY: Final = (Access.PROVISIONING, Access.DEPLOYMENT)
"""What is opened by a key and by nothing else."""
_BY_TOKEN: Final = (Access.APP, Access.ORG, Access.ANY_CLIENT)
_UNDER_A_POLICY: Final = (Access.APP, Access.ORG)
SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
NO_STORE: Final = ((b"cache-control", b"no-store"),)
JSON_TYPE: Final = JSON.encode()
ORG: Final = "/api/v1/orgs/{org_id}"
APP: Final = f"{ORG}/apps/{{app_id}}"
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


class Call(msgspec.Struct):
    """One request: who it is from, and what it names."""

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
    operation: Operation | None = None
    """What is asked for, once it has come to the gate."""
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
    def coverage(self) -> Coverage:
        """The organisations that the caller may know of.

        Whatever lists organisations, or what belongs to several of them, shows these and no others.
        The gate has checked the one in the path.
        """
        if self.authority is not None:
            return self.authority.coverage
        return NO_ORG if self.principal is None else only(self.principal.org_id)

    @property
    def org_id(self) -> OrgId:
        """The organisation in the path, checked at the gate."""
        return OrgId(self.path["org_id"])

    @property
    def app_id(self) -> AppId:
        """The app in the path, checked at the gate."""
        return AppId(self.path["app_id"])

    @property
    def client(self) -> Client:
        """The client in the path: the app, or the organisation if there is none."""
        return Client(self.org_id, self.app_id if "app_id" in self.path else None)


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


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in the query string, for the documentation."""

    name: str
    description: str
    schema: Mapping[str, Any]
    required: bool = False


AFTER: Final = partial(Parameter, "after", "The `next` of the page before.")
"""Where a page begins; it takes the schema of that."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path."""

    method: str
    path: str
    name: str
    handler: Handler
    answers: Mapping[int, Any]
    """The type of the body by status, ``None`` for an answer without one."""
    access: Access
    body: Any = None
    """The wire type of the body; ``None`` if the operation takes none."""
    begin: Beginning | None = None
    """How most of its requests are served without a task of their own."""
    begins_early: bool = False
    """Whether it may be begun before its body has come."""
    read: BodyReader = read_json
    """How the body is received, which also says what it may come as; see `http.edge`."""
    reads_itself: bool = False
    """Whether the handler itself reads body and policy and calls `note_change`: something comes
    before the body."""
    by_secret: bool = False
    """Whether the client's secret opens it, by HTTP Basic and in no other way."""
    query: tuple[Parameter, ...] = ()
    oauth: bool = False
    """Whether errors look as RFC 6749 has them."""
    limit: str | None = None
    """Which of the API's own rate limits applies."""
    limits_itself: bool = False
    """Whether the handler applies it, because it authenticates the client by its secret."""
    variant_limit: str | None = None
    """The rate limit that the handler charges for the operation's second mode.

    That is ``force_check``, or grant type ``refresh_token``.
    """
    role: Role | None = None
    """The role that a key needs for it. ``None``: no key opens it. What only keys open has to say
    its role; where a client's token opens it, an administrator's key of this role does as well."""
    has_csv: bool = False
    """Whether whoever accepts CSV gets the rows of its answer so."""
    tag: str = "runtime"
    bounds_itself: bool = False
    """Whether it answers in time by itself, so that no deadline is needed."""
    events: Mapping[str, Any] = field(default_factory=dict)
    """Of a stream of events: what each tells, by its name."""
    problems: tuple[int, ...] = ()
    """Further statuses that are answered with a problem, beyond those that access implies."""
    says: str = ""
    """Its summary, if its handler serves several; else the handler's docstring is."""

    def __post_init__(self) -> None:
        if (self.access in BY_KEY and self.role is None) or (
            self.access not in (*BY_KEY, *_BY_TOKEN) and self.role is not None
        ):
            raise TypeError(f"{self.name}: which role does a key need for it?")

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return self.says or (self.handler.__doc__ or "").strip()

    @property
    def is_plain(self) -> bool:
        """Whether its handler needs no more than a token, a policy and perhaps a JSON body."""
        reads_json = self.read is read_json and not self.reads_itself
        return self.access is Access.APP and reads_json and not self.bounds_itself

    async def perform(self, call: Call) -> Answer:
        """Read the body and the policy that the handler needs, then let it do its work.

        The policy comes last: a freeze holds for whoever sends a body slowly, too.
        """
        if self.reads_itself:
            return await self.handler(call)
        if self.body is not None:
            call.body = await self.read(call.request, self.body)
        if self.access in _UNDER_A_POLICY:
            await call.read_policy()
        if self.method != "GET":
            call.note_change()
        return await self.handler(call)
