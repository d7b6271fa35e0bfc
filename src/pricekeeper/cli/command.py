"""Make a command of an async function: shared options, an event loop, and printed output.

Its first parameter is a backend or a store's settings; it returns an `Output`. A dataclass
parameter declares one option per field.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec
import typer
from rich.console import RenderableType

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Where, open_backend, quiet_logs
from pricekeeper.cli.options import HOW_TO_HIDE, option, read_secret
from pricekeeper.cli.terminal import harmless, harmless_json, make_console
from pricekeeper.errors import PriceKeeperError
from pricekeeper.settings import ADMIN_KEY, CLIENT_ID, CLIENT_SECRET, CONFIG, STORE, URL, Settings


def _where(spelling: str, text: str, variable: str, **more: Any) -> Any:
    return option(spelling, f"{text}; else ${variable}.", rich_help_panel="Where", **more)


def _secret_where(spelling: str, text: str, variable: str) -> Any:
    return _where(spelling, f"{text}; {HOW_TO_HIDE}", variable, parser=read_secret)


HELP_WIDTH_MIN: Final = 80
"""With less, Typer cuts words; a terminal wraps lines."""

YesOption = Annotated[bool, option("--yes -y", "Do not ask.")]
Json = Annotated[bool, option("--json", "Print the answer as JSON only.")]
StoreOption = Annotated[str | None, _where("--store URL", "The store", STORE)]
ConfigOption = Annotated[str | None, _where("--config FILE", "The deployment file", CONFIG)]
UrlOption = Annotated[
    str | None, _where("--url URL", "A running service instead of the store", URL)
]
KeyOption = Annotated[str | None, _secret_where("--key KEY", "An administrator's key", ADMIN_KEY)]
ClientIdOption = Annotated[str | None, _where("--client-id ID", "The client to act as", CLIENT_ID)]
ClientSecretOption = Annotated[
    str | None, _secret_where("--client-secret SECRET", "Its secret", CLIENT_SECRET)
]

_STORE_OPTIONS: Final[Mapping[str, Any]] = {"store": StoreOption, "config": ConfigOption}
_KEY_OPTIONS: Final[Mapping[str, Any]] = {"url": UrlOption, "key": KeyOption, **_STORE_OPTIONS}
_EVERY_OPTION: Final[Mapping[str, Any]] = {
    "url": UrlOption,
    "client_id": ClientIdOption,
    "client_secret": ClientSecretOption,
    **_STORE_OPTIONS,
    "key": KeyOption,
}


class Output(NamedTuple):
    """The result of a command."""

    answer: Any
    picture: RenderableType
    exit_code: int = exits.OK


class Proposal(NamedTuple):
    """A change to confirm before it is made."""

    picture: RenderableType
    question: str
    carry_out: Callable[[Any], Awaitable[Output]]


Command: TypeAlias = Callable[..., Awaitable[Output | Proposal]]
Opening: TypeAlias = Callable[[Where], AbstractAsyncContextManager[Any]]
"""Opens a command's first argument."""
Question: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Makes the question to confirm, from the arguments."""
_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Command)


def backend_command(
    group: typer.Typer,
    name: str,
    *,
    may_create: bool = False,
    asks: Question | None = None,
    has_yes: bool = False,
) -> Callable[[_Command], _Command]:
    """Register a command for a service with an admin key, or the store.

    ``asks`` makes a question to confirm first. ``has_yes`` is for a command that returns a
    `Proposal`; ``--yes`` or a pipe confirms it.
    """
    opening = functools.partial(open_backend, may_create=may_create)
    return _register(group, name, _KEY_OPTIONS, opening, asks=asks, has_yes=has_yes)


def either_command(group: typer.Typer, name: str) -> Callable[[_Command], _Command]:
    """Register a command for a client's credentials, an admin key, or the store."""
    return _register(group, name, _EVERY_OPTION, open_backend)


def store_command(
    group: typer.Typer, name: str, *, must_name_store: bool = False
) -> Callable[[_Command], _Command]:
    """Register a command on the store.

    ``must_name_store`` refuses the default store if the environment names a service.
    """

    def opening(target: Where) -> AbstractAsyncContextManager[Settings]:
        if must_name_store:
            target.require_named_store()
        return nullcontext(target.settings())

    return _register(group, name, _STORE_OPTIONS, opening)


def bare_command(
    group: typer.Typer, name: str, *, has_options: bool = False
) -> Callable[[_Command], _Command]:
    """Register a command that gets a `Where`, nothing opened; by default the environment's."""
    return _register(group, name, _EVERY_OPTION if has_options else {}, nullcontext)


