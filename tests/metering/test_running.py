"""Today's total as one process knows it: the last read, and its own records since."""

from pricekeeper.metering.counters import Account, Counters, Total
from pricekeeper.metering.known_totals import ACCOUNTS_MAX, SLICE_MS, SLICES_MAX, RunningTotals

ACCOUNT = Account("ORG#1", "premium", "20260123")
ONE = Counters(cost_usd_picos=7, requests=1)


def total(requests: int, as_of_ms: int) -> Total:
    return Total.of(Counters(cost_usd_picos=7 * requests, requests=requests), as_of_ms)


def test_nothing_is_known_before_a_total_was_read() -> None:
    """Records counted before that are kept."""
    running = RunningTotals()
    running.count(ACCOUNT, ONE, 1_000)
    assert running.total(ACCOUNT) is None
    assert running.age_ms(ACCOUNT, 5) is None
    running.rebase(ACCOUNT, Total(), 3)
    assert running.total(ACCOUNT) == total(1, 0)
    assert running.age_ms(ACCOUNT, 5) == 2


def test_what_was_counted_since_is_added_to_what_was_read() -> None:
    """A newer total contains all up to and including its moment; that is not added again."""
    running = RunningTotals()
    running.rebase(ACCOUNT, total(10, as_of_ms=5_000), 0)
    for at_ms in (6_000, 7_000, 8_000):
        running.count(ACCOUNT, ONE, at_ms)
    assert running.total(ACCOUNT) == total(13, 5_000)
    running.rebase(ACCOUNT, total(12, as_of_ms=7_000), 0)
    assert running.total(ACCOUNT) == total(13, 7_000)
    running.rebase(ACCOUNT, total(20, as_of_ms=9_000), 0)
    assert running.total(ACCOUNT) == total(20, 9_000)


def test_the_memory_of_an_account_is_bounded_and_loses_nothing() -> None:
    """The oldest slices of time grow together."""
    running = RunningTotals()
    running.rebase(ACCOUNT, Total(), 0)
    times = 3 * SLICES_MAX
    for second in range(times):
        running.count(ACCOUNT, ONE, second * SLICE_MS)
    kept = running._accounts.peek(ACCOUNT)
    assert kept is not None
    assert len(kept.slices) == SLICES_MAX
    assert running.total(ACCOUNT) == total(times, 0)
    running.rebase(ACCOUNT, total(5, as_of_ms=0), 0)
    assert running.total(ACCOUNT) == total(5 + times, 0)
    half_ms = (times - SLICES_MAX // 2) * SLICE_MS
    running.rebase(ACCOUNT, total(100, as_of_ms=half_ms - 1), 0)
    assert running.total(ACCOUNT) == total(100 + SLICES_MAX // 2, half_ms - 1)


def test_the_number_of_accounts_is_bounded() -> None:
    """Those that were counted for least recently are forgotten first."""
    running = RunningTotals()
    accounts = [Account("ORG#1", "premium", str(n)) for n in range(ACCOUNTS_MAX + 1)]
    for account in accounts[:-1]:
        running.rebase(account, Total(), 0)
    running.count(accounts[0], ONE, 1)
    running.rebase(accounts[-1], Total(), 0)
    assert running.total(accounts[0]) is not None
    assert running.total(accounts[1]) is None
