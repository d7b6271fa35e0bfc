"""An operation of the API: one description for service, documentation and clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import NoneType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pricekeeper.authority import Role

A = TypeVar("A")
B = TypeVar("B")
ORG: Final = "/api/v1/orgs/{org_id}"
APP: Final = f"{ORG}/apps/{{app_id}}"


class Access(Enum):
    """Who may call an operation."""

    PUBLIC = "anyone"
    PROVISIONING = "a key with the operation's role that covers the organisation in the path"
    DEPLOYMENT = "the same, but not an organisation's own key"
    APP = "the app in the path, with its access token"
    ORG = "the organisation in the path, with its access token"
    ANY_CLIENT = "any client, with its access token"
    METRICS = "the metrics token"


BY_KEY: Final = (Access.PROVISIONING, Access.DEPLOYMENT)
BY_TOKEN: Final = (Access.APP, Access.ORG, Access.ANY_CLIENT)
UNDER_A_POLICY: Final = (Access.APP, Access.ORG)
"""The policy of the client in the path is read before the use case runs."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in the query string."""

    name: str
    description: str
    schema: Mapping[str, Any]
    required: bool = False


AFTER: Final = partial(Parameter, "after", "The `next` of the previous page.")
"""Call it with the schema."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation(Generic[A]):
    """One method on one path."""

    name: str
    method: str
    path: str
    answer: type[A]
    """Of a success; `NoneType` for no body, `str` for a text."""
    access: Access
    summary: str
    statuses: tuple[int, ...] = (200,)
    """Of a success. With 201 beside 200, the answer's ``status`` decides: created or updated."""
    other_answers: Mapping[int, Any] = field(default_factory=dict)
    body: Any = None
    """The wire type; ``None`` if the operation takes no body."""
    query: tuple[Parameter, ...] = ()
    role: Role | None = None
    """The role that a key needs; ``None``: no key opens it."""
    limit: str | None = None
    variant_limit: str | None = None
    """The rate limit of ``force_check`` or grant type ``refresh_token``."""
    tag: str = "runtime"
    problems: tuple[int, ...] = ()
    is_private: bool = False
    """Whether no cache may keep its answer."""
    is_repeatable: bool = False
    """Whether a client may send it again after a lost reply."""
    media_type: str | None = None

    def __post_init__(self) -> None:
        needs_role = self.access in BY_KEY
        if (needs_role and self.role is None) or (
            self.role is not None and not needs_role and self.access not in BY_TOKEN
        ):
            raise TypeError(f"{self.name}: state the role that a key needs")

    @property
    def answers(self) -> dict[int, Any]:
        """The type of the body by status; of no JSON the media type, of no body ``None``."""
        answer: Any = self.media_type or self.answer
        made = dict.fromkeys(self.statuses, None if answer is NoneType else answer)
        return {**made, **self.other_answers}


class Pair(NamedTuple, Generic[A, B]):
    """The same operation of two owners: organisation and app, or deployment and organisation."""

    wide: Operation[A]
    narrow: Operation[B]


def names_of(*stated: Operation[Any] | Pair[Any, Any]) -> frozenset[str]:
    """The names of entries of the table; a pair has two."""
    pairs = (one if isinstance(one, Pair) else (one,) for one in stated)
    return frozenset(operation.name for pair in pairs for operation in pair)


def by_name(table: Mapping[Operation[Any] | Pair[Any, Any], B]) -> dict[str, B]:
    """The values of a mapping by the names of its operations."""
    return {name: value for stated, value in table.items() for name in names_of(stated)}


# Entries of the table: `line` is a method and a path, `more` are fields of `Operation`.


def state(
    access: Access, name: str, line: str, answer: type[A], summary: str, **more: Any
) -> Operation[A]:
    """State an operation."""
    method, path = line.split()
    more = {"is_repeatable": method == "GET", **more}
    if answer is NoneType and "statuses" not in more:
        more["statuses"] = (204,)
    return Operation(name, method, path, answer, access, summary, **more)


def of_app(name: str, line: str, answer: type[A], summary: str, **more: Any) -> Operation[A]:
    """State what an app asks; it may be sent again: usage, leases and grants have ids."""
    return state(Access.APP, name, line, answer, summary, **{"is_repeatable": True, **more})


def of_app_or_org(name: str, line: str, answer: type[A], summary: str, **more: Any) -> Pair[A, A]:
    """State what an app, or an organisation for its apps, may read of itself."""
    org, app = ("org", "app") if name.startswith("{}") else ("Org", "App")
    more = {"role": Role.VIEWER, **more}
    return Pair(
        state(Access.ORG, name.format(org), line.format(ORG), answer, summary, **more),
        state(Access.APP, name.format(app), line.format(APP), answer, summary, **more),
    )


def of_any_client(name: str, line: str, answer: type[A], summary: str, **more: Any) -> Operation[A]:
    """State a report on what any client, or a VIEWER's key, covers."""
    more = {"role": Role.VIEWER, "is_private": True, **more}
    return state(Access.ANY_CLIENT, name, line, answer, summary, **more)


def by_key(
    role: Role, name: str, line: str, answer: type[A], summary: str, **more: Any
) -> Operation[A]:
    """State what a key of that role allows in an organisation."""
    more = {"tag": "provisioning", "limit": "provisioning", "role": role, **more}
    return state(Access.PROVISIONING, name, line, answer, summary, **more)


def by_deployment_key(
    role: Role, name: str, line: str, answer: type[A], summary: str, **more: Any
) -> Operation[A]:
    """As `by_key`, but not for an organisation's own key."""
    more = {"tag": "provisioning", "limit": "provisioning", "role": role, **more}
    return state(Access.DEPLOYMENT, name, line, answer, summary, **more)


def of_client_by_key(
    role: Role, name: str, line: str, answer: type[A], summary: str, **more: Any
) -> Pair[A, A]:
    """State what a key allows on an organisation and on an app."""
    return Pair(
        by_key(role, name.format("Org"), line.format(ORG), answer, summary, **more),
        by_key(role, name.format("App"), line.format(APP), answer, summary, **more),
    )


def containing(
    role: Role, name: str, line: str, answer: type[A], summary: str, **more: Any
) -> Pair[A, A]:
    """State what an administrator does about a leaked secret."""
    return of_client_by_key(role, name, line, answer, summary, **{"tag": "containment", **more})


def public(name: str, line: str, answer: type[A], summary: str, **more: Any) -> Operation[A]:
    """State an operation without credentials, or with the client's secret."""
    return state(Access.PUBLIC, name, line, answer, summary, **more)


def of_channel(
    role: Role, name: str, line: str, answer: type[A], summary: str, **more: Any
) -> Pair[A, A]:
    """State what a key allows on a channel of the deployment and of an organisation."""
    more = {"tag": "alerts", "is_private": True, "problems": (404,), **more}
    wide, narrow = "/api/v1/alert-channels", f"{ORG}/alert-channels"
    return Pair(
        by_deployment_key(
            role, name.format("Deployment"), line.format(wide), answer, summary, **more
        ),
        by_key(role, name.format("Org"), line.format(narrow), answer, summary, **more),
    )
