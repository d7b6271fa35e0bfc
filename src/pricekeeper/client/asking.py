"""Asks the service for operations of the table, and decodes its answers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import NoneType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeAlias, TypeVar, cast

import msgspec

from pricekeeper.client.errors import ServiceProblem, UnavailableError
from pricekeeper.client.transport import Request, RequestPath, Transport, path_of
from pricekeeper.errors import InvalidValueError
from pricekeeper.values import parse_app_id, parse_org_id
from pricekeeper.wire.operation import Operation, Pair

A = TypeVar("A")
E = TypeVar("E")
P = ParamSpec("P")
Given: TypeAlias = Mapping[str, Any]
"""Values by name; the operation says whether one is of the path, the query or the body."""
Method: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, A]]
PAGES_MAX: Final = 10_000
"""Bounds the loop over pages; longer lists are cut."""
_UNEXPECTED: Final = "UNEXPECTED_ANSWER"
_OK: Final = 200
_PARSERS: Final[Mapping[str, Callable[[str], str]]] = {
    "org_id": parse_org_id,
    "app_id": parse_app_id,
}


class Asking:
    """What `Admin` and `Api` share: operations over a transport."""

    _transport: Transport

    def __init_subclass__(cls) -> None:
        """Name the methods that `asks` and `lists` have made."""
        for name, method in vars(cls).items():
            if hasattr(method, "__signature__"):
                method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"

    def _own(self) -> dict[str, str]:
        """The parameters of paths that name the client itself."""
        return {}

    async def ask(
        self,
        stated: Operation[A] | Pair[A, A],
        given: Given | None = None,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        waits_for_limit: bool = False,
    ) -> A:
        """Ask for an operation; of a pair, the narrow one if its path is given.

        ``body`` is the whole body, instead of its given fields. Raises `UnavailableError` if
        another server answered.
        """
        values = {name: value for name, value in (given or {}).items() if value is not None}
        named = {**self._own(), **values}
        if isinstance(stated, Pair):
            stated = stated.narrow if _names(stated.narrow.path) <= named.keys() else stated.wide
        parameters = _parameters(stated.path, named)
        rest = {name: value for name, value in values.items() if name not in parameters}
        query = {one.name: rest.pop(one.name) for one in stated.query if one.name in rest}
        if body is None and stated.body is not None:
            body = rest
        request = Request(
            stated.method,
            _expand(stated.path, parameters),
            query,
            body,
            repeatable=stated.is_repeatable,
            waits_for_limit=waits_for_limit,
            headers=headers or {},
            operation=stated,
            parameters=parameters,
        )
        answer = await self._transport.send(request)
        if stated.answer is NoneType:
            return cast("A", None)
        try:
            return msgspec.convert(answer, stated.answer)
        except msgspec.ValidationError as error:
            detail = f"the answer is not one of the service, or of another version of it: {error}"
            raise UnavailableError(ServiceProblem(_OK, _UNEXPECTED, detail)) from error

    async def close(self) -> None:
        """End the session, if any, and close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def asks(stated: Operation[A] | Pair[A, A], arguments: Callable[P, Given]) -> Method[P, A]:
    """A client's method for an operation, which takes the parameters of ``arguments``."""

    async def ask(self: Asking, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return await self.ask(stated, arguments(*args, **kwargs))

    _describe(ask, arguments, stated.wide if isinstance(stated, Pair) else stated)
    return ask


def lists(
    operation: Operation[A], entries_of: Callable[[A], list[E]], arguments: Callable[P, Given]
) -> Method[P, list[E]]:
    """As `asks`, for the entries of every page."""

    async def ask(self: Asking, /, *args: P.args, **kwargs: P.kwargs) -> list[E]:
        given = arguments(*args, **kwargs)

        def read(after: str | None) -> Awaitable[A]:
            return self.ask(operation, {**given, "after": after})

        return await read_every_page(read, entries_of)

    _describe(ask, arguments, operation)
    return ask


def _describe(
    ask: Callable[..., Any], arguments: Callable[..., Given], operation: Operation[Any]
) -> None:
    """Give a method its documentation, and its signature for ``help`` and for mocks."""
    own = inspect.signature(arguments)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    ask.__doc__ = operation.summary
    ask.__signature__ = inspect.Signature([first, *own.parameters.values()])  # type: ignore[attr-defined]


async def read_every_page(
    read: Callable[[str | None], Awaitable[Any]], entries_of: Callable[[Any], list[E]]
) -> list[E]:
    """The entries of all pages; ``read`` reads the page after that ``next``."""
    found: list[E] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = await read(after)
        found += entries_of(page)
        after = page.get("next")
        if after is None:
            break
    return found


def nothing() -> Given:
    """The arguments of an operation without any."""
    return {}


def _parameters(path: str, named: Given) -> dict[str, str]:
    names = _names(path)
    if "app_id" in names and "app_id" not in named:
        raise InvalidValueError("app_id", "is needed: use of_app(), or the app's credentials")
    return {name: _PARSERS.get(name, str)(named[name]) for name in names}


def _expand(path: str, parameters: Mapping[str, str]) -> RequestPath:
    """The path of an operation; see `path_of`."""
    return path_of(*(parameters[name] if name else text for text, name in _segments(path)))


@functools.cache
def _names(path: str) -> frozenset[str]:
    return frozenset(name for _, name in _segments(path) if name)


@functools.cache
def _segments(path: str) -> tuple[tuple[str, str], ...]:
    """Each segment of the path, with the name of its parameter."""
    parts = path.removeprefix("/").split("/")
    return tuple((part, part.strip("{}") if part.startswith("{") else "") for part in parts)
