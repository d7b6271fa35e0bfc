"""Prints the way of a request through the modules: who calls whom, and how many hops that is.

A hop is a call from one module of the package into another. A real service runs on a SQLite file
in a temporary folder, and is asked over a socket. Each request is sent twice, and the second one
is printed, so that caches are warm.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pricekeeper.cli.demo import demo_settings
from pricekeeper.client import Admin, Api
from pricekeeper.clock import SystemClock
from pricekeeper.telemetry.logs import configure_logging
from pricekeeper.testing.serving import running_service

PACKAGE: Final = "pricekeeper."
OURSELVES: Final = ("pricekeeper.client", "pricekeeper.cli")
ORG: Final[dict[str, Any]] = {
    "org_name": "Walk",
    "timezone": "Europe/Berlin",
    "quota_scope": "APP",
    "model_ordering": ["premium", "standard", "economy"],
    "quotas": {"premium": 75_000_000, "standard": 40_000_000, "economy": 10_000_000},
    "rate_limits": {
        "*": {"rpm": {"capacity": 600, "refill_amount": 600, "refill_period_ms": 60_000}}
    },
}

Step = Callable[[], Awaitable[object]]
Hop = tuple[str, str, str]
"""The module that calls, the module that is called, and the function."""


class Trace:
    """The calls of all threads that are started while it is installed, as long as it records."""

    def __init__(self) -> None:
        self._is_recording = False
        self.hops: list[Hop] = []

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call. A resumed coroutine is no new call: it is beyond its first line."""
        is_begun = frame.f_lineno > frame.f_code.co_firstlineno
        if event != "call" or not self._is_recording or is_begun:
            return
        module, caller = _module(frame), _caller(frame)
        if module and caller and caller != module:
            self.hops.append((caller, module, frame.f_code.co_name))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record until the end of the block."""
        self.hops, self._is_recording = [], True
        try:
            yield
        finally:
            self._is_recording = False


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    is_ours = name.startswith(PACKAGE) and not name.startswith(OURSELVES)
    return name.removeprefix(PACKAGE) if is_ours else ""


def _caller(frame: FrameType) -> str:
    """The nearest module of ours above a frame; empty if there is none."""
    above = frame.f_back
    while above is not None:
        if module := _module(above):
            return module
        above = above.f_back
    return ""


def show(name: str, hops: list[Hop], *, whole: bool) -> None:
    """Print one walk."""
    modules = {module for caller, called, _ in hops for module in (caller, called)}
    print(f"{name}: {len(hops)} hops through {len(modules)} modules")
    if whole:
        for caller, called, function in hops:
            print(f"  {caller} -> {called}.{function}")


async def walk(url: str, key: str, trace: Trace) -> dict[str, list[Hop]]:
    """Make an organisation, send each request twice, and return the hops of the second."""
    org_id = str(uuid.uuid4())
    async with Admin(url, key) as admin:
        await admin.put_org(org_id, ORG)
        made = await admin.put_app(org_id, "web", {"app_name": "Web"})
        claimed = await admin.claim(made["secret_retrieval"]["token"])
    client_id, secret = claimed["client_id"], claimed["client_secret"]

    walks: dict[str, list[Hop]] = {}

    async def login() -> None:
        async with Api(url, client_id, secret) as another:
            with trace.recording():
                await another.limits()

    async with Api(url, client_id, secret) as keeper:
        made_ids = [(await keeper.authorize(10, 5, model="premium")).id for _ in range(2)]
        steps: dict[str, Step] = {
            "authorize": lambda: keeper.authorize(10, 5, model="premium"),
            "capture": lambda: keeper.capture(made_ids.pop(), 10, 5),
            "model selection": lambda: keeper.select(force_check=True),
            "usage record": lambda: keeper.record("premium", input_tokens=10, output_tokens=5),
            "acquire": lambda: keeper.acquire("premium", {"rpm": 1}),
        }
        for name, step in steps.items():
            await step()
            with trace.recording():
                await step()
            walks[name] = trace.hops
    await login()
    await login()
    walks["login, and a list of limits"] = trace.hops
    return walks


def all_walks() -> dict[str, list[Hop]]:
    """Run the service and walk through it."""
    configure_logging("error")
    trace = Trace()
    threading.setprofile(trace.note)
    with tempfile.TemporaryDirectory(prefix="pricekeeper-walk-") as folder:
        settings = demo_settings(Path(folder))
        with running_service(settings, SystemClock()) as url:
            return asyncio.run(walk(url, settings.provisioning_key or "", trace))


def main() -> None:
    """Print all walks."""
    for name, hops in all_walks().items():
        show(name, hops, whole="--hops" in sys.argv[1:])
    print("to see each hop: make walk ARGS=--hops")


if __name__ == "__main__":
    main()
