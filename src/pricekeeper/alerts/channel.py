"""Channels: where alerts go, and which of them. No I/O, no clock.

The secrets of a channel (a webhook's address, a signing key, a password) are in its
`ChannelAddress`, which is stored sealed. The rest may be shown.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from pricekeeper.alerts.addresses import Guard, server_of
from pricekeeper.alerts.alert import AlertKind
from pricekeeper.errors import FieldError, InvalidValueError, RequestRefusedError
from pricekeeper.wire.bounds import CHANNEL_NAME, CHANNEL_SECRET_LENGTHS, RECIPIENTS_MAX

CHANNELS_MAX: Final = 8
"""For each organisation, and for the deployment."""
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - how the key of a webhook begins
_SECRET_BYTES_MIN: Final = 16
TOPIC: Final = re.compile(
    r"arn:aws(?:-[a-z]{1,8}){0,2}:sns:(?P<region>[a-z]{2}(?:-[a-z]{1,12}){1,3}-[0-9]{1,2})"
    r":[0-9]{12}:[A-Za-z0-9_-]{1,256}(?P<fifo>\.fifo)?"
)
_TOPIC_EXAMPLE: Final = "arn:aws:sns:eu-central-1:123456789012:alerts"
TOPIC_NOT_LISTED: Final = "is not listed in PRICEKEEPER_ALERT_TOPICS: ask the operator to add it"
"""The service publishes with its own AWS credentials, so its operator lists the topics."""
_NAME: Final = re.compile(CHANNEL_NAME)
_MAILBOX: Final = re.compile(
    r"(?=.{3,254}\Z)[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?"
)


class ChannelKind(StrEnum):
    """How a channel is reached."""

    WEBHOOK = "WEBHOOK"
    SLACK = "SLACK"
    SNS = "SNS"
    EMAIL = "EMAIL"


_FIELDS: Final = {
    ChannelKind.WEBHOOK: ("url", "secret"),
    ChannelKind.SLACK: ("url",),
    ChannelKind.SNS: ("url",),
    ChannelKind.EMAIL: ("url", "secret", "user", "sender", "recipients"),
}
_OF_SERVER: Final = ("secret", "user")
"""Valid for the server in the URL only."""
_WHERE: Final = {
    ChannelKind.WEBHOOK: "the https address that gets the alerts",
    ChannelKind.SLACK: "the incoming webhook that Slack gave you",
    ChannelKind.SNS: "the ARN of the topic",
    ChannelKind.EMAIL: "the mail server, such as smtps://smtp.example.com",
}


class ChannelAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The address of a channel and its credentials; partly secret."""

    url: str = ""
    """Of a webhook or mail server, or the ARN of a topic."""
    secret: str = ""
    """A signing key, or the password at the mail server."""
    user: str = ""
    sender: str = ""
    recipients: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without content, because a value may end up in a log."""
        return "Address(...)"


class Channel(msgspec.Struct, frozen=True):
    """A channel without its address."""

    name: str
    kind: ChannelKind
    shown: str
    kinds: tuple[AlertKind, ...] = ()
    """Empty means all."""
    updated_at_epoch: int = 0

    def takes(self, kind: AlertKind) -> bool:
        return not self.kinds or kind in self.kinds


class ChannelRequest(msgspec.Struct, frozen=True):
    """A channel to create or change; ``None`` keeps that part of the address.

    A secret is kept only for the same server.
    """

    kind: ChannelKind
    url: str | None = None
    secret: str | None = None
    kinds: tuple[AlertKind, ...] = ()
    user: str | None = None
    sender: str | None = None
    recipients: tuple[str, ...] | None = None


def is_channel_name(name: str) -> bool:
    """Check a name, which becomes a part of keys."""
    return _NAME.fullmatch(name) is not None


def address_of(
    request: ChannelRequest, before: ChannelAddress | None, guard: Guard
) -> ChannelAddress:
    """Merge and check the requested address; raises with every mistake."""
    asked = {name: getattr(request, name) for name in ChannelAddress.__struct_fields__}
    said = {name: value for name, value in asked.items() if value is not None}
    address = msgspec.structs.replace(before or ChannelAddress(), **said)
    mistakes = [
        FieldError(name, f"is not a field of {request.kind} channels")
        for name in said
        if name not in _FIELDS[request.kind]
    ]
    if not address.url:
        mistakes.append(FieldError("url", f"is required: {_WHERE[request.kind]}"))
    else:
        bad_urls = _url_mistakes(request.kind, address.url, guard)
        mistakes += bad_urls or _unsaid(before, address.url, said)
    if request.kind is ChannelKind.WEBHOOK:
        mistakes += _secret_mistakes(address.secret)
    if request.kind is ChannelKind.EMAIL:
        mistakes += _mail_mistakes(address)
    if mistakes:
        raise RequestRefusedError.of(mistakes)
    return address


def shown_address(kind: ChannelKind, address: ChannelAddress) -> str:
    """The public part of an address."""
    if kind is ChannelKind.SNS:
        return address.url
    parts = urlsplit(address.url)
    port = "" if parts.port is None else f":{parts.port}"
    host = parts.hostname or ""
    origin = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    if kind is ChannelKind.EMAIL:
        return f"{', '.join(address.recipients)} by {origin}"
    return origin


def signing_key(secret: str) -> bytes:
    """The key that signs: base64 after ``whsec_``, or the bytes of any other text."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def _url_mistakes(kind: ChannelKind, url: str, guard: Guard) -> list[FieldError]:
    if kind is ChannelKind.SNS:
        if TOPIC.fullmatch(url) is None:
            return [FieldError("url", f"must be the ARN of a topic, such as {_TOPIC_EXAMPLE}")]
        return [] if url in guard.topics else [FieldError("url", TOPIC_NOT_LISTED)]
    try:
        if kind is ChannelKind.EMAIL:
            guard.check_mail_server(url)
        else:
            guard.check_url(url)
    except InvalidValueError as error:
        return [FieldError(error.field, error.message)]
    return []


