"""How a client behaves: one frozen value, from arguments and the environment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, get_args
from urllib.parse import urlsplit

from pricekeeper.bedrock import MAX_OUTPUT_TOKENS
from pricekeeper.client.snapshot import is_model_id
from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.errors import InvalidValueError, SettingsError
from pricekeeper.settings import (
    CLIENT_ALLOWANCE,
    CLIENT_DEADLINE,
    CLIENT_ID,
    CLIENT_MAX_OUTPUT,
    CLIENT_ON_UNAVAILABLE,
    CLIENT_SECRET,
    CLIENT_SPOOL,
    CLIENT_UNAVAILABLE_MODELS,
    URL,
)
from pricekeeper.values import parse_app_id, parse_whole

OnUnavailable = Literal["deny", "allow", "allow-within"]
DEADLINE_MS: Final = 2_000
DEADLINE_MS_MAX: Final = 60_000
ALLOWANCE_MAX: Final = 10**15
"""A billion dollars."""


def _whole(name: str, text: str) -> int:
    found = parse_whole(text)
    if found is None:
        raise SettingsError(name, "must be a whole number of at most 18 digits")
    return found


def _pairs(name: str, text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(separator for _, separator, _ in pairs):
        raise SettingsError(name, "must be auto=ID,LABEL=ID")
    return {label.strip(): model_id.strip() for label, _, model_id in pairs}


_REQUIRED: Final = ("url", "client_id", "client_secret")
_SETTINGS: Final[Mapping[str, str]] = {
    "url": URL,
    "client_id": CLIENT_ID,
    "client_secret": CLIENT_SECRET,
    "on_unavailable": CLIENT_ON_UNAVAILABLE,
    "spool_dir": CLIENT_SPOOL,
    "deadline_ms": CLIENT_DEADLINE,
    "allowance_usd_micros": CLIENT_ALLOWANCE,
    "max_output_tokens": CLIENT_MAX_OUTPUT,
    "unavailable_models": CLIENT_UNAVAILABLE_MODELS,
}
_PARSERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "deadline_ms": _whole,
    "allowance_usd_micros": _whole,
    "max_output_tokens": _whole,
    "unavailable_models": _pairs,
}


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """Which service, which credentials, and what to do when it can't be reached."""

    url: str
    client_id: str
    client_secret: str
    app_id: str | None = None
    """The app that an organisation's credentials act for."""
    deadline_ms: int = DEADLINE_MS
    """How long a call may wait for the service."""
    on_unavailable: OnUnavailable = "deny"
    allowance_usd_micros: int | None = None
    """For ``allow-within``: spend per hour while the service can't be reached."""
    spool_dir: str | None = None
    max_output_tokens: int = MAX_OUTPUT_TOKENS
    """The longest answer of a call that states none."""
    unavailable_models: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """For ``allow``: model ids for ``auto`` and labels before the first answer."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValueError(
                "url", f"{self.url!r} is not a URL such as http://127.0.0.1:8080"
            )
        if self.on_unavailable not in get_args(OnUnavailable):
            raise InvalidValueError("on_unavailable", "must be deny, allow or allow-within")
        if self.on_unavailable == "allow-within" and self.allowance_usd_micros is None:
            raise InvalidValueError(
                "allowance_usd_micros", "must be set: what an hour without the service may cost"
            )
        _check_range("deadline_ms", self.deadline_ms, DEADLINE_MS_MAX)
        _check_range("max_output_tokens", self.max_output_tokens, 1_000_000)
        if self.allowance_usd_micros is not None:
            _check_range("allowance_usd_micros", self.allowance_usd_micros, ALLOWANCE_MAX)
        for name, model_id in self.unavailable_models.items():
            if not (name and is_model_id(model_id)):
                raise InvalidValueError(
                    "unavailable_models", f"{model_id!r} for {name!r} is not a Bedrock model id"
                )
        self.client  # noqa: B018 - raises if it is none

    @property
    def client(self) -> Client:
        return acting_client(self.client_id, self.app_id)

    @classmethod
    def read(cls, given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Self:
        """Read arguments, and the environment for missing ones."""
        surroundings = os.environ if environment is None else environment
        values = {name: value for name, value in given.items() if value is not None}
        for field, name in _SETTINGS.items():
            text = surroundings.get(name)
            if field not in values and text:
                values[field] = _PARSERS[field](name, text) if field in _PARSERS else text
            elif field not in values and field in _REQUIRED:
                raise SettingsError(name, "must be set: it comes with the app's credentials")
        return cls(**values)

    def __repr__(self) -> str:
        return f"Configuration(url={self.url!r}, client_id={self.client_id!r})"

    def of_app(self, app_id: str) -> KeeperSettings:
        return replace(self, app_id=app_id)


def acting_client(client_id: str, app_id: str | None) -> Client:
    """The client of these credentials; an organisation's may act for an app."""
    client = parse_client_id(client_id)
    if app_id is None:
        return client
    if client.app_id not in (None, app_id):
        raise InvalidValueError("app_id", f"{client_id} is another app")
    return Client(client.org_id, parse_app_id(app_id))


def _check_range(field: str, value: int, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidValueError(field, f"must be a whole number from 1 to {most}")
