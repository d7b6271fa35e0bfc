"""Makes answers from the values of features: the same names, times as text, money rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import fields

from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.wire.values import rfc3339

S = TypeVar("S", bound=Struct)


def describe(kind: type[S], value: object, /, **stated: Any) -> S:
    """An answer with the stated fields, and the others from attributes of a value.

    A time is the attribute with ``_ms`` or ``_epoch`` behind its name, money the one in
    ``_usd_picos``. ``None`` is left out where the answer may lack the field.
    """
    for name, may_lack in _fields(kind):
        if name not in stated:
            for attribute, shown in _sources(name):
                if hasattr(value, attribute):
                    found = getattr(value, attribute)
                    stated[name] = None if found is None else shown(found)
                    break
        if may_lack and stated.get(name, UNSET) is None:
            stated[name] = UNSET
    return kind(**stated)


def moment(epoch: int) -> str:
    """A time in seconds since the epoch as RFC 3339 text."""
    return rfc3339(epoch * 1000)


def micros_up(usd_picos: int) -> int:
    """Rounded up: for held, unsettled and needed amounts."""
    return -(-usd_picos // PICOS_PER_MICRO)


def micros_down(usd_picos: int) -> int:
    """Rounded down: for spent and remaining amounts."""
    return usd_picos // PICOS_PER_MICRO


@cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, bool], ...]:
    """The fields of an answer, and whether it may lack them."""
    return tuple((one.name, one.default is UNSET) for one in fields(kind))


@cache
def _sources(name: str) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """The attributes that may have a field's value, each with how it is shown."""

    def listed() -> Iterator[tuple[str, Callable[[Any], Any]]]:
        yield name, lambda found: found
        yield f"{name}_ms", rfc3339
        yield f"{name}_epoch", moment
        if name.endswith("_usd_micros"):
            is_up = name.startswith(("held", "unsettled"))
            picos = f"{name.removesuffix('micros')}picos"
            yield picos, micros_up if is_up else micros_down
        if name == "model_label":
            yield "label", str

    return tuple(listed())