def _unsaid(
    before: ChannelAddress | None, url: str, said: Mapping[str, object]
) -> list[FieldError]:
    """Secrets that were kept although the URL names another server.

    Otherwise an administrator could have a password sent to a server of their own.
    """
    kept = [name for name in _OF_SERVER if getattr(before, name, "") and name not in said]
    if before is None or not kept or server_of(before.url) == server_of(url):
        return []
    message = "is not kept, because url names another server: state it again"
    return [FieldError(name, message) for name in kept]


def _mail_mistakes(address: ChannelAddress) -> list[FieldError]:
    mistakes = list[FieldError]()
    if not _MAILBOX.fullmatch(address.sender):
        what = "must be" if address.sender else "is required:"
        message = f"{what} an address such as alerts@example.com"
        mistakes.append(FieldError("sender", message))
    if not 1 <= len(address.recipients) <= RECIPIENTS_MAX:
        mistakes.append(FieldError("recipients", f"must be 1 to {RECIPIENTS_MAX} addresses"))
    for number, one in enumerate(address.recipients):
        if not _MAILBOX.fullmatch(one):
            message = "must be an address such as ops@example.com"
            mistakes.append(FieldError(f"recipients[{number}]", message))
    if bool(address.user) != bool(address.secret):
        mistakes.append(FieldError("user", "and secret go together: set both, or neither"))
    if not (address.user + address.secret).isprintable():
        mistakes.append(FieldError("secret", "must be printable characters"))
    return mistakes


def _secret_mistakes(secret: str) -> list[FieldError]:
    if not secret:
        message = "is required, because it signs the alerts: make one with openssl rand -hex 32"
        return [FieldError("secret", message)]
    least, most = CHANNEL_SECRET_LENGTHS
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
