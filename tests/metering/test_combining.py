"""What goes into one transaction: never too much, one operation for each account."""

from collections.abc import Iterable

import pytest

from metering.conftest import LABELS
from pricekeeper.errors import CancellationReason, ReasonCode
from pricekeeper.metering.combining import OPERATIONS_MAX, Counted, Plan, Submission, take
from pricekeeper.metering.committer import TURN_RECORDS
from pricekeeper.metering.counters import Account, Counters, Total
from pricekeeper.metering.fairness import TurnQueue
from pricekeeper.storage import Put, Update
from pricekeeper.storage.operations import check_transaction
from pricekeeper.storage.tables import REQUEST_DEDUP, USAGE_AGG_SHARDED

ONE = Counters(cost_usd_picos=7, input_tokens=2, output_tokens=1, requests=1)


def counted(label: str = "premium", scope: str = "ORG#1") -> Counted:
    return Counted(Account(scope, label, "20260123"), 8)


def submission(number: int, place: Counted | None = None) -> Submission:
    where = place or counted()
    org_id = where.account.scope_key
    return Submission(org_id, str(number), where, ONE, {"PK": f"REQ#{number}"})


def queue_of(submissions: Iterable[Submission]) -> TurnQueue[Submission]:
    queue: TurnQueue[Submission] = TurnQueue(TURN_RECORDS)
    for one in submissions:
        queue.append(one.org_id, one)
    return queue


def plan(submissions: list[Submission], marked: set[Counted] | None = None) -> Plan:
    return Plan(submissions, "commit", lambda _: 3, marked or set(), 1_768_000_000)


def test_an_account_takes_one_operation_however_many_records_it_has() -> None:
    """99 receipts, and what they come to together."""
    queue = queue_of(submission(n) for n in range(150))
    taken = take(queue, {counted()})
    made = plan(taken, {counted()})

    assert [len(taken), len(queue), len(made.operations)] == [99, 51, OPERATIONS_MAX]
    update = made.operations[-1]
    assert isinstance(update, Update)
    assert update.apply(None)["cost_usd_picos"] == 99 * 7
    check_transaction(made.operations)


def test_the_first_commit_of_an_account_also_marks_it() -> None:
    """So whoever counted has marked, and whoever looks for accounts finds it."""
    taken = take(queue_of(submission(n) for n in range(150)), set())
    made = plan(taken)

    assert len(taken) == 98
    assert len(made.operations) == OPERATIONS_MAX
    marker = made.operations[-1]
    assert isinstance(marker, Put)
    assert (marker.table, marker.key.pk) == (USAGE_AGG_SHARDED, "ACTIVE#20260123")
    assert marker.key.sk == "ORG#1#LABEL#premium#SH#8"


@pytest.mark.parametrize("marked", [True, False])
def test_records_of_any_scope_share_a_transaction(marked: bool) -> None:
    """As many as fit with all their accounts, and in the order they came."""
    places = [counted(label, f"ORG#{n}") for n in range(40) for label in LABELS]
    queue = queue_of(submission(n, place) for n, place in enumerate(places))
    known = set(places) if marked else set()
    taken = take(queue, known)

    assert len(taken) == (50 if marked else 33)
    assert taken[0].request_id == "0"
    assert queue.first().request_id == str(len(taken))
    check_transaction(plan(taken, known).operations)


def test_every_record_has_a_receipt_that_is_written_once() -> None:
    """Put if absent, signed with the commit and the shard that its account went to."""
    made = plan([submission(1), submission(2)])
    for operation, pk in zip(made.operations[:2], ("REQ#1", "REQ#2"), strict=True):
        assert isinstance(operation, Put)
        assert operation.table is REQUEST_DEDUP
        assert operation.item == {"PK": pk, "commit_id": "commit", "shard_id": 3}
        assert operation.condition is not None
        assert operation.condition.holds({})
        assert not operation.condition.holds(operation.item)


def test_who_met_a_receipt_is_known_from_the_reasons() -> None:
    """And nobody else: not who was merely in the same transaction."""
    first, second, third = submission(1), submission(2), submission(3)
    passed = CancellationReason(ReasonCode.NONE)
    there = {"PK": "REQ#2", "commit_id": "another"}
    met = plan([first, second, third]).met(
        [passed, CancellationReason(ReasonCode.CONDITION_FAILED, there), passed, passed, passed]
    )
    assert met == [(second, there)]


def test_one_sum_contains_another_only_if_no_number_is_smaller() -> None:
    """More of one thing does not make up for less of another."""
    less = Counters(cost_usd_picos=5, requests=1)
    more = Counters(cost_usd_picos=6, requests=1)
    other = Counters(cost_usd_picos=9, requests=0)
    assert more.dominates(less)
    assert more.dominates(more)
    assert not less.dominates(more)
    assert not other.dominates(less)
    assert not less.dominates(other)


def test_micro_dollars_are_for_showing() -> None:
    """A thousand small costs are one micro-dollar, though each of them shows as none."""
    small = Counters(cost_usd_picos=1_000)
    total = sum([small] * 1_000, Counters())
    assert small.cost_usd_micros == 0
    assert total.cost_usd_micros == 1
    assert Total.of(total, 5).cost_usd_micros == 1
