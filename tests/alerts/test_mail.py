"""Alerts as mails: a real SMTP server with TLS, and what goes wrong with one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from alerts.conftest import LOOPBACK
from alerts.mail_server import PASSWORD, USER, open_mail_server
from certificates import Certificate, make_certificate
from pricekeeper.alerts import Channel, ChannelKind, Guard
from pricekeeper.alerts.body import AlertBody, encoded_body
from pricekeeper.alerts.channel import ChannelAddress
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.mail import Mail
from pricekeeper.alerts.smtp import LINE_BYTES_MAX, SmtpConnection
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
        server.lines.clear()
        with pytest.raises(DeliveryError, match="can't be reached"):
            await send(certificate, hidden)
        with pytest.raises(DeliveryError, match="inside of a network"):
            await send(certificate, to, Guard())
    assert server.lines == []


async def test_a_certificate_that_is_not_trusted_is_refused(
    certificate: Certificate, tmp_path: Path
) -> None:
    """Nobody in between reads the password."""
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
        ("RCPT", "550 nobody", True),
        ("DATA", "554 no", False),
        (".", "452 later", False),
        (".", "554 spam", True),
        ("AUTH", f"535 {PASSWORD}", False),
    ],
)
async def test_what_a_server_does_not_take(
    certificate: Certificate, begins: str, answer: str, *, is_refused: bool
) -> None:
    """The code is told and not the text; what concerns this mail alone does not stop others."""
    async with open_mail_server(certificate.server) as server:
        server.answers = {begins: answer}
        with pytest.raises(DeliveryError, match=f"answered {answer[:3]} ") as failed:
            await send(certificate, channel(server.port))
    assert failed.value.is_refused is is_refused
    assert PASSWORD not in str(failed.value)


async def test_who_is_not_taken_is_left_out(certificate: Certificate, capsys: Any) -> None:
    """One closed mailbox keeps nobody else from being told; the log says how many."""
    async with open_mail_server(certificate.server) as server:
        server.answers = {"RCPT TO:<it@": "550 nobody"}
        await send(certificate, channel(server.port))
    assert [one.recipients for one in server.mails] == [("ops@example.com",)]
    assert "alert_recipients_refused" in capsys.readouterr().out


async def test_a_server_that_takes_no_password(certificate: Certificate) -> None:
    """Who sends without one sends; who has one is told."""
    async with open_mail_server(certificate.server) as server:
        server.auth = ""
        with pytest.raises(DeliveryError, match="takes no password"):
            await send(certificate, channel(server.port))
        await send(certificate, channel(server.port, user="", secret=""))
    assert [one.user for one in server.mails] == [None]


@pytest.mark.parametrize(
    "babble", [b"HTTP/1.1 400 no\r\n", b"220-more\r\n" * 200, b"2" * LINE_BYTES_MAX * 3, b""]
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
    """After the greeting we leave."""
    async with open_mail_server() as server:
        connection = SmtpConnection(*await asyncio.open_connection("127.0.0.1", server.port))
        try:
            with pytest.raises(DeliveryError, match="offers no TLS"):
                await connection.begin("mail.test", trust=certificate.client, needs_tls=True)
        finally:
            connection.abort()
    assert server.lines == ["EHLO pricekeeper"]
