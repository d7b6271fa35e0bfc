"""Positions of sheets in an organisation's log, and ids of authorizations. No I/O.

The **log** is a sequence of sheets, each written once. A **chapter** is a run of sheets that are
read together, in the partition of the region of 65.5 s in which it began. Its last sheet is its
**seal**, which names the next chapter. Sheets are numbered by chapter, so the last one determines
the next place.

The id of an authorization is of version 8: ``rrrrrrrr-cnnn-8iii-8nns-ssssssssssss``, with region
``r``, the chapter's digit ``c``, the sheet's number ``n``, the number on the sheet ``i``, and the
chapter's salt ``s``, which differs between organisations.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pricekeeper.ticks import REGION_DIGITS, TICK_MS, region_at

CHAPTER_DIGITS: Final = 9
SALT_BITS: Final = 52
NUMBERS_MAX: Final = 1 << 20
ON_SHEET_MAX: Final = 1 << 12
"""Numbered authorizations and records."""
AUTHORIZATION_VERSION: Final = "8"
SHEET, OUTCOMES = "s", "o"
"""First characters of the sort keys of sheets and of filed outcomes: no digits."""
_LAST_IN_REGION: Final = 0xF
_VARIANT: Final = "8"


class Chapter(msgspec.Struct, frozen=True):
    """A run of sheets in one partition."""

    name: str
    """Its region and one more digit; names of consecutive chapters rise."""
    salt: str
    region: str = ""
    began_ms: int = 0

    def __post_init__(self) -> None:
        region = self.name[:REGION_DIGITS]
        msgspec.structs.force_setattr(self, "region", region)
        msgspec.structs.force_setattr(self, "began_ms", int(region, 16) * TICK_MS)

    @property
    def text(self) -> str:
        return self.name + self.salt

    @classmethod
    def parse(cls, text: str) -> Chapter:
        name, salt = text[:CHAPTER_DIGITS], text[CHAPTER_DIGITS:]
        int(name, 16)
        if len(salt) != SALT_BITS // 4 or int(salt, 16) < 0:
            raise ValueError(f"{text[:40]!r} names no chapter")
        return cls(name, salt)

    def following(self, epoch_ms: int, salt: int) -> Chapter | None:
        """The next chapter, from that moment; ``None`` if the region has no further name."""
        region = region_at(epoch_ms)
        if region > self.region:
            return begin_chapter(epoch_ms, salt)
        digit = int(self.name[REGION_DIGITS:], 16)
        if digit == _LAST_IN_REGION:
            return None
        return Chapter(f"{self.region}{digit + 1:x}", _salt_text(salt))


def begin_chapter(epoch_ms: int, salt: int) -> Chapter:
    """The first chapter of the region of that moment."""
    return Chapter(f"{region_at(epoch_ms)}0", _salt_text(salt))


class Position(msgspec.Struct, frozen=True):
    """The position of one sheet."""

    chapter: Chapter
    number: int
    prefix: str = ""
    sort_key: str = ""

    def __post_init__(self) -> None:
        high, low = self.number >> 8, self.number & 0xFF
        prefix = f"{SHEET}{self.chapter.name}{high:03x}{_VARIANT}{low:02x}"
        msgspec.structs.force_setattr(self, "prefix", prefix)
        msgspec.structs.force_setattr(self, "sort_key", prefix + self.chapter.salt)

    @property
    def next(self) -> Position:
        return Position(self.chapter, self.number + 1)


def authorization_id_of(sheet: str, number: int) -> str:
    """The id of an authorization from its sheet's sort key and its number there."""
    digits = sheet[1:]
    middle = f"{digits[8:12]}-{AUTHORIZATION_VERSION}{number:03x}-{digits[12:16]}"
    return f"{digits[:8]}-{middle}-{digits[16:]}"


def sheet_sort_key(authorization_id: str) -> str:
    """The sort key of an authorization's sheet."""
    one = authorization_id
    return f"{SHEET}{one[:8]}{one[9:13]}{one[19:23]}{one[24:]}"


def chapter_in(sort_key: str) -> str:
    """The name of the chapter of that sort key."""
    return sort_key[1 : 1 + CHAPTER_DIGITS]


def sheets_between(earlier_id: str, position: Position) -> int | None:
    """The number of sheets between an id and a position; ``None`` in other chapters."""
    sort_key = sheet_sort_key(earlier_id)
    if position.chapter.name != chapter_in(sort_key):
        return None
    return position.number - number_in(sort_key)


def number_in(sort_key: str) -> int:
    """The number of the sheet of that sort key."""
    return int(sort_key[10:13] + sort_key[14:16], 16)


def sheet_number(authorization_id: str) -> int:
    """The number of an authorization on its sheet."""
    return int(authorization_id[15:18], 16)


def region_of(authorization_id: str) -> str:
    """The region of an authorization's sheet."""
    return authorization_id[:REGION_DIGITS]


def outcomes_sort_key(authorization_id: str) -> str:
    """The sort key of an authorization's filed outcome, shared by 16 sheets."""
    one = authorization_id
    return f"{OUTCOMES}{one[:8]}{one[9:13]}{one[20]}"


def outcome_name(authorization_id: str) -> str:
    """The attribute of a filed outcome; longer than names of records."""
    one = authorization_id
    return f"{one[21:23]}{one[24:]}{one[15:18]}"


def _salt_text(salt: int) -> str:
    return f"{salt & (1 << SALT_BITS) - 1:0{SALT_BITS // 4}x}"
