"""Secrets that a command takes: on the command line, or where nobody else can read them.

Everybody on a machine can read command lines (``ps``), and a shell keeps them. So a secret can
also come from stdin (``-``), where a terminal asks for it without showing it, from a file
(``@FILE``), or from the environment.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Final

from pricekeeper.cli.exits import MisusedError

STDIN: Final = "-"
FILE_MARK: Final = "@"
LENGTH_MAX: Final = 4_096
HELP: Final = "- reads it from stdin, @FILE from a file: others can see command lines"


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
