"""Everything that alerts may go to, on loopback in threads: a chat, a topic, and a mail server."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from alerts.mail_server import PASSWORD, USER, MailServer, open_mail_server
from alerts.topics_server import TOPIC, TopicsStandIn, open_topics
from hook_server import Hook, running_hook

PATIENCE_SECS = 20


@dataclass(frozen=True)
class Receivers:
    """Who hears of alerts."""

    chat: Hook
    topics: TopicsStandIn
    mail: MailServer

    def of_kind(self, kind: str) -> "Receiver":
        """One of them, and what a channel of that kind is."""
        if kind == "SLACK":
            return Receiver(
                {"kind": kind, "url": self.chat.url},
                self.chat.url.removesuffix("/a-secret-path"),
                "a-secret-path",
                lambda: [one.json["text"] for one in self.chat.requests],
            )
        if kind == "SNS":
            return Receiver(
                {"kind": kind, "url": TOPIC},
                TOPIC,
                self.topics.environment["AWS_SECRET_ACCESS_KEY"],
                lambda: [one["Message"] for one in self.topics.requests],
            )
        url = f"smtp://127.0.0.1:{self.mail.port}"
        people = ["ops@example.com", "it@example.com"]
        return Receiver(
            {"kind": kind, "url": url, "user": USER, "secret": PASSWORD}
            | {"sender": "alerts@example.com", "recipients": people},
            f"{', '.join(people)} by {url}",
            PASSWORD,
            lambda: [one.parsed.get_content() for one in self.mail.mails],
        )


@dataclass(frozen=True)
class Receiver:
    """A channel of one kind, and what came there."""

    body: dict[str, Any]
    address: str
    """What people see of it."""
    secret: str
    """Takes alerts and keeps none."""
    texts: Callable[[], list[str]]


@contextmanager
def running_receivers() -> Iterator[Receivers]:
    """Serve until the end of the block."""
    loop, opened = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def open_all() -> tuple[TopicsStandIn, MailServer]:
        topics = await opened.enter_async_context(open_topics())
        return topics, await opened.enter_async_context(open_mail_server())

    try:
        with running_hook() as chat:
            begun = asyncio.run_coroutine_threadsafe(open_all(), loop)
            yield Receivers(chat, *begun.result(PATIENCE_SECS))
            asyncio.run_coroutine_threadsafe(opened.aclose(), loop).result(PATIENCE_SECS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
