"""The bill: one entry for each attempt that ran the model.

An entry has the full cost when the model starts: Bedrock bills even if the caller leaves. Sums stay
exact when entries are dropped.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

ENTRIES_MAX: Final = 100_000
"""Then the oldest entry is dropped."""


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens of a call. ``input_tokens`` excludes the cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0

    @property
    def cache_write_tokens(self) -> int:
        return self.cache_write_5m_tokens + self.cache_write_1h_tokens

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: TokenCounts) -> TokenCounts:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return TokenCounts(*map(sum, pairs))


class BilledCall(msgspec.Struct, frozen=True):
    """One billed attempt."""

    id: str
    """``x-amzn-RequestId`` of its answer."""
    operation: str
    model_id: str
    """As requested, decoded."""
    tokens: TokenCounts
    service_tier: str
    latency: str
    """``standard`` or ``optimized``."""
    request_metadata: Mapping[str, str]
    hung_up: bool = False
    """Whether its caller left early."""


class Statement(msgspec.Struct, frozen=True):
    """The whole ledger, as ``GET /ledger`` returns it."""

    entries: list[BilledCall]
    entries_forgotten: int
    billed_calls: int
    totals: TokenCounts
    attempts: dict[str, int]
    """By operation, refused or not."""


class Ledger:
    """The entries of one stand-in, for any thread."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._changed = threading.Condition()
        self._entries: dict[str, BilledCall] = {}
        self._attempts: Counter[str] = Counter()
        self.totals = TokenCounts()
        """Sums of all entries, also dropped ones."""
        self.billed_calls = 0
        """Of all entries, also dropped ones."""

    @property
    def entries(self) -> list[BilledCall]:
        with self._changed:
            return list(self._entries.values())

    @property
    def attempts(self) -> dict[str, int]:
        with self._changed:
            return dict(self._attempts)

    def statement(self) -> Statement:
        with self._changed:
            kept = list(self._entries.values())
            forgotten = self.billed_calls - len(kept)
            return Statement(kept, forgotten, self.billed_calls, self.totals, dict(self._attempts))

    def count_attempt(self, operation: str) -> None:
        with self._changed:
            self._attempts[operation] += 1
            self._changed.notify_all()

    def bill(self, entry: BilledCall) -> None:
        with self._changed:
            self._entries[entry.id] = entry
            if len(self._entries) > self._entries_max:
                del self._entries[next(iter(self._entries))]
            self.billed_calls += 1
            self.totals += entry.tokens
            self._changed.notify_all()

    def note_hang_up(self, entry_id: str) -> None:
        with self._changed:
            entry = self._entries.get(entry_id)
            if entry is not None:
                self._entries[entry_id] = msgspec.structs.replace(entry, hung_up=True)
                self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._entries.clear()
            self._attempts.clear()
            self.totals = TokenCounts()
            self.billed_calls = 0

    def wait_until(
        self, is_met: Callable[[list[BilledCall]], bool], timeout_secs: float = 10
    ) -> bool:
        """Wait for a condition; returns whether it was met in time."""

        def met() -> bool:
            return is_met(list(self._entries.values()))

        with self._changed:
            return self._changed.wait_for(met, timeout_secs)
