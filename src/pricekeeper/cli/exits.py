"""Exit codes, and errors as one line with the next step.

====  ======================================================================
0     done
1     failed: the command ran, and its result is not the wanted one
2     usage: the command line, a setting or a file is wrong
3     not found: no such organisation, app, session, key or token
4     refused: credentials are missing, wrong, or not sufficient
5     unavailable: the service or the store can't do it now; try again later
130   interrupted: ctrl-c
====  ======================================================================
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.text import Text

from pricekeeper.cli.terminal import harmless
from pricekeeper.errors import (
    DeploymentFileError,
    PriceKeeperError,
    SettingsError,
    StoreMisconfiguredError,
)
from pricekeeper.settings import unknown_settings

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNAVAILABLE: Final = 5
INTERRUPTED: Final = 130

_BY_STATUS: Final[Mapping[int, int]] = {
    0: UNAVAILABLE,
    400: USAGE,
    401: REFUSED,
    403: REFUSED,
    404: NOT_FOUND,
    413: USAGE,
    429: UNAVAILABLE,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
}
_FIXES: Final[Mapping[str, str]] = {
    "UNREACHABLE": "is it running there? Without --url the command works on the store itself",
    "REPLY_LOST": "look before you repeat it",
    "UNAUTHORIZED": "check PRICEKEEPER_ADMIN_KEY or PRICEKEEPER_PROVISIONING_KEY, or --key",
    "FORBIDDEN": "'pricekeeper admin-keys whoami' says what your key may do",
    "NOT_FOUND": "'pricekeeper org list' and 'app list' show what there is",
    "RATE_LIMIT_EXCEEDED": "wait a moment",
    "STORE_MISCONFIGURED": "'pricekeeper doctor' says more, 'pricekeeper tables create' makes it",
    "STORE_UNAVAILABLE": "'pricekeeper doctor' says what is wrong",
    "STORE_CONTENDED": "try again",
    "CLOCK_IN_DOUBT": "'pricekeeper doctor' says how far it is off",
    "OUTCOME_UNKNOWN": "look before you repeat it",
}

_Found = TypeVar("_Found")


class MisusedError(PriceKeeperError):
    """The command line, or a file that it names, is wrong."""

    code = "USAGE"


class RefusedError(PriceKeeperError):
    """Credentials are missing or are those of another client; the service was not asked."""

    code = "UNAUTHORIZED"


def exit_code(error: PriceKeeperError) -> int:
    """Return the exit code of an error, raised here or answered by a service."""
    if isinstance(error, (MisusedError, SettingsError, DeploymentFileError)):
        return USAGE
    if isinstance(error, RefusedError):
        return REFUSED
    if isinstance(error, StoreMisconfiguredError):
        return FAILED  # the service answers 503 to its callers; its operator must repair it
    status = getattr(error, "status", None)
    if status is None:
        from pricekeeper.http.problems import status_of  # noqa: PLC0415  # few commands fail

        status = status_of(type(error))[0]
    return _BY_STATUS.get(status, FAILED)


async def unless_missing(asked: Awaitable[_Found]) -> _Found | None:
    """Return the answer, or ``None`` if it is not found."""
    try:
        return await asked
    except PriceKeeperError as error:
        if exit_code(error) == NOT_FOUND:
            return None
        raise


@contextmanager
def hint_if_missing(hint: str) -> Iterator[None]:
    """Add a hint to a "not found" error of the block."""
    try:
        yield
    except PriceKeeperError as error:
        if exit_code(error) == NOT_FOUND:
            error.add_note(hint)
        raise


def tell(error: PriceKeeperError, console: Console) -> None:
    """Print one line: the code, what happened, and what to do next."""
    line = Text.assemble((_one_line(error.code), "bold red"), " ", _one_line(str(error)))
    if fix := fix_of(error):
        line.append(f"; {_one_line(fix)}", "dim")
    console.print(line, soft_wrap=True, highlight=False)


def tell_unknown_settings(console: Console) -> None:
    """Warn about environment variables that look like misspelt settings."""
    for warning in unknown_settings(os.environ):
        console.print(
            Text.assemble(("WARNING", "bold yellow"), " ", _one_line(warning)), soft_wrap=True
        )


def _one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def fix_of(error: PriceKeeperError) -> str:
    """Return the next step: the command's hint, or one made of the answer's details or code."""
    if notes := getattr(error, "__notes__", None):
        return "; ".join(notes)
    if isinstance(error, RefusedError):
        return ""  # its text has the next step
    details: Mapping[str, Any] = getattr(error, "details", None) or {}
    problem = getattr(error, "problem", None)
    if problem is not None:
        if problem.extras.get("error") == "invalid_client":
            return "check PRICEKEEPER_CLIENT_ID and PRICEKEEPER_CLIENT_SECRET"
        details = problem.extras.get("details", details)
    if labels := details.get("valid_labels"):
        return f"the labels of this deployment are {', '.join(labels)}"
    return _FIXES.get(error.code, "")
