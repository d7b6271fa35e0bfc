"""How a caller scripts what the stand-in does with a call.

The last user text may have a directive, ``[[standin {"output_tokens": 12}]]``, with members of
`Script`: every framework passes prompts on, but few pass headers. The stand-in's own script gives
the defaults.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from pricekeeper.standin.refusals import REFUSALS, AwsFault

TOKENS_MAX: Final = 10_000_000
DELAY_MS_MAX: Final = 600_000
EVENTS_MAX: Final = 10_000
TEXTS_KEPT_MAX: Final = 10_000
"""Texts counted for ``fate_times``; then the least recently used is dropped."""

SILENT: Final = "silent"
"""Billed; no answer until the caller leaves."""
HANGS_UP: Final = "hangs-up"
"""Billed; the connection closes without an answer."""
BREAKS_OFF: Final = "breaks-off"
"""Billed; the stream ends with an exception. Other calls get no answer."""
CUT: Final = "cut"
"""Billed; the connection closes within the stream. Other calls get no answer."""
GATEWAY_504: Final = "gateway-504"
"""Billed; a proxy answers with HTML and status 504."""
BILLED_FATES: Final = frozenset({SILENT, HANGS_UP, BREAKS_OFF, CUT, GATEWAY_504})

_DIRECTIVE: Final = re.compile(r"\[\[standin\s*(\{.*?\})\s*\]\]", re.DOTALL)

TokenCount = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
Millis = Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)]


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call does; by default the model answers at once."""

    input_tokens: TokenCount | None = None
    """By default a quarter of the bytes."""
    output_tokens: TokenCount | None = None
    cache_read: TokenCount = 0
    cache_write_5m: TokenCount = 0
    cache_write_1h: TokenCount = 0
    delay_ms: Millis = 0
    """Before the first word, or a refusal."""
    between_ms: Millis = 0
    """Before each event of a stream."""
    events: Annotated[int, Meta(ge=1, le=EVENTS_MAX)] = 4
    """Of a stream, those with text."""
    fate: str | None = None
    """An exception, which is free, or one of `BILLED_FATES`."""
    fate_times: Annotated[int, Meta(ge=1)] | None = None
    """Attempts with the same text that meet the fate."""
    service_tier: str | None = None
    """By default the requested tier."""
    stop_reason: str | None = None
    no_usage: bool = False
    """No usage member, metadata event, headers or metrics."""

    def __post_init__(self) -> None:
        if self.fate is not None and self.fate not in BILLED_FATES and self.fate not in REFUSALS:
            known = ", ".join(sorted({*BILLED_FATES, *REFUSALS}))
            raise ValueError(f"fate is unknown; give one of {known}")


def script_of(text: str, default: Script) -> Script:
    """The script for a text."""
    if "[[standin" not in text:
        return default
    found = _DIRECTIVE.search(text)
    if found is None:
        raise AwsFault("ValidationException", "the directive is not [[standin {json}]]")
    try:
        given = msgspec.json.decode(found[1], type=dict[str, Any])
        return msgspec.convert({**msgspec.structs.asdict(default), **given}, Script)
    except msgspec.DecodeError as error:  # including members that are not in `Script`
        raise AwsFault("ValidationException", f"the directive of the stand-in: {error}") from None


class Fates:
    """How often each text has met its fate."""

    def __init__(self) -> None:
        self._met: OrderedDict[str, int] = OrderedDict()

    def meet(self, text: str, script: Script) -> str | None:
        """The fate of this attempt; ``None`` if it succeeds."""
        if script.fate is None or script.fate_times is None:
            return script.fate
        met = self._met.pop(text, 0)
        self._met[text] = met + 1
        if len(self._met) > TEXTS_KEPT_MAX:
            self._met.popitem(last=False)
        return script.fate if met < script.fate_times else None

    def clear(self) -> None:
        self._met.clear()
