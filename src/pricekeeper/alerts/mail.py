"""Alerts as mails, through the mail server that a channel names.

``Message-ID`` is made of the alert's id, the same for every attempt: mail programs show one mail.
Whom the server does not take is left out, as long as it takes anybody, and the log says how many.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from functools import cached_property
from urllib.parse import SplitResult

import structlog

from pricekeeper.alerts.addresses import PORTS, Guard, GuardedResolver
from pricekeeper.alerts.body import parse_body, plain_words
from pricekeeper.alerts.channel import ChannelAddress
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.parts import unlinked
from pricekeeper.alerts.smtp import Envelope, SmtpLogin, SmtpServer, send_mail
from pricekeeper.alerts.webhook import ATTEMPT_SECS, CONNECTIONS_MAX
from pricekeeper.clock import Clock
from pricekeeper.errors import DeliveryError, InvalidValueError

_log = structlog.get_logger(__name__)


class Mail:
    """Sends alerts as mails."""

    def __init__(self, guard: Guard, clock: Clock, trust: ssl.SSLContext | None = None) -> None:
        """``trust`` is what the certificates of servers are checked with."""
        self._guard = guard
        self._clock = clock
        self._resolver = GuardedResolver(guard)
        self._given_trust = trust
        # Threads of its own: a server that says nothing keeps no thread of others.
        self._threads = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="pricekeeper-mail")

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        # Reading the machine's certificates takes longer than all else that a service opens.
        return self._given_trust or ssl.create_default_context()

    async def send(self, channel: OpenChannel, alert_id: str, body: bytes) -> None:
        """Send an alert; raises `DeliveryError` if it was not accepted."""
        content = mail_of(channel.address, alert_id, body, self._clock.now_ms() // 1000)
        try:
            server = self._guard.check_mail_server(channel.address.url)
            async with asyncio.timeout(ATTEMPT_SECS):
                refused = await self._send(server, channel.address, content)
        except InvalidValueError as error:  # what was allowed once may be allowed no more
            raise DeliveryError(error.message, is_refused=True) from error
        except TimeoutError as error:
            raise DeliveryError(f"did not answer within {ATTEMPT_SECS} s") from error
        except ssl.SSLCertVerificationError as error:
            raise DeliveryError("its certificate is not valid") from error
        except OSError as error:
            raise DeliveryError("can't be reached, or its address is not allowed") from error
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
        login = SmtpLogin(address.user, address.secret) if address.user else None
        envelope = Envelope(address.sender, address.recipients)
        connection = socket.socket(found["family"], socket.SOCK_STREAM)
        job = None
        try:
            connection.setblocking(False)  # noqa: FBT003 - its own signature
            await asyncio.get_running_loop().sock_connect(connection, (found["host"], port))
            with connection.dup() as lever:
                connection.settimeout(ATTEMPT_SECS)
                job = self._threads.submit(send_mail, connection, server, login, envelope, content)
                try:
                    return await asyncio.wrap_future(job)
                finally:
                    with suppress(OSError):  # closed by the server
                        lever.shutdown(socket.SHUT_RDWR)  # a thread that still runs ends by it
        finally:
            if job is None or job.cancel():  # otherwise the thread closes it
                connection.close()


def mail_of(address: ChannelAddress, alert_id: str, body: bytes, now_epoch: int) -> bytes:
    """An alert as a mail of plain ASCII lines; what it says can't become a header."""
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
