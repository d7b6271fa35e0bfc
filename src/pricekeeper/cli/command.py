"""How a function becomes a command: options that all share, an event loop, and the answer shown.

A command is an async function that takes the backend it works on (or the settings, if it can only
work on the store) and gives back an `Outcome`: the answer as JSON, and a picture of it for people.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, TypeAlias, TypeVar, get_type_hints

import typer
from rich.console import RenderableType

from pricekeeper.cli import exits, secret_input
from pricekeeper.cli.backends import Target, open_backend, quiet_logs
from pricekeeper.cli.options import option
from pricekeeper.cli.terminal import harmless, harmless_json, make_console
from pricekeeper.errors import PriceKeeperError
from pricekeeper.settings import ADMIN_KEY, CLIENT_ID, CLIENT_SECRET, CONFIG, STORE, URL


def _where(spelling: str, text: str, variable: str, **more: Any) -> Any:
    """An option about where to work."""
    return option(spelling, f"{text}; else ${variable}.", rich_help_panel="Where", **more)


def _secret_where(spelling: str, text: str, variable: str) -> Any:
    """The same for a secret, which may also come from stdin or a file."""
    parser = secret_input.read_secret
    return _where(spelling, f"{text}; {secret_input.HELP}", variable, parser=parser)


HELP_WIDTH_MIN: Final = 80
"""For less Typer would cut words. A narrower terminal breaks the lines, and cuts nothing."""

YesOption = Annotated[bool, option("--yes -y", "Do not ask.")]
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
_CLIENT_OPTIONS: Final[Mapping[str, Any]] = {
    "url": UrlOption,
    "client_id": ClientIdOption,
    "client_secret": ClientSecretOption,
    **_STORE_OPTIONS,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command found or did."""

    answer: Any
    picture: RenderableType
    exit_code: int = exits.OK


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a command would do; it is shown, and a person is asked before it is done."""

    picture: RenderableType
    question: str
    carry_out: Callable[[Any], Awaitable[Outcome]]
    """Takes the backend, as the command does."""


Command: TypeAlias = Callable[..., Awaitable[Outcome]]
Proposer: TypeAlias = Callable[..., Awaitable[Outcome | Proposal]]
Question: TypeAlias = Callable[[Mapping[str, Any]], str]
"""What to ask before a command runs, made of its arguments; one of these is ``yes``."""
Decorator: TypeAlias = Callable[[Command], Command]
_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Awaitable[Any]])
_Executed_contra = TypeVar("_Executed_contra", contravariant=True)


def backend_command(
    group: typer.Typer, name: str, *, may_create: bool = False, asks: Question | None = None
) -> Decorator:
    """A command that works on a service with the provisioning key, or on the store."""
    run = functools.partial(_run_on_backend, may_create=may_create)
    return _register(group, name, _KEY_OPTIONS, run, asks)


def proposing_command(group: typer.Typer, name: str) -> Callable[[Proposer], Proposer]:
    """As `backend_command`, for one that may give back a `Proposal`: shown, asked, then done.

    Only a person at a terminal is asked, and not after ``--yes``.
    """

    def execute(
        function: Proposer, target: Target, given: dict[str, Any], *, as_json: bool
    ) -> Outcome:
        asks = not given.pop("yes") and sys.stdin.isatty()
        found = asyncio.run(_await_outcome(_run_on_backend(function, target, given)))
        if isinstance(found, Outcome):
            return found
        if asks or not as_json:
            _show_proposal(found, on_stderr=as_json)
        if asks:
            _confirm(found.question, yes=False)
        return asyncio.run(_await_outcome(_run_on_backend(found.carry_out, target, {})))

    return _declare_as(group, name, _KEY_OPTIONS, execute, has_yes=True)


def either_command(group: typer.Typer, name: str) -> Decorator:
    """A command that works with a client's credentials or the provisioning key, or on the store."""
    return _register(group, name, {**_CLIENT_OPTIONS, "key": KeyOption}, _run_on_backend)


def store_command(group: typer.Typer, name: str, *, must_name_store: bool = False) -> Decorator:
    """A command that works on the store only.

    With ``must_name_store`` it does not go by the default if the environment names a service.
    """
    run = functools.partial(_run_on_store, must_name_store=must_name_store)
    return _register(group, name, _STORE_OPTIONS, run)


