"""Alerts as mails: a real SMTP server with TLS, and what goes wrong with one."""

import asyncio
import socket
from email import message_from_bytes
from email.policy import SMTP
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alerts.conftest import LOOPBACK
from alerts.mail_server import PASSWORD, USER, open_mail_server
from certificates import Certificate, make_certificate
from pricekeeper.alerts import Channel, ChannelKind, Guard
from pricekeeper.alerts.alert import AlertBody, encoded_body
from pricekeeper.alerts.channel import ChannelAddress
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.mail import REPLY_BYTES_MAX, Mail, SmtpServer, mail_of, send_mail
from pricekeeper.clock import ManualClock
from pricekeeper.errors import DeliveryError

ALERT = AlertBody(
    id="0192a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b",
    kind="BUDGET",
    at="2026-01-23T15:30:45Z",
    title="Ümläut & Söhne:\r\nBcc: thief@example.com 80 % is spent",
    text="$160.20 is spent.\n.\nQUIT\n..and dots",
    next="See what is left: pricekeeper budgets " + "x" * 1_000,
    about={},
)
RECIPIENTS = ("ops@example.com", "it@example.com")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("mail"), "127.0.0.1")


def channel(port: int, scheme: str = "smtp", **changes: Any) -> OpenChannel:
    fields = {"user": USER, "secret": PASSWORD, "sender": "alerts@example.com", **changes}
    url = f"{scheme}://127.0.0.1:{port}"
    address = ChannelAddress(url=url, recipients=RECIPIENTS, **fields)
    return OpenChannel(Channel("post", ChannelKind.EMAIL, ""), address)


async def send(certificate: Certificate, to: OpenChannel, guard: Guard = LOOPBACK) -> None:
    mail = Mail(guard, ManualClock(1_769_182_245_000), certificate.client)
    await mail.send(to, ALERT.id, encoded_body(ALERT))


@pytest.mark.parametrize("is_implicit", [True, False])
@pytest.mark.parametrize("auth", ["PLAIN LOGIN", "LOGIN"])
async def test_a_mail_arrives_over_tls(
    certificate: Certificate, auth: str, *, is_implicit: bool
) -> None:
    """Its words are whole, its id is the alert's, and nothing in it is a header or a command."""
    async with open_mail_server(certificate.server, is_implicit=is_implicit) as server:
        server.auth = auth
        to = channel(server.port, "smtps" if is_implicit else "smtp")
        await send(certificate, to)
        await send(certificate, to)

    assert [one.was_encrypted for one in server.mails] == [True, True]
    first, second = server.mails
    assert (first.sender, first.recipients, first.user) == ("alerts@example.com", RECIPIENTS, USER)
    parsed = first.parsed
    assert parsed["Message-ID"] == f"<{ALERT.id}@example.com>" == second.parsed["Message-ID"]
    assert parsed["Subject"] == "Ümläut & Söhne: Bcc: thief@example.com 80 % is spent"
    assert parsed["Bcc"] is None
    assert parsed["To"] == ", ".join(RECIPIENTS)
    assert parsed["Date"] == "Fri, 23 Jan 2026 15:30:45 -0000"
    words = parsed.get_content().replace("\r\n", "\n")
    assert words == f"{ALERT.text}\n\n{ALERT.next}\n\n{ALERT.id}\n"
    assert first.content.isascii()
    assert max(map(len, first.content.split(b"\r\n"))) <= 998


def test_a_foreign_name_in_the_subject_is_no_link() -> None:
    alert = msgspec.structs.replace(
        ALERT, title="80 % of www.evil.example is spent", foreign={"title": [(8, 24)]}
    )
    made = mail_of(channel(25).address, alert.id, encoded_body(alert), 1_769_182_245)
    subject = message_from_bytes(made, policy=SMTP)["Subject"]
    assert subject == "80 % of www.\u200bevil.\u200bexample is spent"


async def test_no_password_is_said_without_tls(certificate: Certificate) -> None:
    """A server that offers no TLS gets nothing, unless it is this machine and that is allowed."""
    async with open_mail_server() as server:
        to = channel(server.port)
        hidden = to._replace(
            address=ChannelAddress(
                f"smtp://localtest.me.invalid:{server.port}", PASSWORD, USER, "a@b.de", ("c@d.de",)
            )
        )
        await send(certificate, to)
        assert [one.was_encrypted for one in server.mails] == [False]
        await server.finish()
        server.lines.clear()
        with pytest.raises(DeliveryError, match="can't be reached"):
            await send(certificate, hidden)
        with pytest.raises(DeliveryError, match="public address"):
            await send(certificate, to, Guard())
    assert server.lines == []


async def test_a_certificate_that_is_not_trusted_is_refused(
    certificate: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path, "127.0.0.1")
    for is_implicit in (True, False):
        async with open_mail_server(other.server, is_implicit=is_implicit) as server:
            to = channel(server.port, "smtps" if is_implicit else "smtp")
            with pytest.raises(DeliveryError, match="its certificate is not valid"):
                await send(certificate, to)
        assert not any(line.startswith("AUTH") for line in server.lines)


