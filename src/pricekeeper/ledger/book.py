"""The sum of an organisation's log, as far as one process has read it. No I/O, no clock.

Items of accounts contain the sheets of whole chapters. The sums of later chapters are kept here
until they are **filed**: added to the items, and noted beside their authorizations.

Bounds: `ITEMS_MAX` remembered items; a forgotten one costs a read. The writer of chapters bounds
them (`log`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import NOTHING, balances_of, filed_through, mends_of
from pricekeeper.concurrency import BoundedCache, error_copy
from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.position import Chapter, Position, authorization_id_of, chapter_in
from pricekeeper.ledger.sheet import ItemChange, Sheet, is_long
from pricekeeper.storage import Key

ITEMS_MAX: Final = 4_096
KEYS_MAX: Final = ITEMS_MAX // 2
_generations: Final = itertools.count(1)


class OpenAccounts:
    """The open accounts of one item, and their balances."""

    __slots__ = ("_damage", "balances", "is_damaged", "mends", "through")

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        self.balances = balances_of(item)
        """By account; an unreadable balance has its error instead."""
        self.mends, self.through = 0, ""
        """How often the item was mended, and the last chapter in it."""
        self._damage: UnreadableItemError | None = None
        try:
            if item is not None:
                self.mends, self.through = mends_of(item), filed_through(item)
        except UnreadableItemError as damage:
            self._damage = damage
        errors = (one for one in self.balances.values() if isinstance(one, UnreadableItemError))
        self.is_damaged = self._damage is not None or any(errors)
        """Whether an account is unreadable; it may be mended at any time."""

    def add(self, change: ItemChange) -> None:
        self.mends += change.mends
        for account_id, picos in change.accounts.items():
            have = self.balances.get(account_id, NOTHING)
            if isinstance(have, Balance):
                self.balances[account_id] = have + picos

    def balance(self, account_id: str) -> Balance | None:
        """The balance; ``None`` if it is not open. Raises if it is unreadable."""
        balance = self._damage or self.balances.get(account_id)
        if isinstance(balance, UnreadableItemError):
            raise error_copy(balance)
        return balance


class ChapterSums:
    """The sums of the sheets of one chapter."""

    __slots__ = ("changes", "chapter", "names", "outcomes", "places", "sealed_ms")

    def __init__(self, chapter: Chapter) -> None:
        self.chapter = chapter
        self.changes: dict[Key, ItemChange] = {}
        self.outcomes: dict[str, str] = {}
        self.places: dict[str, str] = {}
        """Sheets of outcomes that are too long to file: prefixes of their keys."""
        self.names: dict[str, str] = {}
        self.sealed_ms: int | None = None
        """When this process learnt of its seal, on the monotonic clock."""

    def add(self, sheet: Sheet, position: Position) -> None:
        for one, text in sheet.outcomes.items():
            self.outcomes[one] = text
            self.places.pop(one, None)
            if is_long(text):
                self.places[one] = position.prefix
        for name, number in sheet.names.items():
            self.names[name] = authorization_id_of(position.sort_key, number)
        for key, change in sheet.changes.items():
            have = self.changes.get(key)
            self.changes[key] = change if have is None else _sum(have, change)


class Book:
    """The part of one organisation's log that was read."""

    def __init__(self, org_id: str, first: Chapter) -> None:
        self.org_id = org_id
        self.chapters = [ChapterSums(first)]
        """The chapters not known to be filed; the last is not sealed."""
        self.next = Position(first, 0)
        self.generation = next(_generations)
        """Changes when filed outcomes are forgotten: an authorization that was read before may be
        old."""
        self._items: BoundedCache[Key, OpenAccounts] = BoundedCache(ITEMS_MAX)

    def fold(self, sheet: Sheet, now_ms: int) -> None:
        """``now_ms`` is monotonic."""
        last = self.chapters[-1]
        last.add(sheet, self.next)
        for key, change in sheet.changes.items():
            known = self._items.peek(key)
            if known is not None and known.through < last.chapter.name:
                known.add(change)
        self.next = self.next.next
        if sheet.next is not None:
            last.sealed_ms = now_ms
            self.chapters.append(ChapterSums(sheet.next))
            self.next = Position(sheet.next, 0)

    def with_unfiled(self, key: Key, item: Mapping[str, Any] | None) -> OpenAccounts:
        known = OpenAccounts(item)
        for sums in self.chapters:
            if sums.chapter.name > known.through and key in sums.changes:
                known.add(sums.changes[key])
        return known

    def remember(self, key: Key, known: OpenAccounts) -> None:
        self._items.put(key, known)

    def accounts(self, key: Key) -> OpenAccounts | None:
        return self._items.get(key)

    def balance(self, key: Key, account_id: str) -> Balance | None:
        """Return a balance; ``None`` if it is not open, or its item was not read."""
        known = self._items.peek(key)
        return None if known is None else known.balance(account_id)

    def unread(self, keys: Collection[Key]) -> list[Key]:
        """The items that must be read; damaged ones are read again."""
        found = ((key, self._items.get(key)) for key in keys)
        return [key for key, known in found if known is None or known.is_damaged]

    def unfiled_keys(self) -> Iterator[Key]:
        """Yield the items of accounts with unfiled changes, possibly repeated."""
        for sums in self.chapters:
            yield from sums.changes

    def outcome(self, authorization_id: str) -> str | None:
        for sums in reversed(self.chapters):
            text = sums.outcomes.get(authorization_id)
            if text is not None:
                return text
        return None

    def named(self, name: str) -> str | None:
        for sums in reversed(self.chapters):
            own_id = sums.names.get(name)
            if own_id is not None:
                return own_id
        return None

    def has_chapter_of(self, sheet: str) -> bool:
        name = chapter_in(sheet)
        return any(sums.chapter.name == name for sums in self.chapters)

    def sealed(self) -> list[ChapterSums]:
        return self.chapters[:-1]

    def drop_before(self, first: Chapter) -> None:
        left = [sums for sums in self.chapters if sums.chapter.name >= first.name]
        if len(left) < len(self.chapters):
            self.chapters = left
            self.generation = next(_generations)


def _sum(one: ItemChange, other: ItemChange) -> ItemChange:
    accounts = dict(one.accounts)
    for account_id, picos in other.accounts.items():
        accounts[account_id] = accounts.get(account_id, NOTHING) + picos
    opened = tuple(dict.fromkeys((*one.opened, *other.opened)))
    return ItemChange(accounts, opened, one.mends + other.mends)
