"""Bedrock Price Keeper: who are you, how fast, how much, for every model call.

::

    import boto3, pricekeeper

    bedrock = pricekeeper.wrap(boto3.client("bedrock-runtime"))

What apps use is here; it is loaded when it is first asked for, because the service and the command
line need none of it.
"""

import typing

from pricekeeper.version import __version__

if typing.TYPE_CHECKING:
    from pricekeeper.client import (
        AsyncPriceKeeper,
        DeniedError,
        PriceKeeper,
        ServiceError,
        UnavailableError,
        wrap,
    )

__all__ = [
    "AsyncPriceKeeper",
    "DeniedError",
    "PriceKeeper",
    "ServiceError",
    "UnavailableError",
    "__version__",
    "wrap",
]


def __getattr__(name: str) -> typing.Any:
    if name in __all__:
        from pricekeeper import client  # noqa: PLC0415 - see the docstring

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
