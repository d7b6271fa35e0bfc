"""What the log of an organisation adds up to, as far as one process has read it. No I/O, no clock.

Accounts are items of their own, which have what the sheets of whole chapters say: an item names the
last chapter that is in it. What later sheets say is kept here, by chapter, until it is **filed**:
added to the items of accounts, and noted beside the authorizations that it is about.

Bounds: `ITEMS_MAX` items of accounts are remembered; a forgotten one costs a read. Chapters are
bounded where they are written (`log`).
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
"""Items that are read to be remembered together; the others are left room for as many."""
_generations: Final = itertools.count(1)


class OpenAccounts:
    """The accounts of one item that are open, and what each of them has."""

    __slots__ = ("_damage", "balances", "is_damaged", "mends", "through")

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        self.balances = balances_of(item)
        """In place of one that can't be read is the error."""
        self.mends, self.through = 0, ""
        """How often accounts of the item were set right, and the last chapter that is in it."""
        self._damage: UnreadableItemError | None = None
        """Why nobody can tell what any of them has: then none can be read."""
        try:
            if item is not None:
                self.mends, self.through = mends_of(item), filed_through(item)
        except UnreadableItemError as damage:
            self._damage = damage
        errors = (one for one in self.balances.values() if isinstance(one, UnreadableItemError))
        self.is_damaged = self._damage is not None or any(errors)
        """Whether an account can't be read: somebody may set it right at any time."""

    def add(self, change: ItemChange) -> None:
        """Add what a sheet says."""
        self.mends += change.mends
        for account_id, picos in change.accounts.items():
            have = self.balances.get(account_id, NOTHING)
            if isinstance(have, Balance):
                self.balances[account_id] = have + picos

    def balance(self, account_id: str) -> Balance | None:
        """What the account has; ``None`` if it is not open. Raises if it can't be read."""
        balance = self._damage or self.balances.get(account_id)
        if isinstance(balance, UnreadableItemError):
            raise error_copy(balance)
        return balance


class ChapterSums:
    """What the sheets of one chapter say, all together."""

    __slots__ = ("changes", "chapter", "names", "outcomes", "places", "sealed_ms")

    def __init__(self, chapter: Chapter) -> None:
        self.chapter = chapter
        self.changes: dict[Key, ItemChange] = {}
        self.outcomes: dict[str, str] = {}
        """What has become of authorizations, by their ids; the last word of each."""
        self.places: dict[str, str] = {}
        """Where outcomes are that are too long to be filed: how the keys of their sheets start."""
        self.names: dict[str, str] = {}
        """Which authorizations ids stand for that callers gave."""
        self.sealed_ms: int | None = None
        """When this process learnt of its seal, by the monotonic clock."""

    def add(self, sheet: Sheet, position: Position) -> None:
        """Add what the sheet of that position says."""
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
    """The log of one organisation, as far as it was read."""

    def __init__(self, org_id: str, first: Chapter) -> None:
        self.org_id = org_id
        self.chapters = [ChapterSums(first)]
        """Those that are not filed yet, as far as anybody here knows; the last is not sealed."""
        self.next = Position(first, 0)
        """Where the next sheet goes."""
        self.generation = next(_generations)
        """Another number as soon as outcomes are forgotten because they were filed: what was read
        of an authorization before that may be old."""
        self._items: BoundedCache[Key, OpenAccounts] = BoundedCache(ITEMS_MAX)

    def fold(self, sheet: Sheet, now_ms: int) -> None:
        """Add the next sheet. ``now_ms`` is a reading of the monotonic clock."""
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
        """The accounts of an item that was read, with what is not filed into it yet."""
        known = OpenAccounts(item)
        for sums in self.chapters:
            if sums.chapter.name > known.through and key in sums.changes:
                known.add(sums.changes[key])
        return known

    def remember(self, key: Key, known: OpenAccounts) -> None:
        """Keep the accounts of an item; what later sheets say is added to them."""
        self._items.put(key, known)

    def accounts(self, key: Key) -> OpenAccounts | None:
        """The accounts of an item, if it is remembered."""
        return self._items.get(key)

    def balance(self, key: Key, account_id: str) -> Balance | None:
        """What an account has; ``None`` if it is not open, or its item was not read."""
        known = self._items.peek(key)
        return None if known is None else known.balance(account_id)

    def unread(self, keys: Collection[Key]) -> list[Key]:
        """Those of these items that have to be read; those that were damaged, again."""
        found = ((key, self._items.get(key)) for key in keys)
        return [key for key, known in found if known is None or known.is_damaged]

    def unfiled_keys(self) -> Iterator[Key]:
        """The items of accounts about which unfiled sheets say something, perhaps repeatedly."""
        for sums in self.chapters:
            yield from sums.changes

    def outcome(self, authorization_id: str) -> str | None:
        """What unfiled sheets say has become of an authorization; ``None`` if nothing."""
        for sums in reversed(self.chapters):
            text = sums.outcomes.get(authorization_id)
            if text is not None:
                return text
        return None

    def named(self, name: str) -> str | None:
        """The authorization that an id stands for which its caller gave, by unfiled sheets."""
        for sums in reversed(self.chapters):
            own_id = sums.names.get(name)
            if own_id is not None:
                return own_id
        return None

    def has_chapter_of(self, sheet: str) -> bool:
        """Whether the chapter of a sheet, by its sort key, is one of the unfiled ones."""
        name = chapter_in(sheet)
        return any(sums.chapter.name == name for sums in self.chapters)

    def sealed(self) -> list[ChapterSums]:
        """The chapters that can be filed."""
        return self.chapters[:-1]

    def drop_before(self, first: Chapter) -> None:
        """Forget the chapters before that one: they are filed."""
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