def _register(
    group: typer.Typer,
    name: str,
    options: Mapping[str, Any],
    opening: Opening,
    *,
    asks: Question | None = None,
    has_yes: bool = False,
) -> Callable[[_Command], _Command]:
    def decorate(function: _Command) -> _Command:
        own = _own_parameters(function)
        groups = {one.name: one.annotation for one in own if _grouped_options(one.annotation)}
        shows_itself = any(one.name == "as_json" for one in own)

        @functools.wraps(function)
        def command(**given: Any) -> None:
            target = Where(**{option: given.pop(option) for option in options})
            as_json, yes = given["as_json"], given.pop("yes", False)
            if not shows_itself:
                del given["as_json"]
            for group_name, kind in groups.items():
                given[group_name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
            quiet_logs()
            if asks is not None:
                _confirm(asks(given), yes=yes)
            found = asyncio.run(_run(function, opening(target), given))
            if isinstance(found, Proposal):
                _propose(found, yes=yes, as_json=as_json)
                found = asyncio.run(_run(found.carry_out, opening(target), {}))
            show(found, as_json=as_json)

        _declare(command, own, options, has_yes=has_yes or asks is not None)
        group.command(name)(command)
        return function

    return decorate


async def _run(
    function: Callable[..., Awaitable[_Result]],
    opening: AbstractAsyncContextManager[Any],
    given: Mapping[str, Any],
) -> _Result:
    async with opening as opened:
        return await function(opened, **given)


def _propose(proposal: Proposal, *, yes: bool, as_json: bool) -> None:
    """Print the proposal and ask. If printing fails, nothing is changed."""
    asks = not yes and sys.stdin.isatty()
    if not as_json:
        try:
            _print(Output(None, proposal.picture), as_json=False)
        except OSError as error:
            _discard_stdout()
            text = (
                f"stdout can't be written ({error.strerror}), so nothing was changed; "
                "free it and run the command again"
            )
            raise exits.MisusedError(text) from error
    elif asks:
        make_console(stderr=True).print(proposal.picture, soft_wrap=True)
    if asks:
        _confirm(proposal.question, yes=False)


def _confirm(question: str, *, yes: bool) -> None:
    """Ask before the event loop runs: inside it the first ctrl-c has no effect."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise exits.MisusedError("there is no terminal to confirm this on; add --yes to do it")
    try:
        typer.confirm(harmless(question), abort=True, err=True)
    except typer.Abort as aborted:
        if isinstance(aborted.__context__, KeyboardInterrupt):
            raise typer.Exit(exits.INTERRUPTED) from None
        raise


def show(output: Output, *, as_json: bool) -> None:
    """Print the answer and exit; if stdout fails, on stderr: it may be a one-time secret."""
    try:
        _print(output, as_json=as_json)
    except OSError as error:
        make_console(stderr=True).print(output.picture, soft_wrap=True)
        _discard_stdout()
        text = f"stdout can't be written ({error.strerror}), so the answer is here on stderr"
        raise exits.MisusedError(text) from error
    if output.exit_code != exits.OK:
        raise typer.Exit(output.exit_code)


def _print(output: Output, *, as_json: bool) -> None:
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    if as_json:
        print_json(output.answer)
    else:
        make_console().print(output.picture, soft_wrap=True)
    sys.stdout.flush()


def _discard_stdout() -> None:
    """Discard unwritten output, or Python tries again at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(answer: Any) -> None:
    """Print JSON with control characters escaped."""
    text = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    sys.stdout.write(harmless_json(text.decode()) + "\n")


def _own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    return [one.replace(annotation=hints[one.name]) for one in own]


def _grouped_options(kind: Any) -> list[inspect.Parameter]:
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return []
    hints = get_type_hints(kind, include_extras=True)
    return [keyword(one.name, hints[one.name], default=one.default) for one in fields(kind)]


def _declare(
    command: Callable[..., None],
    own: Sequence[inspect.Parameter],
    options: Mapping[str, Any],
    *,
    has_yes: bool,
) -> None:
    parameters = [part for one in own for part in _grouped_options(one.annotation) or [one]]
    if has_yes:
        parameters += [keyword("yes", YesOption, default=False)]
    if not any(one.name == "as_json" for one in own):
        parameters += [keyword("as_json", Json, default=False)]
    parameters += [keyword(option, kind, default=None) for option, kind in options.items()]
    declare(command, parameters)


def declare(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function these parameters, for Typer."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}


def keyword(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    """A parameter without a place."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def run_app(app: typer.Typer) -> None:
    """Run the command line; a `PriceKeeperError` is one line on stderr and an exit code."""
    if shutil.get_terminal_size().columns < HELP_WIDTH_MIN:
        from typer import rich_utils  # noqa: PLC0415  # it takes a while, and few need it

        rich_utils.MAX_WIDTH = HELP_WIDTH_MIN
    try:
        app()
    except PriceKeeperError as error:
        exits.tell(error, make_console(stderr=True))
        sys.exit(exits.exit_code(error))