@pytest.mark.parametrize(
    ("begins", "answer", "is_refused"),
    [
        ("EHLO", "421 later", False),
        ("MAIL", "451 later", False),
        ("MAIL", "550 no", False),
        ("RCPT", "450 later", False),
        ("RCPT", "550 unknown", True),
        ("DATA", "554 no", False),
        (".", "452 later", False),
        (".", "554 spam", True),
        ("AUTH", f"535 {PASSWORD}", False),
    ],
)
async def test_what_a_server_does_not_take(
    certificate: Certificate, begins: str, answer: str, *, is_refused: bool
) -> None:
    """The code is shown and not the text; a refusal of this mail does not stop others."""
    async with open_mail_server(certificate.server) as server:
        server.answers = {begins: answer}
        with pytest.raises(DeliveryError, match=f"answered {answer[:3]} ") as failed:
            await send(certificate, channel(server.port))
    assert failed.value.is_refused is is_refused
    assert PASSWORD not in str(failed.value)


async def test_who_is_not_taken_is_left_out(certificate: Certificate, capsys: Any) -> None:
    """One closed mailbox does not stop the others; the log has the number."""
    async with open_mail_server(certificate.server) as server:
        server.answers = {"RCPT TO:<IT@": "550 unknown"}
        await send(certificate, channel(server.port))
    assert [one.recipients for one in server.mails] == [("ops@example.com",)]
    assert "alert_recipients_refused" in capsys.readouterr().out


async def test_a_server_that_takes_no_password(certificate: Certificate) -> None:
    """A channel without a password sends; one with a password gets the error."""
    async with open_mail_server(certificate.server) as server:
        server.auth = ""
        with pytest.raises(DeliveryError, match="takes no password"):
            await send(certificate, channel(server.port))
        await send(certificate, channel(server.port, user="", secret=""))
    assert [one.user for one in server.mails] == [None]


@pytest.mark.parametrize(
    "babble",
    [
        b"HTTP/1.1 400 no\r\n",
        b"220-more\r\n" * REPLY_BYTES_MAX,
        b"2" * REPLY_BYTES_MAX,
        b"",
        b"220",
    ],
)
async def test_something_else_than_a_mail_server(certificate: Certificate, babble: bytes) -> None:
    """What it says is bounded, and never told."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(babble)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with pytest.raises(DeliveryError, match=r"does not speak SMTP|broke off"):
        await send(certificate, channel(server.sockets[0].getsockname()[1]))
    server.close()


async def test_a_server_elsewhere_without_tls_is_told_nothing(certificate: Certificate) -> None:
    async with open_mail_server() as server:
        connection = await asyncio.to_thread(
            socket.create_connection, ("127.0.0.1", server.port), timeout=10
        )
        there = SmtpServer("mail.test", certificate.client, is_tls=False, needs_tls=True)
        address = ChannelAddress(sender="alerts@example.com", recipients=RECIPIENTS)
        with pytest.raises(DeliveryError, match="offers no TLS"):
            await asyncio.to_thread(send_mail, connection, there, address, b"")
    assert server.lines == ["ehlo pricekeeper"]


async def test_what_is_said_before_tls_does_not_count_inside_of_it(
    certificate: Certificate,
) -> None:
    """Replies that an attacker appends to the 220 would hide the server's own."""
    injected = "250-mail.test|250 AUTH PLAIN|235 welcome|250 ok|250 ok|250 ok|354 ready|250 taken"
    async with open_mail_server(certificate.server) as server:
        server.before_tls = "\r\n" + injected.replace("|", "\r\n")
        server.answers = {".": "554 spam"}
        with pytest.raises(DeliveryError, match="answered 554"):
            await send(certificate, channel(server.port))
        server.answers = {"AUTH": "535 no"}
        with pytest.raises(DeliveryError, match="answered 535"):
            await send(certificate, channel(server.port))


async def test_a_mail_that_was_accepted_is_delivered_whatever_comes_then(
    certificate: Certificate,
) -> None:
    async with open_mail_server(certificate.server) as server:
        server.answers = {"QUIT": "421 oh"}
        await send(certificate, channel(server.port))
    assert len(server.mails) == 1


@pytest.mark.parametrize("said", [b"", b"220 mail.test\r\n", b"2"])
async def test_a_mail_that_is_given_up_leaves_no_thread_and_no_connection(
    certificate: Certificate, said: bytes
) -> None:
    """A server that says nothing more is left at once, in the middle of a reply too."""
    heard, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        heard.set()
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    mail = Mail(LOOPBACK, ManualClock(), certificate.client)
    to = channel(server.sockets[0].getsockname()[1])
    sending = asyncio.create_task(mail.send(to, ALERT.id, encoded_body(ALERT)))
    await heard.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await left.wait()
    await asyncio.to_thread(mail._threads.shutdown)
    server.close()