def doctor_command(group: typer.Typer, name: str) -> Decorator:
    """A command that looks at either, and opens neither before it runs."""
    options = {**_CLIENT_OPTIONS, "key": KeyOption}
    return _register(group, name, options, _run_on_target)


def client_command(group: typer.Typer, name: str) -> Decorator:
    """A command of an app itself, which the environment names as it does for the app."""
    return _register(group, name, {}, _run_on_target)


async def _run_on_backend(
    function: Callable[..., Awaitable[_Result]],
    target: Target,
    given: Mapping[str, Any],
    *,
    may_create: bool = False,
) -> _Result:
    async with open_backend(target, may_create=may_create) as backend:
        return await function(backend, **given)


async def _run_on_store(
    function: Command, target: Target, given: Mapping[str, Any], *, must_name_store: bool
) -> Outcome:
    if must_name_store:
        target.require_named_store()
    return await function(target.settings(), **given)


async def _run_on_target(function: Command, target: Target, given: Mapping[str, Any]) -> Outcome:
    return await function(target, **given)


def _register(
    group: typer.Typer,
    name: str,
    options: Mapping[str, Any],
    run: Callable[[Command, Target, Mapping[str, Any]], Awaitable[Outcome]],
    asks: Question | None = None,
) -> Decorator:
    def execute(
        function: Command, target: Target, given: dict[str, Any], *, as_json: bool
    ) -> Outcome:
        del as_json
        if asks is not None:
            _confirm(asks(given), yes=given.pop("yes"))
        return asyncio.run(_await_outcome(run(function, target, given)))

    return _declare_as(group, name, options, execute, has_yes=asks is not None)


class _Execute(Protocol[_Executed_contra]):
    """Runs a command with what the command line says."""

    def __call__(
        self, function: _Executed_contra, target: Target, given: dict[str, Any], /, *, as_json: bool
    ) -> Outcome: ...


def _declare_as(
    group: typer.Typer,
    name: str,
    options: Mapping[str, Any],
    execute: _Execute[_Function],
    *,
    has_yes: bool,
) -> Callable[[_Function], _Function]:
    """Make functions commands of that name, which show what comes out."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            target = Target(**{option: given.pop(option) for option in options})
            as_json = given.pop("as_json")
            quiet_logs()
            show(execute(function, target, given, as_json=as_json), as_json=as_json)

        _declare(command, function, options, asks=has_yes)
        group.command(name)(command)
        return function

    return decorate


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


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print the answer, and exit with what it means.

    If stdout can't be written, the answer goes to stderr: it may be a secret that is shown once.
    """
    try:
        _print(outcome, as_json=as_json)
    except OSError as error:
        make_console(stderr=True).print(outcome.picture, soft_wrap=True)
        _discard_stdout()
        text = f"stdout can't be written ({error.strerror}), so the answer is here on stderr"
        raise exits.MisusedError(text) from error
    if outcome.exit_code != exits.OK:
        raise typer.Exit(outcome.exit_code)


def _show_proposal(proposal: Proposal, *, on_stderr: bool) -> None:
    """Print what would be done; if it can't be shown, it is not done."""
    if on_stderr:
        make_console(stderr=True).print(proposal.picture, soft_wrap=True)
        return
    try:
        _print(Outcome(None, proposal.picture), as_json=False)
    except OSError as error:
        _discard_stdout()
        text = f"stdout can't be written ({error.strerror}), so nothing was changed"
        raise exits.MisusedError(text) from error


def _print(outcome: Outcome, *, as_json: bool) -> None:
    """Print the answer on stdout, and see to it that it gets there."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    if as_json:
        print_json(outcome.answer)
    else:
        make_console().print(outcome.picture, soft_wrap=True)
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


async def _await_outcome(work: Awaitable[_Result]) -> _Result:
    return await work


def _declare(
    command: Callable[..., None],
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    asks: bool,
) -> None:
    """Give the command the signature that Typer reads: the function's own, and the options.

    The first parameter is the backend, which does not come from the command line. A command that
    asks has ``--yes``, which the function does not see.
    """
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [one.replace(annotation=hints[one.name]) for one in own]
    if asks:
        parameters += [_keyword("yes", YesOption, default=False)]
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
