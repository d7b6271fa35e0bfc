"""One failure for several callers: each of them raises an error of its own."""

from __future__ import annotations

import copy
from typing import TypeVar

from pricekeeper.errors import PriceKeeperError

E = TypeVar("E", bound=BaseException)


def error_copy(error: E) -> E:
    """The same error for one more caller, with a traceback of its own.

    An error of this package is made without its ``__init__``, which may want other arguments than
    it hands on. An error of another make that refuses to be copied is shared.
    """
    if isinstance(error, PriceKeeperError):
        copied = type(error).__new__(type(error), *error.args)
        copied.__dict__.update(error.__dict__)
        return copied
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - whatever its own __init__ says to its arguments
        return error
