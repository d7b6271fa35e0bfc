"""A webhook on loopback in a thread, for tests that talk to a server in another process."""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from http_handler import Handler, serving


@dataclass(frozen=True)
class Posted:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 200
    """The answer sent."""

    @property
    def json(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.body)
        return made


@dataclass
class Hook:
    """Where alerts are posted to."""

    url: str
    status: int = 200
    requests: list[Posted] = field(default_factory=list)
    before_answer: Callable[[], None] = lambda: None
    """Called after a request was read, while its sender waits."""


@contextmanager
def running_hook() -> Iterator[Hook]:
    """Serve until the end of the block."""

    class Takes(Handler):
        def answer(self) -> None:
            taken = Posted(self.path, *self.read(), hook.status)
            hook.requests.append(taken)
            hook.before_answer()
            with contextlib.suppress(OSError):  # the sender may be dead
                self.reply(taken.status)

    with serving(Takes) as url:
        hook = Hook(f"{url}/a-secret-path")
        yield hook
