"""The terminal: the one place that makes consoles, and what keeps text from outside harmless there.

Names, user agents, labels and what a service says are text from outside. None of it is ever read as
Rich's markup, and a control character in it is shown as an escape, so that it can't move the
cursor, change what stands above or turn text around.

Text is never cut. A terminal breaks a line that is too long for it by itself, and a copy of it has
no break; a pipe has no width.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

PIPE_WIDTH: Final = 10_000
"""How wide a line may be where nobody has a screen."""

INDENT: Final = "  "
_CONTROLS: Final = (*range(0x20), 0x7F, *range(0x80, 0xA0))
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""What turns the direction of text, and Unicode's own line breaks."""
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
    """Text from outside on one line, with an escape for each control character."""
    return text.translate(_ESCAPES)


def is_harmless(text: str) -> bool:
    """Whether a terminal would show the text as it is, and its lines as lines."""
    return text == text.translate(_ESCAPES_IN_LINES)


def harmless_json(text: str) -> str:
    """The same JSON: what JSON lets stand and a terminal obeys is written as an escape."""
    return text.translate(_ESCAPES_IN_JSON)


class HarmlessConsole(Console):
    """A console that prints no control character but those that it makes itself."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments, with an escape for each control character in their text."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=segment.text.translate(_ESCAPES_IN_LINES))


def make_console(*, stderr: bool = False) -> Console:
    """The console of this process: as wide as the terminal, or as wide as it takes in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    has_width = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return HarmlessConsole(
        stderr=stderr,
        width=None if has_width else PIPE_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )
