"""What the log adds up to, as far as one process has read it."""

from typing import Any

from ledger.conftest import ACCOUNT, ITEM, ORG, OTHER_ITEM
from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import file_put
from pricekeeper.ledger import book as book_module
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.position import Chapter, Position, authorization_id_of, begin_chapter
from pricekeeper.ledger.sheet import ItemChange, Sheet
from pricekeeper.storage import Key

FIRST = begin_chapter(1_790_000_000_000, 1)
ONE, TWO = (authorization_id_of(Position(FIRST, 0).sort_key, number) for number in (1, 2))


def a_sheet(used: int = 0, key: Key = ITEM, **changes: Any) -> Sheet:
    said = {key: ItemChange({ACCOUNT: Balance(used)})} if used else {}
    return Sheet(b"nonce", 0, **{"changes": said, **changes})


def seal_to(book: Book) -> Chapter:
    following = book.next.chapter.following(1_790_000_000_000, 7)
    assert following is not None
    book.fold(a_sheet(next=following), now_ms=5)
    return following


def read(book: Book, key: Key = ITEM, item: Any = None) -> None:
    book.remember(key, book.with_unfiled(key, item))


def test_each_sheet_is_added_to_the_accounts_that_were_read() -> None:
    book = Book(ORG, FIRST)
    book.fold(a_sheet(5), 0)
    assert book.balance(ITEM, ACCOUNT) is None  # its item was not read
    read(book)
    book.fold(a_sheet(7), 0)
    book.fold(a_sheet(100, OTHER_ITEM), 0)
    assert book.balance(ITEM, ACCOUNT) == Balance(12)
    assert book.balance(ITEM, "another") is None
    assert book.unread([ITEM, OTHER_ITEM]) == [OTHER_ITEM]
    assert book.next == Position(FIRST, 3)


def test_what_is_filed_into_an_item_is_not_added_to_it_again() -> None:
    book = Book(ORG, FIRST)
    book.fold(a_sheet(5), 0)
    second = seal_to(book)
    book.fold(a_sheet(7), 0)
    filed = file_put(ITEM, None, {ACCOUNT: Balance(5)}, 0, FIRST.name, 0).item
    for item, known in ((None, 12), (filed, 12)):
        read(book, item=item)
        assert book.balance(ITEM, ACCOUNT) == Balance(known)
    ahead = file_put(ITEM, filed, {ACCOUNT: Balance(9)}, 0, second.name, 0).item
    read(book, item=ahead)  # others have written and filed sheets that were not read here yet
    book.fold(a_sheet(2), 0)
    assert book.balance(ITEM, ACCOUNT) == Balance(14)
    seal_to(book)
    book.fold(a_sheet(1), 0)
    assert book.balance(ITEM, ACCOUNT) == Balance(15)


def test_a_filed_chapter_is_forgotten_and_what_was_read_before_is_old() -> None:
    book = Book(ORG, FIRST)
    book.fold(a_sheet(5, outcomes={ONE: "c1", TWO: "u1"}, names={TWO: 3}), 0)
    read(book)
    second = seal_to(book)
    book.fold(a_sheet(7, outcomes={TWO: "v1.late"}), 0)
    assert [sums.chapter for sums in book.sealed()] == [FIRST]
    assert (book.outcome(ONE), book.outcome(TWO)) == ("c1", "v1.late")
    assert book.named(TWO) == authorization_id_of(Position(FIRST, 0).sort_key, 3)
    assert book.has_chapter_of(Position(FIRST, 9).sort_key)
    generation = book.generation
    book.drop_before(second)
    assert book.generation != generation
    assert (book.outcome(ONE), book.outcome(TWO), book.named(TWO)) == (None, "v1.late", None)
    assert not book.has_chapter_of(Position(FIRST, 9).sort_key)
    assert book.balance(ITEM, ACCOUNT) == Balance(12)  # the item is remembered with all of it
    assert [sums.chapter for sums in book.chapters] == [second]
    generation = book.generation
    book.drop_before(second)
    assert book.generation == generation


def test_a_chapter_adds_its_sheets_up() -> None:
    """What is filed is one sum for each account, and the last word about each authorization."""
    book = Book(ORG, FIRST)
    book.fold(a_sheet(5, outcomes={ONE: "o1"}), 0)
    change = ItemChange({ACCOUNT: Balance(3, 1, 1), "new": Balance(2)}, ("new",), mends=1)
    book.fold(a_sheet(changes={ITEM: change}, outcomes={ONE: "v1." + "x" * 100}), 0)
    (sums,) = book.chapters
    accounts = {ACCOUNT: Balance(8, 1, 1), "new": Balance(2)}
    assert sums.changes == {ITEM: ItemChange(accounts, ("new",), 1)}
    assert sums.outcomes == {ONE: "v1." + "x" * 100}
    assert sums.places == {ONE: Position(FIRST, 1).prefix}
    assert list(book.unfiled_keys()) == [ITEM]


def test_an_account_that_cant_be_read_concerns_no_other() -> None:
    book = Book(ORG, FIRST)
    read(book, item={"PK": ITEM.pk, "SK": ITEM.sk, "u:broken": "text", f"u:{ACCOUNT}": 4})
    book.fold(a_sheet(changes={ITEM: ItemChange({ACCOUNT: Balance(1), "broken": Balance(1)})}), 0)
    assert book.balance(ITEM, ACCOUNT) == Balance(5)


def test_the_items_that_were_used_longest_ago_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(book_module, "ITEMS_MAX", 2)
    book = Book(ORG, FIRST)
    keys = [Key(ITEM.pk, f"TAG#team#{number}") for number in range(3)]
    for key in keys:
        read(book, key)
    assert book.unread(keys) == keys[:1]
