"""The sheet that some commands are about to write, and what each sees of the others."""

from ledger.conftest import ACCOUNT, ITEM, ORG
from pricekeeper.budgets import Balance
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.draft import SHEET_BYTES_MAX, Draft
from pricekeeper.ledger.position import ON_SHEET_MAX, begin_chapter
from pricekeeper.ledger.sheet import ItemChange

NOW_MS = 1_790_000_000_000


def a_draft(used: int | None = None) -> Draft:
    book = Book(ORG, begin_chapter(NOW_MS, 1))
    item = None if used is None else {"PK": ITEM.pk, "SK": ITEM.sk, f"u:{ACCOUNT}": used}
    book.remember(ITEM, book.with_unfiled(ITEM, item))
    return Draft(book, NOW_MS, b"nonce")


class Asking:
    """Who asks for an errand."""

    def fail(self, error: BaseException) -> None:
        raise error


async def run() -> None:
    return


def test_each_command_sees_what_those_before_it_have_added() -> None:
    """The book has not changed: the draft may not be written."""
    draft = a_draft(used=10)
    assert draft.add(ITEM, ACCOUNT, Balance(5, 5)) == Balance(15, 5)
    assert draft.add(ITEM, ACCOUNT, Balance(-2)) == Balance(13, 5)
    assert draft.balance(ITEM, ACCOUNT) == Balance(13, 5)
    assert draft.book.balance(ITEM, ACCOUNT) == Balance(10)
    assert draft.sheet().changes == {ITEM: ItemChange({ACCOUNT: Balance(3, 5)})}


def test_an_account_is_opened_once_and_seen_open() -> None:
    draft = a_draft()
    assert draft.balance(ITEM, ACCOUNT) is None
    draft.open(ITEM, ACCOUNT, Balance(4))
    draft.mend(ITEM, ACCOUNT, Balance(1))
    assert draft.balance(ITEM, ACCOUNT) == Balance(5)
    assert draft.mends(ITEM) == 1
    assert draft.sheet().changes == {ITEM: ItemChange({ACCOUNT: Balance(5)}, (ACCOUNT,), 1)}


def test_an_account_that_is_not_open_is_left_alone() -> None:
    """Its window is over; one that was opened by another command before is open."""
    draft = a_draft()
    draft.add_if_open(ITEM, ACCOUNT, Balance(1))
    assert (draft.revision, draft.sheet().changes) == (0, {})
    draft.open(ITEM, ACCOUNT, Balance(4))
    draft.add_if_open(ITEM, ACCOUNT, Balance(1))
    assert draft.balance(ITEM, ACCOUNT) == Balance(5)
    draft = a_draft(used=10)
    draft.add_if_open(ITEM, ACCOUNT, Balance(1))
    assert draft.sheet().changes == {ITEM: ItemChange({ACCOUNT: Balance(1)})}


def test_what_becomes_of_an_authorization_is_seen_by_those_behind() -> None:
    draft = a_draft()
    draft.settle("one", "v1.")
    draft.name(draft.take_number(), "name")
    assert draft.outcome("one") == "v1."
    assert draft.outcome("another") is None
    assert draft.take_number() == 1
    sheet = draft.sheet()
    assert (sheet.outcomes, sheet.names, sheet.written_at_ms) == (
        {"one": "v1."},
        {"name": 0},
        NOW_MS,
    )


def test_the_same_errand_is_run_once_for_all_who_ask() -> None:
    draft, first, second = a_draft(), Asking(), Asking()
    draft.ask("mark", run, first.fail)
    draft.ask("mark", run, second.fail)
    draft.share("claims", list[int]).append(1)
    draft.share("claims", list[int]).append(2)
    assert {name: asking for name, (_, asking) in draft.errands.items()} == {
        "mark": [first.fail, second.fail]
    }
    assert draft.share("claims", list[int]) == [1, 2]


def test_a_sheet_is_full_after_so_many_bytes_or_numbers() -> None:
    draft = a_draft()
    draft.put({"g0": b"x" * SHEET_BYTES_MAX})
    draft.put({"g0": b"x" * SHEET_BYTES_MAX})
    assert draft.is_full
    draft = a_draft()
    for _ in range(ON_SHEET_MAX - 1):
        draft.take_number()
    assert not draft.is_full
    draft.take_number()
    assert draft.is_full
