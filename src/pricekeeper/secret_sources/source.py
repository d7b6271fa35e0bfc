"""One secret of the service's own, wherever it is kept.

Reading it gives its text, or raises `SettingsError` that names the setting, the place and the fix,
and nothing of the secret.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any, Final, Protocol

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
"""The longest that all attempts take together, so that a start fails within seconds."""


class SecretSource(Protocol):
    """Where a secret comes from."""

    refresh_ms: int | None
    """How often it is worth another look; ``None``: it never changes while we run."""

    async def read(self) -> str:
        """The secret's text as it is now."""
        ...


def open_source(setting: str, location: SecretLocation, clock: Clock) -> SecretSource:
    """The source that a setting names."""
    if isinstance(location, GivenSecret):
        return _Given(location.text)
    if isinstance(location, SecretFile):
        return _InFile(setting, Path(location.path))
    return _AtAws(setting, location, clock)


class _Given:
    refresh_ms: int | None = None

    def __init__(self, text: str) -> None:
        self._text = text

    async def read(self) -> str:
        return self._text


class _InFile:
    """A file that somebody else has put there.

    Its group may read it, since that is how orchestrators hand files to a user without rights;
    everybody may not.
    """

    refresh_ms: int | None = FILE_REFRESH_MS

    def __init__(self, setting: str, path: Path) -> None:
        self._setting = setting
        self._path = path

    async def read(self) -> str:
        path = self._path
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SettingsError(self._setting, f"{path}: {error.strerror}") from error
        if mode & stat.S_IRWXO:
            raise SettingsError(self._setting, f"everybody can read {path}; say chmod o= {path}")
        if len(content) > FILE_BYTES_MAX:
            raise SettingsError(self._setting, f"{path} is too large to be this")
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise SettingsError(self._setting, f"{path} is not text") from None


class _AtAws:
    """A secret of AWS Secrets Manager, in its version AWSCURRENT."""

    refresh_ms: int | None = AWS_REFRESH_MS

    def __init__(self, setting: str, secret: AwsSecret, clock: Clock) -> None:
        self._setting = setting
        self._secret = secret
        self._client = AwsClient(
            "secretsmanager",
            clock,
            attempts_max=AWS_ATTEMPTS_MAX,
            silence_secs=AWS_SILENCE_SECS,
            region=secret.region,
        )

    async def read(self) -> str:
        secret_id = self._secret.secret_id
        try:
            async with asyncio.timeout(AWS_READ_SECS):
                return await self._client.call("get_secret_value", _text_of, SecretId=secret_id)
        except TimeoutError:
            problem = f"no answer within {AWS_READ_SECS} s"
        except AwsCallError as error:
            problem = str(error)
        raise SettingsError(self._setting, f"{self._secret}: GetSecretValue: {problem}") from None


def _text_of(reply: dict[str, Any]) -> str:
    """The secret in a reply: text, or bytes that are text. No secret is empty."""
    found = reply.get("SecretString") or reply.get("SecretBinary")
    try:
        text = found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError:
        text = None
    if not text or not isinstance(text, str):
        # A proxy's own page also looks like this, so another attempt may succeed.
        raise AwsCallError("NoText", "the reply has no secret that is text", is_passing=True)
    return text
