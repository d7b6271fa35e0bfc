"""One mail over the standard library's SMTP client, which blocks: it is called in a thread.

`smtplib` drops what it has read but not used when TLS begins (RFC 3207), so nothing that was said
before TLS counts inside of it. A server that offers no TLS gets a mail only where that is allowed.
Bound: `REPLY_BYTES_MAX` of what a server says before TLS, and after. Shutting the connection down
ends the call at once.
"""

from __future__ import annotations

import base64
import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

from pricekeeper.errors import DeliveryError

REPLY_BYTES_MAX: Final = 64 * 1024
_OK: Final = 2
_GO_ON: Final = 3
_PERMANENT: Final = 5
_WHEN: Final = {
    smtplib.SMTPConnectError: "greeted us",
    smtplib.SMTPDataError: "was asked to take the mail",
}
"""At what `smtplib` itself refuses a reply; otherwise it is at STARTTLS."""


class SmtpServer(NamedTuple):
    """Who gets the mail, and how it is reached."""

    host: str
    trust: ssl.SSLContext
    is_tls: bool
    """Whether the connection begins with TLS."""
    needs_tls: bool


class SmtpLogin(NamedTuple):
    """Who sends."""

    user: str
    password: str


class Envelope(NamedTuple):
    """Who a mail is from, and who gets it."""

    sender: str
    recipients: Sequence[str]


def send_mail(
    connection: socket.socket,
    server: SmtpServer,
    login: SmtpLogin | None,
    envelope: Envelope,
    content: bytes,
) -> int:
    """Send a mail to all recipients that the server accepts; returns how many it refuses.

    ``content`` has lines that end with CRLF. The connection is closed.
    """
    with closing(connection):
        try:
            if server.is_tls:
                connection = server.trust.wrap_socket(connection, server_hostname=server.host)
            with closing(_Session(connection, server.host)) as session:
                _begin(session, server)
                if login is not None:
                    _log_in(session, login)
                return _send(session, envelope, content)
        except smtplib.SMTPServerDisconnected as error:
            raise DeliveryError("the mail server broke off") from error
        except smtplib.SMTPResponseException as error:
            when = _WHEN.get(type(error), "was asked for TLS")
            raise _refusal(error.smtp_code, when) from error


class _Session(smtplib.SMTP):
    """A session on a connection that was made before, to an address that is allowed."""

    def __init__(self, connection: socket.socket, host: str) -> None:
        self._connection = connection
        super().__init__(host, local_hostname="pricekeeper")

    def _get_socket(self, *_: object) -> socket.socket:
        return self._connection

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Replies(self.sock.makefile("rb"))
        return super().getreply()


class _Replies:
    """The lines of a server; beyond the bound, and at half a line, they end."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = REPLY_BYTES_MAX
        self.close = file.close

    def readline(self, size: int) -> bytes:
        line: bytes = self._file.readline(min(size, self._left))
        self._left -= len(line)
        return line if line.endswith(b"\n") else b""


def _begin(session: _Session, server: SmtpServer) -> None:
    """Greet, and turn TLS on unless it is on."""
    _require(session.ehlo(), "was greeted")
    if server.is_tls:
        return
    if session.has_extn("starttls"):
        session.starttls(context=server.trust)
        _require(session.ehlo(), "was greeted")
    elif server.needs_tls:
        raise DeliveryError("the mail server offers no TLS")


def _log_in(session: _Session, login: SmtpLogin) -> None:
    """Say who sends. `smtplib` itself takes no password beyond ASCII."""
    methods = session.esmtp_features.get("auth", "").upper().split()
    if "PLAIN" in methods:
        plain = _base64(f"\0{login.user}\0{login.password}")
        _require(session.docmd("AUTH", f"PLAIN {plain}"), "was given the password")
    elif "LOGIN" in methods:
        _require(session.docmd("AUTH", "LOGIN"), "was asked to log in", _GO_ON)
        _require(session.docmd(_base64(login.user)), "was given the user", _GO_ON)
        _require(session.docmd(_base64(login.password)), "was given the password")
    else:
        raise DeliveryError("the mail server takes no password (AUTH PLAIN or LOGIN)")


def _send(session: _Session, envelope: Envelope, content: bytes) -> int:
    _require(session.mail(envelope.sender), "was told the sender")
    asked = [session.rcpt(one)[0] for one in envelope.recipients]
    refused = sum(code // 100 != _OK for code in asked)
    if refused == len(asked):
        raise _refusal(asked[0], "was told the recipients", may_refuse=True)
    _require(session.data(content), "was given the mail", may_refuse=True)
    with suppress(OSError):  # the mail is accepted, so the answer does not matter
        session.putcmd("quit")
    return refused


def _require(
    reply: tuple[int, bytes], when: str, expected: int = _OK, *, may_refuse: bool = False
) -> None:
    """Raise unless the reply is of the expected kind. Its text may say anything: it is not told."""
    if reply[0] // 100 != expected:
        raise _refusal(reply[0], when, may_refuse=may_refuse)


def _refusal(code: int, when: str, *, may_refuse: bool = False) -> DeliveryError:
    if code < 0:
        return DeliveryError("the mail server does not speak SMTP")
    is_refused = may_refuse and code // 100 == _PERMANENT
    return DeliveryError(f"the mail server answered {code} when it {when}", is_refused=is_refused)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
