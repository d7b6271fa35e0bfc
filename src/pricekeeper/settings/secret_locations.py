"""Parses where a secret of the service is kept: in the setting itself, in a file, or at AWS."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pricekeeper.errors import SettingsError

_FILE: Final = "file:"
_AWS: Final = "aws:"
_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:secretsmanager:(?P<region>[a-z]{2}(-[a-z]+)+-\d):\d{12}:secret:[!-~]{1,512}"
)
_NAME: Final = re.compile(r"[A-Za-z0-9/_+=.@-]{1,512}")


@dataclass(frozen=True, slots=True)
class GivenSecret:
    """The secret is what the setting says."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "the environment"


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file that somebody else puts there; nothing is made if it is missing."""

    path: str

    def __str__(self) -> str:
        return f"{_FILE}{self.path}"


@dataclass(frozen=True, slots=True)
class AwsSecret:
    """A secret of AWS Secrets Manager, by its name or ARN; a region if one was said with it."""

    secret_id: str
    region: str | None = None

    def __str__(self) -> str:
        return f"{_AWS}{self.secret_id}"


SecretLocation: TypeAlias = GivenSecret | SecretFile | AwsSecret
"""Where a secret is. As text it tells where, and nothing of the secret."""


def parse_secret_location(
    setting: str, text: str, region: str | None = None
) -> SecretLocation | None:
    """``file:PATH``, ``aws:SECRET``, or the secret itself; ``None`` for the data folder.

    ``region`` is where a secret is looked for that is named without one.
    """
    if not text.strip():
        return None
    if text.startswith(_FILE):
        path = text.removeprefix(_FILE)
        if not path or "\0" in path:
            raise SettingsError(setting, "names no file; use file:/path/to/it")
        return SecretFile(path)
    if text.startswith(_AWS):
        return _aws_secret(setting, text.removeprefix(_AWS), region)
    return GivenSecret(text)


def _aws_secret(setting: str, secret_id: str, region: str | None) -> AwsSecret:
    arn = _ARN.fullmatch(secret_id)
    if arn is not None:
        return AwsSecret(secret_id, arn["region"])
    if not _NAME.fullmatch(secret_id):
        raise SettingsError(
            setting,
            f"{secret_id!r} is no secret of Secrets Manager; use aws:NAME or "
            "aws:arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME-SUFFIX",
        )
    return AwsSecret(secret_id, region)
