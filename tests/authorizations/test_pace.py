"""How soon a worker sends its next transaction: at once if it is alone, later among others."""

from random import Random

from pricekeeper.authorizations.pace import LOOK_EVERY, PAUSE_MS_MAX, Pace


def test_a_worker_among_others_pauses_and_one_that_meets_nobody_stops() -> None:
    """It eases off within some transactions, and never pauses for longer than the bound."""
    pace, random = Pace(), Random(1)
    pace.note_sent(6)
    assert pace.pause_ms(random, 0) <= 3
    for _ in range(20):
        pace.note_others()
    assert PAUSE_MS_MAX // 2 <= pace.pause_ms(random, 0) <= PAUSE_MS_MAX
    assert pace.pause_ms(random, 3) <= PAUSE_MS_MAX // 8
    assert pace.must_look
    for _ in range(100):
        pace.note_sent(6)
        pace.note_look()
    assert pace.pause_ms(random, 0) <= 3
    assert not pace.must_look


def test_a_transaction_that_took_long_is_a_reason_to_look_but_not_to_pause() -> None:
    """Somebody may have been in its way, or the store was slow."""
    pace, random = Pace(), Random(1)
    pace.note_sent(6)
    pace.note_sent(40)
    assert pace.must_look
    assert pace.pause_ms(random, 0) <= 3


def test_a_first_transaction_that_took_very_long_does_not_make_the_next_ones_wait() -> None:
    """The gap is half of the fastest one, and has the same bound as every pause."""
    pace, random = Pace(), Random(1)
    pace.note_sent(120_000)
    assert pace.pause_ms(random, 0) <= PAUSE_MS_MAX


def test_a_worker_that_is_always_first_looks_every_now_and_then() -> None:
    pace = Pace()
    for _ in range(LOOK_EVERY):
        assert not pace.must_look
        pace.note_sent(6)
    assert pace.must_look


def test_nobody_pauses_for_a_store_that_answers_at_once() -> None:
    """It has no conflicts. A clock that stands still is such a store, too: nobody would wake."""
    pace, random = Pace(), Random(1)
    for _ in range(20):
        pace.note_sent(0)
        pace.note_others()
    assert pace.pause_ms(random, 0) == 0
    assert not pace.must_look
