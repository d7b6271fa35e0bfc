"""How a command ends: exit codes that scripts can rely on, and errors in one line with the fix.

====  ============================================================================
0     done
1     failed: it was tried, and what came out is not what was wanted
2     usage: the command line, a setting, or a file that one of them names, is wrong
3     not found: there is no such organisation, app, session or retrieval token
4     refused: credentials are missing, wrong, or not for this
5     unavailable: the service or the store can't do it now; later may work
130   interrupted: ctrl-c
====  ============================================================================
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
    """The command line, or a file that it names, can't be meant like that."""

    code = "USAGE"


class RefusedError(PriceKeeperError):
    """Credentials are missing or not for this, which can be told without asking the service."""

    code = "UNAUTHORIZED"


def exit_code(error: PriceKeeperError) -> int:
    """The code for an error, whether it was raised here or told by a service."""
    if isinstance(error, (MisusedError, SettingsError, DeploymentFileError)):
        return USAGE
    if isinstance(error, RefusedError):
        return REFUSED
    if isinstance(error, StoreMisconfiguredError):
        return FAILED  # for a caller of the service that is 'not now'; for its operator it is not
    status = getattr(error, "status", None)
    if status is None:
        from pricekeeper.http.problems import status_of  # noqa: PLC0415  # few commands fail

        status = status_of(type(error))[0]
    return _BY_STATUS.get(status, FAILED)


async def unless_missing(asked: Awaitable[_Found]) -> _Found | None:
    """What is asked for; ``None`` if it is not there."""
    try:
        return await asked
    except PriceKeeperError as error:
        if exit_code(error) == NOT_FOUND:
            return None
        raise


@contextmanager
def hint_if_missing(hint: str) -> Iterator[None]:
    """Tell what helps if what the block asks for is not there."""
    try:
        yield
    except PriceKeeperError as error:
        if exit_code(error) == NOT_FOUND:
            error.add_note(hint)
        raise


def tell(error: PriceKeeperError, console: Console) -> None:
    """One line: the code, what happened, and what to do."""
    line = Text.assemble((_one_line(error.code), "bold red"), " ", _one_line(str(error)))
    if fix := fix_of(error):
        line.append(f"; {_one_line(fix)}", "dim")
    console.print(line, soft_wrap=True, highlight=False)


def tell_unknown_settings(console: Console) -> None:
    """Say which variables look like settings and are none: a typing error would pass in silence."""
    for warning in unknown_settings(os.environ):
        console.print(
            Text.assemble(("WARNING", "bold yellow"), " ", _one_line(warning)), soft_wrap=True
        )


def _one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def fix_of(error: PriceKeeperError) -> str:
    """What helps: what the command has noted, or what the service's answer says, or the code."""
    if notes := getattr(error, "__notes__", None):
        return "; ".join(notes)
    if isinstance(error, RefusedError):
        return ""  # it says so itself
    details: Mapping[str, Any] = getattr(error, "details", None) or {}
    problem = getattr(error, "problem", None)
    if problem is not None:
        if problem.extras.get("error") == "invalid_client":
            return "check PRICEKEEPER_CLIENT_ID and PRICEKEEPER_CLIENT_SECRET"
        details = problem.extras.get("details", details)
    if labels := details.get("valid_labels"):
        return f"the labels of this deployment are {', '.join(labels)}"
    return _FIXES.get(error.code, "")
