"""How a function becomes a command: options that all share, an event loop, and the answer shown.

A command is an async function that takes what it works on (a backend, or the settings of a store)
and gives back an `Output`: the answer as JSON, and a picture of it for people. Options that go
together may be a dataclass: a parameter of that type stands for one option for each of its fields.
A command that also shows something itself takes ``as_json``.
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
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_type_hints

import typer
from rich.console import RenderableType

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Where, open_backend, quiet_logs
from pricekeeper.cli.options import HOW_TO_HIDE, option, read_secret
from pricekeeper.cli.terminal import harmless, harmless_json, make_console
from pricekeeper.errors import PriceKeeperError
from pricekeeper.settings import ADMIN_KEY, CLIENT_ID, CLIENT_SECRET, CONFIG, STORE, URL, Settings


def _where(spelling: str, text: str, variable: str, **more: Any) -> Any:
    """An option about where to work."""
    return option(spelling, f"{text}; else ${variable}.", rich_help_panel="Where", **more)


def _secret_where(spelling: str, text: str, variable: str) -> Any:
    """The same for a secret, which may also come from stdin or a file."""
    return _where(spelling, f"{text}; {HOW_TO_HIDE}", variable, parser=read_secret)


HELP_WIDTH_MIN: Final = 80
"""For less Typer would cut words. A narrower terminal breaks the lines, and cuts nothing."""

YesOption = Annotated[bool, option("--yes -y", "Do not ask.")]
Reason = Annotated[str, option("--reason TEXT", "Why: it is logged, and a freeze shows it.")]
Json = Annotated[bool, option("--json", "Print the answer as JSON, and nothing else.")]
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


@dataclass(frozen=True, slots=True)
class Output:
    """What a command found or did."""

    answer: Any
    picture: RenderableType
    exit_code: int = exits.OK


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a command would do; it is shown, and a person is asked before it is done."""

    picture: RenderableType
    question: str
    carry_out: Callable[[Any], Awaitable[Output]]
    """Takes the backend, as the command does."""


Command: TypeAlias = Callable[..., Awaitable[Output | Proposal]]
Opening: TypeAlias = Callable[[Where], AbstractAsyncContextManager[Any]]
"""Opens what a command works on, which the command takes first."""
Question: TypeAlias = Callable[[Mapping[str, Any]], str]
"""What to ask before a command runs, made of its arguments."""
_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Command)


def backend_command(
    group: typer.Typer, name: str, *, may_create: bool = False, asks: Question | None = None
) -> Callable[[_Command], _Command]:
    """A command that works on a service with the provisioning key, or on the store."""
    opening = functools.partial(open_backend, may_create=may_create)
    return _register(group, name, _KEY_OPTIONS, opening, asks=asks)


def proposing_command(group: typer.Typer, name: str) -> Callable[[_Command], _Command]:
    """As `backend_command`, for one that may give back a `Proposal`: shown, asked, then done.

    Only a person at a terminal is asked, and not after ``--yes``.
    """
    return _register(group, name, _KEY_OPTIONS, open_backend, has_yes=True)


def either_command(group: typer.Typer, name: str) -> Callable[[_Command], _Command]:
    """A command that works with a client's credentials or the provisioning key, or on the store."""
    return _register(group, name, _EVERY_OPTION, open_backend)


def store_command(
    group: typer.Typer, name: str, *, must_name_store: bool = False
) -> Callable[[_Command], _Command]:
    """A command that works on the store only, as the settings name it.

    With ``must_name_store`` it does not go by the default if the environment names a service.
    """

    def opening(target: Where) -> AbstractAsyncContextManager[Settings]:
        if must_name_store:
            target.require_named_store()
        return nullcontext(target.settings())

    return _register(group, name, _STORE_OPTIONS, opening)


def doctor_command(group: typer.Typer, name: str) -> Callable[[_Command], _Command]:
    """A command that looks at either, and opens neither before it runs."""
    return _register(group, name, _EVERY_OPTION, nullcontext)


