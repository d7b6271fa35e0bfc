"""Reads from a Bedrock ``modelId`` what decides the price: the model, and one of two rates.

A model has an id, inference profiles with a geographic prefix, and ARNs of both. A geographic
prefix bills the called region's rate, so only ``global.`` matters. Other ids (application profiles,
provisioned or custom models, prompts, routers) are opaque here.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

GEOGRAPHIES: Final = ("us", "eu", "apac", "au", "jp", "in", "us-gov")
MODEL_ID_LENGTH_MAX: Final = 2048
_REMEMBERED_MAX: Final = 1_024

_GLOBAL: Final = "global"
_PREFIXED: Final = re.compile(rf"({'|'.join((*GEOGRAPHIES, _GLOBAL))})\.(?=[^.]+\.)")
_MODEL_ID: Final = re.compile(r"[a-z0-9-]+\.[a-z0-9][a-z0-9._:-]*")
_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:(?P<service>[a-z]+):(?P<region>[^:]*):[^:]*:(?P<kind>[^/]+)/(?P<id>.+)"
)
_TELLING_KINDS: Final = frozenset({"foundation-model", "inference-profile"})


class RateScope(StrEnum):
    """The two rates of a model."""

    REGIONAL = "regional"
    GLOBAL = "global"


class ModelRef(msgspec.Struct, frozen=True):
    """A model and its rate, independent of the spelling."""

    base: str
    scope: RateScope = RateScope.REGIONAL
    geography: str = ""

    @property
    def prefix(self) -> str:
        return _GLOBAL if self.scope is RateScope.GLOBAL else self.geography

    def same_rate(self, other: ModelRef) -> bool:
        """Whether both are billed alike, as far as their ids show."""
        return self.base == other.base and self.scope is other.scope


class OpaqueId(msgspec.Struct, frozen=True):
    """An id that does not name its model; ``kind`` says what it names."""

    kind: str


def normalise_model_id(text: str) -> ModelRef | OpaqueId:
    """The model that an id or ARN names, or an opaque id."""
    if len(text) > MODEL_ID_LENGTH_MAX:
        return OpaqueId("an overlong id")
    return _normalise(text)


@lru_cache(maxsize=_REMEMBERED_MAX)
def _normalise(text: str) -> ModelRef | OpaqueId:
    if arn := _ARN.fullmatch(text):
        if arn["service"] != "bedrock" or arn["kind"] not in _TELLING_KINDS:
            return OpaqueId(f"{arn['service']} {arn['kind']}")
        text = arn["id"]
    prefix = ""
    if prefixed := _PREFIXED.match(text):
        prefix, text = prefixed[1], text[prefixed.end() :]
    if not _MODEL_ID.fullmatch(text):
        return OpaqueId("no model id")
    if prefix == _GLOBAL:
        return ModelRef(text, RateScope.GLOBAL)
    return ModelRef(text, geography=prefix)


def arn_region(text: str) -> str:
    """The region in an ARN, or empty."""
    if len(text) > MODEL_ID_LENGTH_MAX:
        return ""
    arn = _ARN.fullmatch(text)
    return arn["region"] if arn else ""
