"""Where the sheets of an organisation's log are, and the ids of what stands on them. No I/O.

The **log** of an organisation is its sheets in one order, each written once by whoever comes first
and never changed. A **chapter** is as many of them as are read together: those in the partition of
the region of 65.5 s in which it began. Its last sheet is its **seal**, which names the next one.
Sheets are numbered by chapter, so whoever knows the last sheet knows where the next one goes.

The id of an authorization is of version 8, and says on which sheet and under which number it is::

    rrrrrrrr-cnnn-8iii-8nns-ssssssssssss

with region ``r``, the chapter's digit ``c``, the sheet's number ``n``, the number on the sheet
``i``, and the chapter's salt ``s``, which no two chapters of different organisations share.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pricekeeper.ticks import REGION_DIGITS, TICK_MS, region_at

CHAPTER_DIGITS: Final = 9
SALT_BITS: Final = 52
NUMBERS_MAX: Final = 1 << 20
"""Sheets that a chapter can have."""
ON_SHEET_MAX: Final = 1 << 12
"""Authorizations and records that a sheet can number."""
AUTHORIZATION_VERSION: Final = "8"
SHEET, OUTCOMES = "s", "o"
"""What the sort keys of sheets, and of what has become of authorizations, start with: no digits."""
_LAST_IN_REGION: Final = 0xF
_VARIANT: Final = "8"


class Chapter(NamedTuple):
    """A run of sheets in one partition."""

    name: str
    """Its region, and one digit more: chapters that follow each other have rising names."""
    salt: str

    @property
    def region(self) -> str:
        """The region in whose partition its sheets are."""
        return self.name[:REGION_DIGITS]

    @property
    def began_ms(self) -> int:
        """When its region began."""
        return int(self.region, 16) * TICK_MS

    @property
    def text(self) -> str:
        """As a seal names it."""
        return self.name + self.salt

    @classmethod
    def parse(cls, text: str) -> Chapter:
        """The chapter that a seal names."""
        name, salt = text[:CHAPTER_DIGITS], text[CHAPTER_DIGITS:]
        int(name, 16)
        if len(salt) != SALT_BITS // 4 or int(salt, 16) < 0:
            raise ValueError(f"{text[:40]!r} names no chapter")
        return cls(name, salt)

    def following(self, epoch_ms: int, salt: int) -> Chapter | None:
        """A chapter that begins at that moment; ``None`` if the region can't name another one."""
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


class Position(NamedTuple):
    """Where one sheet is."""

    chapter: Chapter
    number: int

    @property
    def sort_key(self) -> str:
        """The sheet's own. They are in the order of the numbers."""
        return self.prefix + self.chapter.salt

    @property
    def prefix(self) -> str:
        """What the sort key starts with, by which the sheet can be found without the salt."""
        high, low = self.number >> 8, self.number & 0xFF
        return f"{SHEET}{self.chapter.name}{high:03x}{_VARIANT}{low:02x}"

    @property
    def next(self) -> Position:
        """The one behind it in the same chapter."""
        return Position(self.chapter, self.number + 1)


def authorization_id_of(sheet: str, number: int) -> str:
    """The id of an authorization, from the sort key of its sheet and its number there."""
    digits = sheet[1:]
    middle = f"{digits[8:12]}-{AUTHORIZATION_VERSION}{number:03x}-{digits[12:16]}"
    return f"{digits[:8]}-{middle}-{digits[16:]}"


def sheet_sort_key(authorization_id: str) -> str:
    """The sort key of the sheet that an authorization is on."""
    one = authorization_id
    return f"{SHEET}{one[:8]}{one[9:13]}{one[19:23]}{one[24:]}"


def chapter_in(sort_key: str) -> str:
    """The name of the chapter of the sheet that has that sort key."""
    return sort_key[1 : 1 + CHAPTER_DIGITS]


def sheets_between(earlier_id: str, position: Position) -> int | None:
    """How many sheets lie between an id and a position; ``None`` if they are in two chapters."""
    sort_key = sheet_sort_key(earlier_id)
    if position.chapter.name != chapter_in(sort_key):
        return None
    return position.number - number_in(sort_key)


def number_in(sort_key: str) -> int:
    """The number of the sheet that has that sort key."""
    return int(sort_key[10:13] + sort_key[14:16], 16)


def sheet_number(authorization_id: str) -> int:
    """The number of an authorization on its sheet."""
    return int(authorization_id[15:18], 16)


def region_of(authorization_id: str) -> str:
    """The region in whose partition the sheet of an authorization is."""
    return authorization_id[:REGION_DIGITS]


def outcomes_sort_key(authorization_id: str) -> str:
    """Where it is filed what has become of an authorization: with those of 16 sheets in a row."""
    one = authorization_id
    return f"{OUTCOMES}{one[:8]}{one[9:13]}{one[20]}"


def outcome_name(authorization_id: str) -> str:
    """Its attribute there; longer than the name of any record."""
    one = authorization_id
    return f"{one[21:23]}{one[24:]}{one[15:18]}"


def _salt_text(salt: int) -> str:
    return f"{salt & (1 << SALT_BITS) - 1:0{SALT_BITS // 4}x}"
