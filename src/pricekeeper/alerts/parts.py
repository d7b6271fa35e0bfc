"""Texts of alerts in parts: ours, and foreign ones, such as names and tags that tenants choose.

A sentence is written as one string, in which `foreign` marks what others wrote. `split` makes of it
the text that people read and the spans of the foreign parts, which each channel shows in its own
way. No I/O, no clock.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

Span: TypeAlias = tuple[int, int]
"""Where a foreign part begins, and the first character behind it."""
_OPEN: Final = "\x02"
_CLOSE: Final = "\x03"
_MARKED: Final = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*+){_CLOSE}")
_JOINED: Final = re.compile(r"(?<=[.\u3002\uff0e\uff61:/@])(?=\S)")
"""Behind each sign of a link or a mention; programs take four signs for a dot (UTS 46)."""
BREAK: Final = "\u200b"


class Text(NamedTuple):
    """A text and its foreign parts."""

    plain: str
    foreign: list[Span]


def foreign(text: str) -> str:
    """Mark text that others wrote: one line, without control characters and turned directions."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return f"{_OPEN}{' '.join(printable.split())}{_CLOSE}"


def split(marked: str) -> Text:
    """The text without the marks, and where they were."""
    plain, spans, at = "", list[Span](), 0
    for found in _MARKED.finditer(marked):
        plain += marked[at : found.start()]
        spans.append((len(plain), len(plain) + len(found[1])))
        plain, at = plain + found[1], found.end()
    return Text(plain + marked[at:], spans)


def unlinked(text: str) -> str:
    """The same to the eye, but no program makes a link or a mention of it."""
    return _JOINED.sub(BREAK, text)
