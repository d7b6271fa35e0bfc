"""The client of an app, for programs with and without an event loop.

Each method is declared where it is implemented, in the engine.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, cast

from pricekeeper.client.api import Api
from pricekeeper.client.calls import ModelCall
from pricekeeper.client.configuration import KeeperSettings, OnUnavailable
from pricekeeper.client.engine import Engine
from pricekeeper.client.errors import NoAnswerError
from pricekeeper.client.fields import AuthorizeFields
from pricekeeper.clock import Clock
from pricekeeper.errors import InvalidValueError

P = ParamSpec("P")
R = TypeVar("R")
GRACE_SECS: Final = 5
"""How much longer than the deadlines a caller waits."""
TURNS: Final = 8
"""Turns of the loop before `close`: a dropped async generator needs two; a stream nests three."""


class Keeper:
    """The base of both keepers: one engine per process."""

    _awaits: ClassVar[bool]

    def __init__(
        self,
        url: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        *,
        app_id: str | None = None,
        deadline_ms: int | None = None,
        on_unavailable: OnUnavailable | None = None,
        allowance_usd_micros: int | None = None,
        spool_dir: str | os.PathLike[str] | None = None,
        max_output_tokens: int | None = None,
        unavailable_models: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.configuration = KeeperSettings.read(
            {
                "url": url,
                "client_id": client_id,
                "client_secret": client_secret,
                "app_id": app_id,
                "deadline_ms": deadline_ms,
                "on_unavailable": on_unavailable,
                "allowance_usd_micros": allowance_usd_micros,
                "spool_dir": None if spool_dir is None else os.fspath(spool_dir),
                "max_output_tokens": max_output_tokens,
                "unavailable_models": unavailable_models,
            }
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._is_closed = False
        self._beside: Keeper | None = None
        self._closing: set[Callable[[float], None]] = set()
        _keepers.add(self)

    @classmethod
    def beside(cls, other: Keeper) -> Self:
        """A keeper of the other kind on the engine of ``other``."""
        made = cls.__new__(cls)
        made.configuration = other.configuration
        made._beside = other._beside or other  # noqa: SLF001 - its own
        made._engine = None  # noqa: SLF001
        return made

    @property
    def engine(self) -> Engine:
        """The engine of this process, started by the first use."""
        if self._beside is not None:
            return self._beside.engine
        engine = self._engine
        if engine is not None and not self._is_closed:
            return engine
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._engine is None:
                self._engine = Engine(self.configuration, self._clock)
            return self._engine

    @property
    def settling_engine(self) -> Engine:
        """The engine for a call in progress, even after `close`: its usage is not lost."""
        of = self._beside or self
        return of._engine if of._engine is not None else of.engine  # noqa: SLF001 - of its own kind

    @property
    def is_closed(self) -> bool:
        return self._is_closed if self._beside is None else self._beside.is_closed

    @property
    def untold(self) -> int:
        """The number of entries that wait to be reported."""
        engine = (self._beside or self)._engine  # noqa: SLF001 - of its own kind
        return 0 if engine is None else len(engine.spool)

    def before_close(self, wait: Callable[[float], None]) -> None:
        """Call ``wait`` at the end, with the seconds that it may take."""
        (self._beside or self)._closing.add(wait)  # noqa: SLF001 - of its own kind

    def call(
        self,
        input_tokens: int,
        max_output_tokens: int | None = None,
        *,
        model: str = "auto",
        **more: Unpack[AuthorizeFields],
    ) -> ModelCall:
        """A model call inside its budget, for ``with`` or ``async with``."""
        most = max_output_tokens or self.configuration.max_output_tokens
        authorize = cast("Any", self).authorize  # each face has its own
        return ModelCall(
            lambda: self.settling_engine,
            partial(authorize, input_tokens, most, model=model, **more),
            input_tokens,
            more.get("tags", {}),
            awaits=self._awaits,
        )

    def _close(self) -> None:
        if self._beside is not None:
            return
        with self._lock:
            engine = None if self._is_closed else self._engine
            self._is_closed = True
        if engine is not None:
            for wait in list(self._closing):
                wait(self.configuration.deadline_ms / 1000)
            engine.close()

    def _restart(self) -> None:
        """Start over in a forked child: threads, connections and locks are the parent's."""
        engine, self._engine = self._engine, None
        self._lock = threading.Lock()
        if engine is not None:
            engine.abandon()

    @property
    def _patience_secs(self) -> float:
        return self.configuration.deadline_ms * 2 / 1000 + GRACE_SECS

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.configuration.url!r}, {self.configuration.client_id})"


def _closed() -> InvalidValueError:
    return InvalidValueError("keeper", "is closed")


def _submit(engine: Engine, work: Coroutine[Any, Any, R]) -> Future[R]:
    try:
        return engine.submit(work)
    except RuntimeError:  # it was closed meanwhile
        raise _closed() from None


def _give_up(engine: Engine, future: Future[Any]) -> None:
    """Cancel work whose caller has left; its grant is returned."""
    if not future.cancel() and future.exception() is None:
        engine.take_back(future.result())


