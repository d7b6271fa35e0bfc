"""Asks the service for operations of the table, and decodes its answers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, Self, TypeVar, cast

import msgspec

from pricekeeper.client.errors import ServiceProblem, UnavailableError
from pricekeeper.client.transport import Request, RequestPath, Transport, path_of
from pricekeeper.wire.operation import Operation

A = TypeVar("A")
_UNEXPECTED: Final = "UNEXPECTED_ANSWER"
_OK: Final = 200


class Asking:
    """What `Admin` and `Api` share: operations over a transport."""

    _transport: Transport

    async def _ask(
        self,
        operation: Operation[A],
        parameters: Mapping[str, str],
        *,
        body: Any = None,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        waits_for_limit: bool = False,
    ) -> A:
        """Ask for an operation. Raises `UnavailableError` if another server answered."""
        given = {name: text for name, text in (query or {}).items() if text is not None}
        request = Request(
            operation.method,
            expand(operation.path, parameters),
            given,
            body,
            repeatable=operation.is_repeatable,
            waits_for_limit=waits_for_limit,
            headers=headers or {},
            operation=operation,
            parameters=parameters,
        )
        answer = await self._transport.send(request)
        if operation.answer is NoneType:
            return cast("A", None)
        try:
            return msgspec.convert(answer, operation.answer)
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


def expand(path: str, parameters: Mapping[str, str]) -> RequestPath:
    """The path of an operation; see `path_of`."""
    return path_of(*(parameters[name] if name else text for text, name in _segments(path)))


@functools.cache
def _segments(path: str) -> tuple[tuple[str, str], ...]:
    """Each segment of the path, with the name of its parameter."""
    parts = path.removeprefix("/").split("/")
    return tuple((part, part.strip("{}") if part.startswith("{") else "") for part in parts)
