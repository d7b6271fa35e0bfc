"""What a Bedrock ``modelId`` says about the price: the model, and which of two rates.

Bedrock accepts many spellings of one model: the foundation model's id, an inference profile
with a geographic prefix, and ARNs of both. A geographic prefix bills the rate of the region
that was called, so it says nothing; ``global.`` has a rate of its own, so it does. Everything
else (an application profile, a provisioned or custom model, a prompt, a router) names a model
only to whoever may ask AWS, and is opaque here.
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
    """Which of a model's two rates applies."""

    REGIONAL = "regional"
    GLOBAL = "global"


class ModelRef(msgspec.Struct, frozen=True):
    """A model and the rate it is billed at, whatever way it was spelled."""

    base: str
    scope: RateScope = RateScope.REGIONAL
    geography: str = ""

    @property
    def prefix(self) -> str:
        """What stood before the model's own id, without its dot; empty if nothing did."""
        return _GLOBAL if self.scope is RateScope.GLOBAL else self.geography

    def same_rate(self, other: ModelRef) -> bool:
        """Whether both are billed alike, as far as their ids can tell."""
        return self.base == other.base and self.scope is other.scope


class OpaqueId(msgspec.Struct, frozen=True):
    """An id that does not say which model it is; ``kind`` is what it is instead."""

    kind: str


def normalise_model_id(text: str) -> ModelRef | OpaqueId:
    """The model that an id or ARN names, or that it names none."""
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
    """The region that an ARN names; empty if it names none, or if the text is no ARN."""
    if len(text) > MODEL_ID_LENGTH_MAX:
        return ""
    arn = _ARN.fullmatch(text)
    return arn["region"] if arn else ""
