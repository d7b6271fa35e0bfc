"""Sends alerts as mails, through the mail server of a channel.

``Message-ID`` is the same for every attempt, so mail programs show one mail. Refused recipients are
left out if the server accepts any. `smtplib` blocks, so it runs in a thread. Unused replies from
before TLS are dropped (RFC 3207). A server without TLS gets a mail only where that is allowed.
Bound: `REPLY_BYTES_MAX` of replies before TLS, and after.
"""

from __future__ import annotations

import asyncio
import base64
import smtplib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

import structlog

from pricekeeper.alerts.addresses import PORTS, Guard, GuardedResolver
from pricekeeper.alerts.alert import parse_body, plain_words, unlinked
from pricekeeper.alerts.channel import ChannelAddress
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.webhook import ATTEMPT_SECS, CONNECTIONS_MAX, one_attempt
from pricekeeper.clock import Clock
from pricekeeper.errors import DeliveryError

REPLY_BYTES_MAX: Final = 64 * 1024
_OK: Final = 2
_GO_ON: Final = 3
_PERMANENT: Final = 5
_WHEN: Final = {
    smtplib.SMTPConnectError: "greeted us",
    smtplib.SMTPDataError: "was asked to take the mail",
}
"""Where `smtplib` itself refuses a reply; otherwise at STARTTLS."""

_log = structlog.get_logger(__name__)


class Mail:
    """Sends alerts as mails."""

    def __init__(self, guard: Guard, clock: Clock, trust: ssl.SSLContext | None = None) -> None:
        self._guard = guard
        self._clock = clock
        self._resolver = GuardedResolver(guard)
        self._given_trust = trust
        # Own threads, so that a silent server blocks no other work.
        self._threads = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="pricekeeper-mail")

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        # Lazy: reading the machine's certificates is the slowest part of a start.
        return self._given_trust or ssl.create_default_context()

    async def send(self, channel: OpenChannel, alert_id: str, body: bytes) -> None:
        content = mail_of(channel.address, alert_id, body, self._clock.now_ms() // 1000)
        async with one_attempt():
            server = self._guard.check_mail_server(channel.address.url)
            refused = await self._send(server, channel.address, content)
        if refused:
            name = channel.channel.name
            _log.warning("alert_recipients_refused", channel=name, alert_id=alert_id, count=refused)

    async def close(self) -> None:
        """Start no more sessions; those under way end with the tasks that wait for them."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, parts: SplitResult, address: ChannelAddress, content: bytes) -> int:
        host = parts.hostname or ""
        port = parts.port or PORTS[parts.scheme]
        found = (await self._resolver.resolve(host, port))[0]
        server = SmtpServer(
            host, self._trust, parts.scheme == "smtps", not self._guard.allows_plain(host)
        )

        connection = socket.socket(found["family"], socket.SOCK_STREAM)
        job = None
        try:
            connection.setblocking(False)  # noqa: FBT003 - its own signature
            await asyncio.get_running_loop().sock_connect(connection, (found["host"], port))
            with connection.dup() as lever:
                connection.settimeout(ATTEMPT_SECS)
                job = self._threads.submit(send_mail, connection, server, address, content)
                try:
                    return await asyncio.wrap_future(job)
                finally:
                    with suppress(OSError):
                        lever.shutdown(socket.SHUT_RDWR)  # ends a thread that still runs
        finally:
            if job is None or job.cancel():  # otherwise the thread closes it
                connection.close()


def mail_of(address: ChannelAddress, alert_id: str, body: bytes, now_epoch: int) -> bytes:
    """An alert as a mail of plain ASCII lines; no text can become a header."""
    alert = parse_body(body)
    mail = EmailMessage(policy=SMTP)
    mail["From"] = address.sender
    mail["To"] = ", ".join(address.recipients)
    mail["Subject"] = " ".join(alert.shown("title", unlinked).split())
    mail["Date"] = formatdate(now_epoch)
    mail["Message-ID"] = f"<{alert_id}@{address.sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{plain_words(alert)}\n", cte="quoted-printable")
    return bytes(mail)


class SmtpServer(NamedTuple):
    """A mail server."""

    host: str
    trust: ssl.SSLContext
    is_tls: bool
    """TLS from the first byte, without STARTTLS."""
    needs_tls: bool


def send_mail(
    connection: socket.socket, server: SmtpServer, address: ChannelAddress, content: bytes
) -> int:
    """Send a mail, and close the connection; returns the number of refused recipients.

    The lines of ``content`` end with CRLF.
    """
    with closing(connection):
        try:
            if server.is_tls:
                connection = server.trust.wrap_socket(connection, server_hostname=server.host)
            with closing(_Session(connection, server.host)) as session:
                _begin(session, server)
                if address.user:
                    _log_in(session, address.user, address.secret)
                return _send(session, address, content)
        except smtplib.SMTPServerDisconnected as error:
            raise DeliveryError("the mail server broke off the session") from error
        except smtplib.SMTPResponseException as error:
            when = _WHEN.get(type(error), "was asked for TLS")
            raise _refusal(error.smtp_code, when) from error


class _Session(smtplib.SMTP):
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
    """The lines of a server. They end at the bound, and at an incomplete line."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = REPLY_BYTES_MAX
        self.close = file.close

    def readline(self, size: int) -> bytes:
        line: bytes = self._file.readline(min(size, self._left))
        self._left -= len(line)
        return line if line.endswith(b"\n") else b""


def _begin(session: _Session, server: SmtpServer) -> None:
    _require(session.ehlo(), "was greeted")
    if server.is_tls:
        return
    if session.has_extn("starttls"):
        session.starttls(context=server.trust)
        _require(session.ehlo(), "was greeted")
    elif server.needs_tls:
        raise DeliveryError("the mail server offers no TLS")


def _log_in(session: _Session, user: str, password: str) -> None:
    """`smtplib` itself takes ASCII passwords only."""
    methods = session.esmtp_features.get("auth", "").upper().split()
    if "PLAIN" in methods:
        plain = _base64(f"\0{user}\0{password}")
        _require(session.docmd("AUTH", f"PLAIN {plain}"), "got the password")
    elif "LOGIN" in methods:
        _require(session.docmd("AUTH", "LOGIN"), "was asked to log in", _GO_ON)
        _require(session.docmd(_base64(user)), "got the user", _GO_ON)
        _require(session.docmd(_base64(password)), "got the password")
    else:
        raise DeliveryError("the mail server takes no password (AUTH PLAIN or LOGIN)")


def _send(session: _Session, address: ChannelAddress, content: bytes) -> int:
    _require(session.mail(address.sender), "got the sender")
    asked = [session.rcpt(one)[0] for one in address.recipients]
    refused = sum(code // 100 != _OK for code in asked)
    if refused == len(asked):
        raise _refusal(asked[0], "got the recipients", may_refuse=True)
    _require(session.data(content), "got the mail", may_refuse=True)
    with suppress(OSError):  # the mail is accepted, so the answer does not matter
        session.putcmd("quit")
    return refused


def _require(
    reply: tuple[int, bytes], when: str, expected: int = _OK, *, may_refuse: bool = False
) -> None:
    """Raise unless the reply is of the expected kind. Its text is not trusted, so never shown."""
    if reply[0] // 100 != expected:
        raise _refusal(reply[0], when, may_refuse=may_refuse)


def _refusal(code: int, when: str, *, may_refuse: bool = False) -> DeliveryError:
    if code < 0:
        return DeliveryError("the mail server does not speak SMTP")
    is_refused = may_refuse and code // 100 == _PERMANENT
    return DeliveryError(f"the mail server answered {code} when it {when}", is_refused=is_refused)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
