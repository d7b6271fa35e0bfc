"""How commands declare options and arguments: as the help shows them, and what they mean."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any, Final

import typer

from pricekeeper.cli.exits import MisusedError


def option(spelling: str, text: str, **more: Any) -> Any:
    """An option, such as ``--file -f FILE``: its flags, and what stands for its value."""
    words = spelling.split()
    metavar = words.pop() if not words[-1].startswith("-") else None
    return typer.Option(*words, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """An argument, by what stands for its value."""
    return typer.Argument(metavar=metavar, help=text, **more)


STDIN: Final = "-"
FILE_MARK: Final = "@"
LENGTH_MAX: Final = 4_096
HOW_TO_HIDE: Final = "- reads it from stdin, @FILE from a file: others can see command lines"


def read_secret(given: str) -> str:
    """The secret itself, from wherever the command line says that it is."""
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
        raise MisusedError(f"{FILE_MARK}{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MisusedError(f"{FILE_MARK}{path}: is not text") from error
    return _only_line(text, path)


def _only_line(text: str, where: str) -> str:
    """The text without the line break at its end. A second line would be somebody's mistake."""
    found = text.removesuffix("\n").removesuffix("\r")
    if not found or len(found) > LENGTH_MAX or "\n" in found:
        raise MisusedError(f"{where}: want the secret alone, on one line")
    return found
