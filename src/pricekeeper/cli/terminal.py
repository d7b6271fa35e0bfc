"""Consoles, and escapes for text from outside.

Such text is never read as markup, its control characters are escaped, and it is never cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

PIPE_WIDTH: Final = 10_000

INDENT: Final = "  "
_CONTROLS: Final = (*range(0x20), 0x7F, *range(0x80, 0xA0))
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""They change the direction of text, or break lines."""
_NEWLINE: Final = 0x0A


def _escapes(codes: Iterable[int]) -> Mapping[int, str]:
    return {code: f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" for code in codes}  # noqa: PLR2004


_ESCAPES: Final = {
    **_escapes((*_CONTROLS, *_DIRECTIONS)),
    0x09: "\\t",
    _NEWLINE: "\\n",
    0x0D: "\\r",
}
_ESCAPES_IN_LINES: Final = {code: text for code, text in _ESCAPES.items() if code != _NEWLINE}
_ESCAPES_IN_JSON: Final = {
    code: f"\\u{code:04x}" for code in (*_CONTROLS, *_DIRECTIONS) if code != _NEWLINE
}


def harmless(text: str) -> str:
    """Escape control characters, line breaks too."""
    return text.translate(_ESCAPES)


def is_harmless(text: str) -> bool:
    """No control characters but line breaks."""
    return text == text.translate(_ESCAPES_IN_LINES)


def harmless_json(text: str) -> str:
    """Write JSON's control characters as escapes."""
    return text.translate(_ESCAPES_IN_JSON)


class HarmlessConsole(Console):
    """A console that escapes control characters."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=segment.text.translate(_ESCAPES_IN_LINES))


def make_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; a pipe has no width."""
    stream = sys.stderr if stderr else sys.stdout
    has_width = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return HarmlessConsole(
        stderr=stderr,
        width=None if has_width else PIPE_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )
