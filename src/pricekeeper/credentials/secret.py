"""What our secrets look like, and a wrapper that keeps them out of logs.

A secret is a prefix, 256 random bits in base 62 and a CRC-32 of both in base 62. The prefix
lets people and secret scanners recognise one; the checksum tells a mistyped one without
asking the store. Neither adds to what an attacker has to guess.
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
"""No secret is longer: ours are 53 characters, and bcrypt looks at no more than this."""

_ENTROPY_BYTES: Final = 32
_BODY_LENGTH: Final = 43
_CHECKSUM_LENGTH: Final = 6
_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase

Entropy: TypeAlias = Callable[[int], bytes]
"""That many bytes that nobody can predict."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that shows itself only when asked."""

    _text: str = field(repr=False)

    def reveal(self) -> str:
        """The text itself, for the one answer that carries it."""
        return self._text


def mint(_: Permit, prefix: str, entropy: Entropy) -> Secret:
    """Make a new secret of that kind, which takes a permit: see `may_produce`."""
    body = to_base62(int.from_bytes(entropy(_ENTROPY_BYTES)), _BODY_LENGTH)
    return Secret(prefix + body + _checksum(prefix + body))


def is_well_formed(prefix: str, text: str) -> bool:
    """Whether the text has the form and the checksum of a secret of that kind."""
    return text.startswith(prefix) and _intact(prefix, text[len(prefix) :])


def is_mistyped(prefix: str, text: str) -> bool:
    """Whether the text was meant to be a secret of that kind and is not quite one.

    Either it has the prefix and something behind it is wrong, or what is at its end is right
    and the prefix is wrong. A text that is neither may be a secret of another make.
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
    """The number that these digits are; ``None`` if one of them is no digit."""
    number = 0
    for character in text:
        digit = _DIGITS.find(character)
        if digit < 0:
            return None
        number = number * len(_DIGITS) + digit
    return number