def _blocking(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[PriceKeeper, P], R]:
    @wraps(method)
    def call(self: PriceKeeper, /, *args: P.args, **kwargs: P.kwargs) -> R:
        engine = self.engine
        future = _submit(engine, method(engine, *args, **kwargs))
        try:
            return future.result(self._patience_secs)
        except BaseException as error:
            if future.cancelled():
                raise _closed() from None
            if not future.done() or future.exception() is not error:
                _give_up(engine, future)  # not the work's own error: KeyboardInterrupt, for example
            if isinstance(error, TimeoutError):
                given = self.configuration
                raise NoAnswerError(given.url, given.deadline_ms) from None
            raise

    return call


def _awaiting(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[AsyncPriceKeeper, P], Coroutine[Any, Any, R]]:
    @wraps(method)
    async def call(self: AsyncPriceKeeper, /, *args: P.args, **kwargs: P.kwargs) -> R:
        engine = self.engine
        future = _submit(engine, method(engine, *args, **kwargs))
        try:
            async with asyncio.timeout(self._patience_secs):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            _give_up(engine, future)
            given = self.configuration
            raise NoAnswerError(given.url, given.deadline_ms) from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if future.cancelled() and caller is not None and not caller.cancelling():
                raise _closed() from None
            _give_up(engine, future)
            raise

    return call


def _asking(
    method: Callable[Concatenate[Api, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Engine, P], Coroutine[Any, Any, R]]:
    """Make an engine's method of an operation, within the deadline."""

    @wraps(method)
    async def call(engine: Engine, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await engine.ask(method(engine.api, *args, **kwargs))

    return call


async def _void(engine: Engine, authorization_id: str, *, reason: str = "") -> None:
    """Return everything that an authorization holds."""
    engine.void(authorization_id, reason=reason)


class PriceKeeper(Keeper):
    """The service for any thread, also after a fork. By default the environment names it."""

    _awaits = False
    authorize = _blocking(Engine.authorize)
    capture = _blocking(Engine.capture)
    void = _blocking(_void)
    record = _blocking(Engine.record)
    flush = _blocking(Engine.flush)
    extend = _blocking(_asking(Api.extend))
    authorization = _blocking(_asking(Api.authorization))
    authorizations = _blocking(_asking(Api.authorizations))
    select = _blocking(_asking(Api.select))
    acquire = _blocking(_asking(Api.acquire))
    adjust = _blocking(_asking(Api.adjust))
    release = _blocking(_asking(Api.release))
    budgets = _blocking(_asking(Api.budgets))
    limits = _blocking(_asking(Api.limits))
    usage = _blocking(_asking(Api.usage))
    usage_between = _blocking(_asking(Api.usage_between))
    usage_records = _blocking(_asking(Api.usage_records))

    def close(self) -> None:
        """Report waiting entries, within the deadline; the next start reports the rest."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPriceKeeper(Keeper):
    """The service for programs with an event loop; see `PriceKeeper`."""

    _awaits = True
    authorize = _awaiting(Engine.authorize)
    capture = _awaiting(Engine.capture)
    void = _awaiting(_void)
    record = _awaiting(Engine.record)
    flush = _awaiting(Engine.flush)
    extend = _awaiting(_asking(Api.extend))
    authorization = _awaiting(_asking(Api.authorization))
    authorizations = _awaiting(_asking(Api.authorizations))
    select = _awaiting(_asking(Api.select))
    acquire = _awaiting(_asking(Api.acquire))
    adjust = _awaiting(_asking(Api.adjust))
    release = _awaiting(_asking(Api.release))
    budgets = _awaiting(_asking(Api.budgets))
    limits = _awaiting(_asking(Api.limits))
    usage = _awaiting(_asking(Api.usage))
    usage_between = _awaiting(_asking(Api.usage_between))
    usage_records = _awaiting(_asking(Api.usage_records))

    async def close(self) -> None:
        """Report waiting entries, within the deadline; the next start reports the rest."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def flush_keepers(url: str) -> None:
    """Report all keepers' entries to a service, after abandoned streams, within the deadline."""
    for keeper in _keepers_of(url):
        engine = keeper._engine  # noqa: SLF001 - of this module
        if engine is not None and not keeper.is_closed:
            for wait in list(keeper._closing):  # noqa: SLF001
                wait(keeper.configuration.deadline_ms / 1000)
            engine.submit(engine.flush()).result(keeper._patience_secs)  # noqa: SLF001


def close_keepers(url: str) -> None:
    """Close every keeper of this process that uses that service."""
    for keeper in _keepers_of(url):
        keeper._close()  # noqa: SLF001 - of this module


def _keepers_of(url: str) -> list[Keeper]:
    return [one for one in list(_keepers) if one.configuration.url.rstrip("/") == url]


def _restart_all() -> None:
    for keeper in list(_keepers):
        keeper._restart()  # noqa: SLF001 - of this module


def _close_all() -> None:
    for keeper in list(_keepers):
        keeper._close()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_restart_all)
atexit.register(_close_all)
