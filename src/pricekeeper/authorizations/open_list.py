"""The open authorizations that this process has granted, and when each of them expires.

Bounds: `REMEMBERED_MAX` of them; those beyond are found by a sweep.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from pricekeeper.authorizations.authorization import Authorization
from pricekeeper.ledger.book import Book

REMEMBERED_MAX: Final = 100_000
SETTLED_MAX: Final = 1_000
"""How many that are settled wait for their time in the heap, beside as many as are open."""


class Due(msgspec.Struct, frozen=True):
    """An authorization of this process."""

    org_id: str
    authorization: Authorization
    book: Book
    """The log that it was granted on: as long as this process has read on in it, whatever others
    have made of the authorization has been noted."""


class OpenList:
    """The open authorizations that this process has granted."""

    def __init__(self) -> None:
        self._open: dict[str, Due] = {}
        self._names: dict[str, str] = {}
        """Which of them an id stands for that its caller gave it."""
        self._heap: list[tuple[int, str]] = []

    def add(self, org_id: str, authorization: Authorization, book: Book) -> None:
        """Remember when it expires; one that is extended is remembered anew."""
        own_id = authorization.id
        if len(self._open) >= REMEMBERED_MAX and own_id not in self._open:
            return
        self._open[own_id] = Due(org_id, authorization, book)
        if authorization.grant.asked_as:
            self._names[authorization.grant.asked_as] = own_id
        heapq.heappush(self._heap, (authorization.expires_at_ms, own_id))
        if len(self._heap) > 2 * len(self._open) + SETTLED_MAX:
            held = (due.authorization for due in self._open.values())
            self._heap = [(one.expires_at_ms, one.id) for one in held]
            heapq.heapify(self._heap)

    def remove(self, authorization_id: str) -> None:
        """Forget one that is settled."""
        due = self._open.pop(authorization_id, None)
        if due is not None:
            self._names.pop(due.authorization.grant.asked_as, None)

    def find(self, authorization_id: str) -> Due | None:
        """An authorization of this process, by its own id or the one that its caller gave it."""
        return self._open.get(self._names.get(authorization_id, authorization_id))

    def take_due(self, now_ms: int) -> list[Due]:
        """Those that have expired; they are forgotten."""
        due: list[Due] = []
        while self._heap and self._heap[0][0] <= now_ms:
            expires_at_ms, authorization_id = heapq.heappop(self._heap)
            one = self._open.get(authorization_id)
            if one is not None and one.authorization.expires_at_ms == expires_at_ms:
                self.remove(authorization_id)
                due.append(one)
        return due

    def __len__(self) -> int:
        return len(self._open)
