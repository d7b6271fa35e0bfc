"""What the stand-in does with a call, said by whoever calls it.

The last text of the user may contain a directive, ``[[standin {"output_tokens": 12}]]``, whose
members are those of `Script`. It travels in the prompt because every client framework can carry
a prompt, while headers and parameters get lost in most of them. What a directive does not say is
as the stand-in's own script says.
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
"""Texts whose attempts are counted for ``fate_times``; the one unused longest is forgotten."""

SILENT: Final = "silent"
"""The model runs and is billed; nothing is answered until the caller goes."""
HANGS_UP: Final = "hangs-up"
"""The model runs and is billed; the connection is closed without an answer."""
BREAKS_OFF: Final = "breaks-off"
"""A stream ends with an exception in its middle, billed. What is no stream hangs up."""
CUT: Final = "cut"
"""The connection is closed in the middle of a stream, billed. What is no stream hangs up."""
GATEWAY_504: Final = "gateway-504"
"""A proxy in between has waited too long: HTML with status 504. The model ran and is billed."""
BILLED_FATES: Final = frozenset({SILENT, HANGS_UP, BREAKS_OFF, CUT, GATEWAY_504})

_DIRECTIVE: Final = re.compile(r"\[\[standin\s*(\{.*?\})\s*\]\]", re.DOTALL)

TokenCount = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
Millis = Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)]


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call does. Without any of it, the model answers at once, with at most 64 tokens."""

    input_tokens: TokenCount | None = None
    """Without what is read from or written to the cache; by default a quarter of the bytes."""
    output_tokens: TokenCount | None = None
    """What the model would say; never more than the request allows."""
    cache_read: TokenCount = 0
    cache_write_5m: TokenCount = 0
    cache_write_1h: TokenCount = 0
    delay_ms: Millis = 0
    """How long the model takes before its first word, or before a refusal."""
    between_ms: Millis = 0
    """How long it takes for each event of a stream."""
    events: Annotated[int, Meta(ge=1, le=EVENTS_MAX)] = 4
    """In how many pieces a stream brings the text."""
    fate: str | None = None
    """The name of an exception, which is not billed, or one of `BILLED_FATES`."""
    fate_times: Annotated[int, Meta(ge=1)] | None = None
    """The fate befalls that many attempts with the same text, and then no more."""
    service_tier: str | None = None
    """The tier that serves the call; by default the one that was asked for."""
    stop_reason: str | None = None
    no_usage: bool = False
    """The answer does not say what it used: no usage, no metadata event, no headers, no metrics."""

    def __post_init__(self) -> None:
        if self.fate is not None and self.fate not in BILLED_FATES and self.fate not in REFUSALS:
            known = ", ".join(sorted({*BILLED_FATES, *REFUSALS}))
            raise ValueError(f"fate is unknown; give one of {known}")


def script_of(text: str, default: Script) -> Script:
    """The script of a call whose last user text that is."""
    if "[[standin" not in text:
        return default
    found = _DIRECTIVE.search(text)
    if found is None:
        raise AwsFault("ValidationException", "the directive is not [[standin {json}]]")
    try:
        given = msgspec.json.decode(found[1], type=dict[str, Any])
        return msgspec.convert({**msgspec.structs.asdict(default), **given}, Script)
    except msgspec.DecodeError as error:  # also what does not fit `Script`
        raise AwsFault("ValidationException", f"the directive of the stand-in: {error}") from None


class Fates:
    """How often each text has met its fate."""

    def __init__(self) -> None:
        self._met: OrderedDict[str, int] = OrderedDict()

    def meet(self, text: str, script: Script) -> str | None:
        """The fate of this attempt; ``None`` for one that succeeds."""
        if script.fate is None or script.fate_times is None:
            return script.fate
        met = self._met.pop(text, 0)
        self._met[text] = met + 1
        if len(self._met) > TEXTS_KEPT_MAX:
            self._met.popitem(last=False)
        return script.fate if met < script.fate_times else None

    def clear(self) -> None:
        """Begin anew."""
        self._met.clear()