def client_command(group: typer.Typer, name: str) -> Callable[[_Command], _Command]:
    """A command of an app itself, which the environment names as it does for the app."""
    return _register(group, name, {}, nullcontext)


def _register(
    group: typer.Typer,
    name: str,
    options: Mapping[str, Any],
    opening: Opening,
    *,
    asks: Question | None = None,
    has_yes: bool = False,
) -> Callable[[_Command], _Command]:
    """Make functions commands of that name, which show what comes out."""

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
    """Print what would be done, and ask whoever is there; if it can't be shown, it is not done."""
    asks = not yes and sys.stdin.isatty()
    if not as_json:
        try:
            _print(Output(None, proposal.picture), as_json=False)
        except OSError as error:
            _discard_stdout()
            text = f"stdout can't be written ({error.strerror}), so nothing was changed"
            raise exits.MisusedError(text) from error
    elif asks:
        make_console(stderr=True).print(proposal.picture, soft_wrap=True)
    if asks:
        _confirm(proposal.question, yes=False)


def _confirm(question: str, *, yes: bool) -> None:
    """Ask a person, before the event loop runs: inside, the first ctrl-c would go unheard."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise exits.MisusedError("nobody is here to ask; say --yes if it is meant")
    try:
        typer.confirm(harmless(question), abort=True, err=True)
    except typer.Abort as aborted:
        if isinstance(aborted.__context__, KeyboardInterrupt):
            raise typer.Exit(exits.INTERRUPTED) from None
        raise


def show(output: Output, *, as_json: bool) -> None:
    """Print the answer, and exit with what it means.

    If stdout can't be written, the answer goes to stderr: it may be a secret that is shown once.
    """
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
    """Print the answer on stdout, and see to it that it gets there."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    if as_json:
        print_json(output.answer)
    else:
        make_console().print(output.picture, soft_wrap=True)
    sys.stdout.flush()


def _discard_stdout() -> None:
    """Let what stdout has not written go nowhere: Python would try it again at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(answer: Any) -> None:
    """The answer on stdout; nothing in it is an order to a terminal."""
    import msgspec  # noqa: PLC0415  # --help needs none

    text = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    sys.stdout.write(harmless_json(text.decode()) + "\n")


def _own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """What comes from the command line: all but the first, which is what the command works on."""
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    return [one.replace(annotation=hints[one.name]) for one in own]


def _grouped_options(kind: Any) -> list[inspect.Parameter]:
    """The options that a dataclass is made of; none, if it is something else."""
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return []
    hints = get_type_hints(kind, include_extras=True)
    return [_keyword(one.name, hints[one.name], default=one.default) for one in fields(kind)]


def _declare(
    command: Callable[..., None],
    own: Sequence[inspect.Parameter],
    options: Mapping[str, Any],
    *,
    has_yes: bool,
) -> None:
    """Give the command the signature that Typer reads: the function's own, and the options.

    A command that asks has ``--yes``, which the function does not see.
    """
    parameters = [part for one in own for part in _grouped_options(one.annotation) or [one]]
    if has_yes:
        parameters += [_keyword("yes", YesOption, default=False)]
    if not any(one.name == "as_json" for one in own):
        parameters += [_keyword("as_json", Json, default=False)]
    parameters += [_keyword(option, kind, default=None) for option, kind in options.items()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def run_app(app: typer.Typer) -> None:
    """Run the command line; an error of ours becomes one line and its exit code."""
    if shutil.get_terminal_size().columns < HELP_WIDTH_MIN:
        from typer import rich_utils  # noqa: PLC0415  # it takes a while, and few need it

        rich_utils.MAX_WIDTH = HELP_WIDTH_MIN
    try:
        app()
    except PriceKeeperError as error:
        exits.tell(error, make_console(stderr=True))
        sys.exit(exits.exit_code(error))
