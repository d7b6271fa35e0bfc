"""A channel: where alerts go, and which of them. No I/O, no clock.

What is secret about a channel (the address of a webhook, the key that signs) is its `Address`,
which is sealed where it rests; the rest may be shown.
"""

from __future__ import annotations

import base64
import binascii
import re
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from pricekeeper.alerts.addresses import Guard
from pricekeeper.alerts.alert import Kind
from pricekeeper.errors import FieldError, InvalidValueError, RequestRefusedError

CHANNELS_MAX: Final = 8
"""Of one organisation, or of the deployment."""
NAME: Final = "^[a-z0-9][a-z0-9-]{0,31}$"
SECRET_LENGTHS: Final = (16, 256)
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - how the key of a webhook begins
_SECRET_BYTES_MIN: Final = 16
_NAME: Final = re.compile(NAME)


class ChannelKind(StrEnum):
    """How a channel is reached."""

    WEBHOOK = "WEBHOOK"


class Address(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a channel is, and what it is called with. Some of it is secret."""

    url: str = ""
    secret: str = ""

    def __repr__(self) -> str:
        """Nothing of it: an address may end up in a log."""
        return "Address(...)"


class Channel(msgspec.Struct, frozen=True):
    """One channel, without its address."""

    name: str
    kind: ChannelKind
    shown: str
    """What of its address people may see."""
    kinds: tuple[Kind, ...] = ()
    """Which alerts it gets; all of them if it is empty."""
    updated_at_epoch: int = 0

    def takes(self, kind: Kind) -> bool:
        """Whether alerts of that kind go there."""
        return not self.kinds or kind in self.kinds


class ChannelRequest(msgspec.Struct, frozen=True):
    """What a channel is to be; what of its address is ``None`` stays as it is."""

    kind: ChannelKind
    url: str | None = None
    secret: str | None = None
    kinds: tuple[Kind, ...] = ()


def is_channel_name(name: str) -> bool:
    """Whether a channel may have this name, which becomes a part of keys."""
    return _NAME.fullmatch(name) is not None


def address_of(request: ChannelRequest, before: Address | None, guard: Guard) -> Address:
    """The address that is asked for, checked; raises with every mistake."""
    known = before or Address()
    address = Address(
        known.url if request.url is None else request.url,
        known.secret if request.secret is None else request.secret,
    )
    mistakes = list[FieldError]()
    if not address.url:
        mistakes.append(FieldError("url", "is required: where alerts are posted to"))
    else:
        mistakes += _url_mistakes(address.url, guard)
    mistakes += _secret_mistakes(address.secret)
    if mistakes:
        detail = ", ".join(f"{one.field}: {one.message}" for one in mistakes)
        raise RequestRefusedError(detail, tuple(mistakes))
    return address


def shown_address(address: Address) -> str:
    """What of the address people may see: where it is, and nothing that could be a secret."""
    parts = urlsplit(address.url)
    port = "" if parts.port is None else f":{parts.port}"
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def signing_key(secret: str) -> bytes:
    """The bytes that a webhook is signed with: base64 behind ``whsec_``, or any other text."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def _url_mistakes(url: str, guard: Guard) -> list[FieldError]:
    try:
        guard.check_url(url)
    except InvalidValueError as error:
        return [FieldError(error.field, error.message)]
    return []


def _secret_mistakes(secret: str) -> list[FieldError]:
    if not secret:
        message = "is required: alerts are signed with it; make one with openssl rand -hex 32"
        return [FieldError("secret", message)]
    least, most = SECRET_LENGTHS
    if not least <= len(secret) <= most or not secret.isprintable():
        message = f"must be {least} to {most} printable characters"
        return [FieldError("secret", message)]
    try:
        is_long = len(signing_key(secret)) >= _SECRET_BYTES_MIN
    except (binascii.Error, ValueError):
        is_long = False
    if not is_long:
        message = f"must be {SECRET_PREFIX} and base64 of 16 bytes or more, or any other text"
        return [FieldError("secret", message)]
    return []
