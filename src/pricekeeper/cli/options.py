"""Options and arguments of commands, and secrets, which command lines show to other users."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pricekeeper.cli.exits import MisusedError


def option(spelling: str, text: str, **more: Any) -> Any:
    """Declare an option by its spelling, such as ``--file -f FILE``."""
    words = spelling.split()
    metavar = words.pop() if not words[-1].startswith("-") else None
    return typer.Option(*words, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=metavar, help=text, **more)


ORG: Final = argument("ORG", "The organisation's UUID.")
APP: Final = argument("APP", "The app's id.")
APP_OR_ORG: Final = argument("APP", "The app. Default: the organisation itself.")
REASON: Final = option("--reason TEXT", "Why. It is kept in the audit log.")
CHANNEL: Final = argument("NAME", "The channel's name.")
CHANNELS_HINT: Final = "'pricekeeper alerts channels' lists the channels"
OrgArgument = Annotated[str, ORG]
OptionalOrg = Annotated[str | None, ORG]
AppArgument = Annotated[str, APP]
OptionalApp = Annotated[str | None, APP_OR_ORG]

STDIN: Final = "-"
FILE_MARK: Final = "@"
LENGTH_MAX: Final = 4_096
HOW_TO_HIDE: Final = "- reads stdin, @FILE a file, since others can see command lines"


def read_secret(given: str) -> str:
    """The secret, from stdin, a file or the text itself."""
    if given == STDIN:
        return _only_line(_from_stdin(), "stdin")
    if given.startswith(FILE_MARK):
        return _from_file(given.removeprefix(FILE_MARK))
    return given


def _from_stdin() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("secret (not shown): ")
    return sys.stdin.read(LENGTH_MAX + 1)


def _from_file(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LENGTH_MAX + 1)
    except OSError as error:
        text = f"{FILE_MARK}{path}: {error.strerror}; name a file that this user can read"
        raise MisusedError(text) from error
    except UnicodeDecodeError as error:
        text = f"{FILE_MARK}{path}: is not text; put the secret alone there, on one line"
        raise MisusedError(text) from error
    return _only_line(text, path)


def _only_line(text: str, where: str) -> str:
    """Without its line break; refuses a second line."""
    found = text.removesuffix("\n").removesuffix("\r")
    if not found or len(found) > LENGTH_MAX or "\n" in found:
        raise MisusedError(f"{where}: put the secret alone there, on one line")
    return found
