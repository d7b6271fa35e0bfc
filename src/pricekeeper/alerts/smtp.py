"""One mail to an SMTP server (RFC 5321), over TLS.

A small client on asyncio: it can be given up at any moment, and holds no thread. A server that
offers no TLS is spoken to only if it is on this machine, and that is allowed. Bounds: a line of
`LINE_BYTES_MAX`, a reply of `LINES_MAX` lines; how long it may take is the caller's.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from pricekeeper.errors import DeliveryError

LINE_BYTES_MAX: Final = 8 * 1024
LINES_MAX: Final = 100
_REPLY: Final = re.compile(rb"([2-5][0-9]{2})([ -]?)(.*)", re.DOTALL)
_PERMANENT: Final = 500
_HELLO: Final = "EHLO pricekeeper"


class SmtpReply(NamedTuple):
    """What the server said."""

    code: int
    lines: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether it goes on."""
        return self.code < 400  # noqa: PLR2004 - RFC 5321, 4.2.1


class SmtpLogin(NamedTuple):
    """Who sends."""

    user: str
    password: str


class Envelope(NamedTuple):
    """Who a mail is from, and who gets it."""

    sender: str
    recipients: Sequence[str]


class SmtpConnection:
    """A conversation with a server, from its greeting on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def begin(self, host: str, *, trust: ssl.SSLContext, needs_tls: bool) -> frozenset[str]:
        """Greet, and turn TLS on unless it is; returns what the server can do."""
        _require(await self._read(), "greeted us")
        known = await self._hello()
        if self._writer.get_extra_info("ssl_object") is not None:
            return known
        if "STARTTLS" in known:
            _require(await self._ask("STARTTLS"), "was asked for TLS")
            await self._writer.start_tls(trust, server_hostname=host)
            return await self._hello()
        if needs_tls:
            raise DeliveryError("the mail server offers no TLS")
        return known

    async def login(self, login: SmtpLogin, known: frozenset[str]) -> None:
        """Say who sends."""
        methods = next((one for one in known if one.startswith("AUTH ")), "").split()
        if "PLAIN" in methods:
            plain = _base64(f"\0{login.user}\0{login.password}")
            _require(await self._ask(f"AUTH PLAIN {plain}"), "was given the password")
        elif "LOGIN" in methods:
            _require(await self._ask("AUTH LOGIN"), "was asked to log in")
            _require(await self._ask(_base64(login.user)), "was given the user")
            _require(await self._ask(_base64(login.password)), "was given the password")
        else:
            raise DeliveryError("the mail server takes no password (AUTH PLAIN or LOGIN)")

    async def send(self, envelope: Envelope, content: bytes) -> int:
        """Send a mail to all whom the server takes; returns how many it does not.

        ``content`` has lines that end with CRLF.
        """
        _require(await self._ask(f"MAIL FROM:<{envelope.sender}>"), "was told the sender")
        asked = [await self._ask(f"RCPT TO:<{one}>") for one in envelope.recipients]
        if not any(reply.is_good for reply in asked):
            _require(asked[0], "was told the recipients", may_refuse=True)
        _require(await self._ask("DATA"), "was asked to take the mail")
        stuffed = b"\r\n" + content.removesuffix(b"\r\n")
        self._writer.write(stuffed.replace(b"\r\n.", b"\r\n..").removeprefix(b"\r\n"))
        _require(await self._ask("\r\n."), "was given the mail", may_refuse=True)
        return sum(not reply.is_good for reply in asked)

    async def close(self) -> None:
        """Leave; what was accepted is the server's."""
        with suppress(OSError, DeliveryError):
            await self._ask("QUIT")
        self._writer.close()

    def abort(self) -> None:
        """Leave at once."""
        self._writer.transport.abort()

    async def _hello(self) -> frozenset[str]:
        reply = _require(await self._ask(_HELLO), "was greeted")
        return frozenset(line.upper().strip() for line in reply.lines[1:])

    async def _ask(self, line: str) -> SmtpReply:
        self._writer.write(f"{line}\r\n".encode())
        await self._writer.drain()
        return await self._read()

    async def _read(self) -> SmtpReply:
        lines: list[str] = []
        for _ in range(LINES_MAX):
            try:
                line = await self._reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                raise DeliveryError("the mail server broke off") from error
            found = _REPLY.fullmatch(line.rstrip(b"\r\n"))
            if found is None:
                break
            lines.append(found[3].decode("ascii", "replace"))
            if found[2] != b"-":
                return SmtpReply(int(found[1]), tuple(lines))
        raise DeliveryError("the mail server does not speak SMTP")


def _require(reply: SmtpReply, when: str, *, may_refuse: bool = False) -> SmtpReply:
    """The reply, if it is a good one. Only its code is told: its text may say anything."""
    if reply.is_good:
        return reply
    is_refused = may_refuse and reply.code >= _PERMANENT
    raise DeliveryError(
        f"the mail server answered {reply.code} when it {when}", is_refused=is_refused
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
