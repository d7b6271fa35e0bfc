"""Checks of ``doctor --url``: a service as its clients see it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

import aiohttp

from pricekeeper.cli.backends import Where
from pricekeeper.cli.checks import SKEW_MS_MAX, clock_check
from pricekeeper.cli.checks_secrets import read_served_secrets
from pricekeeper.cli.doctor import Checked
from pricekeeper.cli.drawing import plain
from pricekeeper.client import Admin, Api, ServiceError
from pricekeeper.clock import SystemClock
from pricekeeper.errors import PriceKeeperError
from pricekeeper.http.health import CLOCK_IN_DOUBT
from pricekeeper.settings import PROVISIONING_KEY, unknown_settings
from pricekeeper.tenants import parse_client_id

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)


async def check_service(target: Where, url: str) -> AsyncIterator[Checked]:
    """Check that it answers, is ready, accepts the credentials, and has the same time."""
    base, clock = url.rstrip("/"), SystemClock()
    for text in unknown_settings(os.environ):
        yield Checked("settings", "WARN", text, "correct its name, or unset it")
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            async with session.get(f"{base}/healthz") as health:
                skew_ms = _skew_ms(health.headers.get("Date"), clock.now_ms())
            async with session.get(f"{base}/readyz") as ready:
                text = (await ready.text())[:200]
            async with session.get(f"{base}/metrics") as metrics:
                shown = metrics.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        fix = "check that it is running, and the URL"
        yield Checked("service", "FAIL", f"{base} does not answer: {error}", fix)
        return
    yield Checked("service", "OK", f"{base} answers")
    if CLOCK_IN_DOUBT in text:
        fix = "set its clock: timedatectl set-ntp true, on its machine"
        yield Checked("ready", "FAIL", "its clock is in doubt, so it issues no tokens", fix)
    elif ready.status == HTTPStatus.OK:
        yield Checked("ready", "OK", "it serves requests")
    else:
        yield Checked("ready", "FAIL", text, "check its store: pricekeeper doctor, on its machine")
    if shown:
        fix = "block /metrics at the proxy, and set a token: docs/operations.md"
        yield Checked("metrics", "FAIL", "every tenant's spend can be read without a token", fix)
    else:
        yield Checked("metrics", "OK", "not readable without a token")
    async for check in _check_key(target, url):
        yield check
    if target.client is not None:
        yield await _check_credentials(url, *target.client)
    yield _skew(skew_ms)
    yield await clock_check(clock)


async def _check_key(target: Where, url: str) -> AsyncIterator[Checked]:
    key = target.provisioning_key
    if not key:
        text = "none given, so provisioning was not checked"
        yield Checked("provisioning key", "WARN", text, f"export {PROVISIONING_KEY}=...")
        return
    try:
        async with Admin(url, key) as admin:
            found = plain(await admin.list_orgs())
            yield Checked("provisioning key", "OK", f"accepted; {len(found)} organisations")
            yield (await read_served_secrets(admin, found, SystemClock())).check
    except ServiceError as error:
        yield Checked("provisioning key", "FAIL", str(error), "use a key of this service")


async def _check_credentials(url: str, client_id: str, secret: str) -> Checked:
    try:
        parse_client_id(client_id)
        async with Api(url, client_id, secret) as keeper:
            await keeper.sessions()
    except PriceKeeperError as error:
        fix = "pricekeeper credentials rotate, and claim"
        return Checked("credentials", "FAIL", str(error), fix)
    return Checked("credentials", "OK", f"{client_id} can log in")


def _skew_ms(date: str | None, now_ms: int) -> int | None:
    """How far the service's clock is ahead; a Date header has whole seconds."""
    if date is None:
        return None
    return int(parsedate_to_datetime(date).timestamp() * 1000) - now_ms


def _skew(skew_ms: int | None) -> Checked:
    if skew_ms is None:
        return Checked("time", "WARN", "the service sends no Date header")
    text = f"its clock and ours are {abs(skew_ms) / 1000:.0f} s apart"
    if abs(skew_ms) > SKEW_MS_MAX:
        return Checked("time", "FAIL", text, "set the clocks: timedatectl set-ntp true")
    return Checked("time", "OK", text)
