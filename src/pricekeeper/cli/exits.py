"""Exit codes, which docs/cli.md lists, and errors as one line with the next step."""

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
_AGAIN: Final = "try again in a moment"
_LOOK: Final = "check whether it was already done; repeat it only if not"
_DOCTOR: Final = "'pricekeeper doctor' says what to repair"
_BUG: Final = "this is a bug: report it with this line"
_FIXES: Final[Mapping[str, str]] = {
    "UNREACHABLE": "check that it is running there; without --url commands work on the store",
    "REPLY_LOST": _LOOK,
    "OUTCOME_UNKNOWN": _LOOK,
    "UNAUTHORIZED": "check PRICEKEEPER_ADMIN_KEY or PRICEKEEPER_PROVISIONING_KEY, or --key",
    "INVALID_TOKEN": "check the credentials, and log in again",
    "FORBIDDEN": "'pricekeeper admin-keys whoami' shows what your key may do",
    "NOT_PERMITTED": "'pricekeeper admin-keys whoami' shows what your key may do",
    "FROZEN": "ask an administrator; 'pricekeeper unfreeze' lifts it",
    "INVALID_CLIENT": "check PRICEKEEPER_CLIENT_ID and PRICEKEEPER_CLIENT_SECRET",
    "NOT_FOUND": "'pricekeeper org list' and 'app list' show what exists",
    "INVALID_VALUE": "correct it; --help shows examples",
    "INVALID_REQUEST": "correct it; --help shows examples",
    "INVALID_CONFIG": "correct it; --help shows examples",
    "INVALID_SETTING": "correct it; docs/operations.md lists all settings",
    "INVALID_DEPLOYMENT_FILE": "correct it; config.example.yaml shows every field",
    "INVALID_MODEL_LABEL": "use a label of the deployment; 'pricekeeper prices show' lists them",
    "MODEL_MISMATCH": "use the model of the label; 'pricekeeper prices show' lists them",
    "UNPRICED_USAGE": "add its price to the deployment file",
    "CONFLICT": "look at the present state, then repeat the command",
    "REQUEST_ID_REUSED": "use a new request id",
    "RATE_LIMIT_EXCEEDED": _AGAIN,
    "QUOTA_EXCEEDED": "wait for the reset, or raise it with 'pricekeeper org set --quota'",
    "AUTHORIZATION_DENIED": "wait for the reset, or raise the named limits",
    "OVERLOADED": _AGAIN,
    "DEADLINE_EXCEEDED": _LOOK,
    "SESSION_RACE": _AGAIN,
    "CLOCK_IN_DOUBT": "set the clock; 'pricekeeper doctor' shows how far it is off",
    "KEYRING_UNUSABLE": _DOCTOR,
    "EXPORT_FAILED": "make the target writable, then export again",
    "DELIVERY_FAILED": "correct the channel with 'pricekeeper alerts set', then test it",
    "PRICE_SOURCE_FAILED": "check that it can be reached, or use another --source",
    "ITEM_UNREADABLE": "correct or remove the named item; restore it from a backup",
    "STORE_MISCONFIGURED": (
        "see 'pricekeeper doctor'; 'pricekeeper tables create' creates missing tables"
    ),
    "STORE_REPLACED": "restart the service, then check whether it was done",
    "STORE_DAMAGED": _DOCTOR,
    "STORE_READ_ONLY": "let this user write to the file and its folder",
    "STORE_FORMAT": "run 'pricekeeper migrate', or use the version that wrote the store",
    "STORE_UNAVAILABLE": _DOCTOR,
    "STORE_FULL": "free some space on its disk, then try again",
    "STORE_THROTTLED": _AGAIN,
    "STORE_CONTENDED": _AGAIN,
    "STORE_CLOSED": _AGAIN,
    "CONDITION_FAILED": _BUG,
    "TRANSACTION_CANCELLED": _BUG,
    "INVALID_OPERATION": _BUG,
    "METHOD_NOT_ALLOWED": "check --url: another service may be there",
    "PAYLOAD_TOO_LARGE": "split it into smaller requests",
    "INTERNAL": "look for the request's id in the log of the service",
}
"""For each code, unless the error has a better one."""

_Found = TypeVar("_Found")


class MisusedError(PriceKeeperError):
    """The command line, or a file that it names, is wrong."""

    code = "USAGE"


class RefusedError(PriceKeeperError):
    """Credentials are missing or foreign; the service was not asked."""

    code = "UNAUTHORIZED"


def exit_code(error: PriceKeeperError) -> int:
    """The exit code of an error, raised here or by a service."""
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
    """The answer; ``None`` if not found."""
    try:
        return await asked
    except PriceKeeperError as error:
        if exit_code(error) == NOT_FOUND:
            return None
        raise


@contextmanager
def hint_if_missing(hint: str) -> Iterator[None]:
    """Hint at a "not found" error of the block; an empty hint is none."""
    try:
        yield
    except PriceKeeperError as error:
        if hint and exit_code(error) == NOT_FOUND:
            error.add_note(hint)
        raise


def tell(error: PriceKeeperError, console: Console) -> None:
    """Print the code, what happened, and what to do next."""
    line = Text.assemble((_one_line(error.code), "bold red"), " ", _one_line(str(error)))
    if fix := fix_of(error):
        line.append(f"; {_one_line(fix)}", "dim")
    console.print(line, soft_wrap=True, highlight=False)


def tell_unknown_settings(console: Console) -> None:
    """Warn about misspelt settings in the environment."""
    for warning in unknown_settings(os.environ):
        console.print(
            Text.assemble(("WARNING", "bold yellow"), " ", _one_line(warning)), soft_wrap=True
        )


def _one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def fix_of(error: PriceKeeperError) -> str:
    """The next step, from a hint, the details or the code."""
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
