"""A real SMTP server on loopback that takes mails, and does with them what a test says."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

USER, PASSWORD = "alerts", "a-password-of-the-mail-server"


@dataclass(frozen=True)
class TakenMail:
    """One mail, as it came."""

    sender: str
    recipients: tuple[str, ...]
    content: bytes
    was_encrypted: bool
    user: str | None

    @property
    def parsed(self) -> EmailMessage:
        return message_from_bytes(self.content, policy=default)


@dataclass
class MailServer:
    """What it offers, what it answers to, and what it has taken."""

    trust: ssl.SSLContext | None = None
    auth: str = "PLAIN LOGIN"
    answers: dict[str, str] = field(default_factory=dict)
    """What is answered to a line that begins so, in capitals, instead."""
    before_tls: str = ""
    """What is said behind the 220 of STARTTLS, still in plain text."""
    port: int = 0
    mails: list[TakenMail] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _serving: set[asyncio.Task[None] | None] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(task := asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._converse(reader, writer)
        writer.transport.abort()
        self._serving.discard(task)

    async def finish(self) -> None:
        """Wait until everybody has left."""
        await asyncio.gather(*(one for one in self._serving if one is not None))

    async def _converse(  # noqa: C901, PLR0912, PLR0915 - one branch for each command
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sender, recipients, user = "", list[str](), None

        async def read() -> str:
            line = (await reader.readuntil(b"\r\n")).decode().removesuffix("\r\n")
            self.lines.append(line)
            return line

        async def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())
            await writer.drain()

        await say("220 mail.test ESMTP")
        while True:
            line = await read()
            word = line.upper().split(":")[0]
            told = [
                text for begins, text in self.answers.items() if line.upper().startswith(begins)
            ]
            is_encrypted = writer.get_extra_info("ssl_object") is not None
            if told:
                await say(told[0])
            elif word.startswith("EHLO"):
                offers = ["SIZE 1000000", *([f"AUTH {self.auth}"] if self.auth else [])]
                if self.trust is not None and not is_encrypted:
                    offers.append("STARTTLS")
                told = ["mail.test", *offers]
                for number, one in enumerate(told, 1):
                    await say(f"250{' ' if number == len(told) else '-'}{one}")
            elif word == "STARTTLS" and self.trust is not None:
                await say("220 ready" + self.before_tls)
                await writer.start_tls(self.trust)
            elif word.startswith("AUTH"):
                if word == "AUTH LOGIN":
                    await say("334 VXNlcm5hbWU6")
                    user = base64.b64decode(await read()).decode()
                    await say("334 UGFzc3dvcmQ6")
                    password = base64.b64decode(await read()).decode()
                else:
                    plain = base64.b64decode(line.split()[2]).decode()
                    _, user, password = plain.split("\0")
                is_right = (user, password) == (USER, PASSWORD)
                await say("235 welcome" if is_right else f"535 {password} is wrong")
            elif word == "MAIL FROM":
                sender, recipients = line[11:-1], []
                await say("250 ok")
            elif word == "RCPT TO":
                recipients.append(line[9:-1])
                await say("250 ok")
            elif word == "DATA":
                await say("354 ready")
                content = (await reader.readuntil(b"\r\n.\r\n")).removesuffix(b".\r\n")
                lines = content.split(b"\r\n")
                stuffed = [one[1:] if one.startswith(b".") else one for one in lines]
                self.mails.append(
                    TakenMail(sender, tuple(recipients), b"\r\n".join(stuffed), is_encrypted, user)
                )
                await say(self.answers.get(".", "250 taken"))
            elif word == "QUIT":
                await say("221 bye")
                return
            else:
                await say("500 what?")


@asynccontextmanager
async def open_mail_server(
    trust: ssl.SSLContext | None = None, *, is_implicit: bool = False
) -> AsyncIterator[MailServer]:
    """A server with STARTTLS, or with TLS from the first byte on, or without any."""
    mail = MailServer(None if is_implicit else trust)
    at_once = trust if is_implicit else None
    server = await asyncio.start_server(mail.serve, "127.0.0.1", 0, ssl=at_once)
    mail.port = server.sockets[0].getsockname()[1]
    try:
        yield mail
    finally:
        server.close()
        await mail.finish()
