"""Reads the service's own secrets: from the environment, a file, or AWS Secrets Manager.

An error shows nothing of the secret.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pricekeeper.aws import AwsCallError, AwsClient
from pricekeeper.clock import Clock
from pricekeeper.errors import SettingsError
from pricekeeper.settings import AwsSecret, GivenSecret, SecretFile, SecretLocation

FILE_BYTES_MAX: Final = 1 << 20
FILE_REFRESH_MS: Final = 1_000
AWS_REFRESH_MS: Final = 60_000
AWS_ATTEMPTS_MAX: Final = 4
AWS_SILENCE_SECS: Final = 3
AWS_READ_SECS: Final = 30
"""For all attempts together."""


class SecretSource(NamedTuple):
    """The source of a secret."""

    read: Callable[[], Awaitable[str]]
    """Returns the present text; raises `SettingsError`."""
    refresh_ms: int | None
    """Between reads; ``None`` if it never changes."""


def open_source(setting: str, location: SecretLocation, clock: Clock) -> SecretSource:
    """The source that a setting names."""
    if isinstance(location, GivenSecret):
        return SecretSource(partial(_given, location.text), None)
    if isinstance(location, SecretFile):
        return SecretSource(partial(_read_file, setting, Path(location.path)), FILE_REFRESH_MS)
    client = AwsClient(
        "secretsmanager",
        clock,
        attempts_max=AWS_ATTEMPTS_MAX,
        silence_secs=AWS_SILENCE_SECS,
        region=location.region,
    )
    return SecretSource(partial(_read_from_aws, setting, location, client), AWS_REFRESH_MS)


async def _given(text: str) -> str:
    return text


async def _read_file(setting: str, path: Path) -> str:
    """Read a file, also a group-readable one: orchestrators make those."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(setting, f"{path}: {error.strerror}") from error
    if mode & stat.S_IRWXO:
        raise SettingsError(setting, f"every user can read {path}; run chmod o= {path}")
    if len(content) > FILE_BYTES_MAX:
        raise SettingsError(setting, f"{path} is too large for this secret")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SettingsError(setting, f"{path} is not text") from None


async def _read_from_aws(setting: str, secret: AwsSecret, client: AwsClient) -> str:
    try:
        async with asyncio.timeout(AWS_READ_SECS):
            return await client.call("get_secret_value", _text_of, SecretId=secret.secret_id)
    except TimeoutError:
        problem = f"no answer within {AWS_READ_SECS} s"
    except AwsCallError as error:
        problem = str(error)
    raise SettingsError(setting, f"{secret}: GetSecretValue: {problem}") from None


def _text_of(reply: dict[str, Any]) -> str:
    found = reply.get("SecretString") or reply.get("SecretBinary")
    try:
        text = found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError:
        text = None
    if not text or not isinstance(text, str):
        # A proxy's own page also looks like this, so another attempt may succeed.
        raise AwsCallError("NoText", "the reply has no secret that is text", is_passing=True)
    return text
