"""States entries of the table of operations: one function for each kind of caller.

``line`` is the method and path of an operation; ``more`` are further fields of `Operation`.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, TypeVar

from pricekeeper.authority import Role
from pricekeeper.wire.operation import APP, ORG, Access, Operation, Pair

A = TypeVar("A")


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
    """State what an app asks; it may be sent again: usage, leases and grants have their ids."""
    return state(Access.APP, name, line, answer, summary, **{"is_repeatable": True, **more})


def of_app_or_org(name: str, line: str, answer: type[A], summary: str, **more: Any) -> Pair[A, A]:
    """State what an app, or an organisation for all of its apps, may read of itself."""
    org, app = ("org", "app") if name.startswith("{}") else ("Org", "App")
    more = {"role": Role.VIEWER, **more}
    return Pair(
        state(Access.ORG, name.format(org), line.format(ORG), answer, summary, **more),
        state(Access.APP, name.format(app), line.format(APP), answer, summary, **more),
    )


def of_any_client(name: str, line: str, answer: type[A], summary: str, **more: Any) -> Operation[A]:
    """State a report that shows any client, or a VIEWER's key, what it covers."""
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
    """State what a key of that role allows, but not an organisation's own key."""
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
    """State an operation that needs no credentials, or the client's secret."""
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
