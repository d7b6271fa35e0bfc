"""How commands declare options and arguments: as the help shows them, and what they mean."""

from __future__ import annotations

from typing import Any

import typer


def option(spelling: str, text: str, **more: Any) -> Any:
    """An option, such as ``--file -f FILE``: its flags, and what stands for its value."""
    words = spelling.split()
    metavar = words.pop() if not words[-1].startswith("-") else None
    return typer.Option(*words, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """An argument, by what stands for its value."""
    return typer.Argument(metavar=metavar, help=text, **more)
