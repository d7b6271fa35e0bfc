"""The form of our secrets, and a wrapper that keeps them out of logs.

A prefix for people and secret scanners, 256 random bits, and a CRC-32 that finds typing errors
without a read; both in base 62.
"""

from __future__ import annotations

import string
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pricekeeper.authority import Permit

CLIENT_SECRET: Final = "pks_"  # noqa: S105 - what every secret begins with
RETRIEVAL_TOKEN: Final = "pkr_"  # noqa: S105
SECRET_BYTES_MAX: Final = 72
"""Ours have 53 characters; bcrypt reads no more than this."""

_ENTROPY_BYTES: Final = 32
_BODY_LENGTH: Final = 43
_CHECKSUM_LENGTH: Final = 6
_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase

Entropy: TypeAlias = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is shown only on request."""

    _text: str = field(repr=False)

    def reveal(self) -> str:
        return self._text


def mint(_: Permit, prefix: str, entropy: Entropy) -> Secret:
    """Make a new secret of that kind."""
    body = to_base62(int.from_bytes(entropy(_ENTROPY_BYTES)), _BODY_LENGTH)
    return Secret(prefix + body + _checksum(prefix + body))


def is_well_formed(prefix: str, text: str) -> bool:
    """Whether prefix and checksum are right."""
    return text.startswith(prefix) and _intact(prefix, text[len(prefix) :])


def is_mistyped(prefix: str, text: str) -> bool:
    """Whether the text is a secret of that kind with an error in it.

    Its prefix or its end is right and the rest is wrong; any other text may be an imported secret.
    """
    if text.startswith(prefix):
        return not is_well_formed(prefix, text)
    return _intact(prefix, text[-(_BODY_LENGTH + _CHECKSUM_LENGTH) :])


def _intact(prefix: str, rest: str) -> bool:
    body, checksum = rest[:_BODY_LENGTH], rest[_BODY_LENGTH:]
    return len(body) == _BODY_LENGTH and checksum == _checksum(prefix + body)


def _checksum(text: str) -> str:
    return to_base62(zlib.crc32(text.encode("utf-8", "replace")), _CHECKSUM_LENGTH)


def to_base62(number: int, length: int) -> str:
    """The number in that many digits."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def from_base62(text: str) -> int | None:
    """The number of these digits; ``None`` if one of them is no digit."""
    number = 0
    for character in text:
        digit = _DIGITS.find(character)
        if digit < 0:
            return None
        number = number * len(_DIGITS) + digit
    return number
