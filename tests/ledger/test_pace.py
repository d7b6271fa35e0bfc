"""How soon a worker writes its next sheet: at once if it is alone, in turns among others."""

from random import Random

from pricekeeper.ledger.worker import PAUSE_MS_MAX, Pace


def test_whoever_has_written_leaves_the_others_time_for_as_many_sheets_as_they_write() -> None:
    """A little at most without other writers, and never more than the bound."""
    pace, random = Pace(), Random(1)
    pace.note_sent(6, others=0)
    looks = [pace.must_look]
    assert pace.pause_ms(random, 0) <= 3
    pace.note_sent(6, others=2)
    looks.append(pace.must_look)
    assert looks == [False, True]
    assert 7 <= pace.pause_ms(random, 0) <= 15
    assert pace.pause_ms(random, 3) <= 1
    pace.note_sent(6, others=1_000)
    assert PAUSE_MS_MAX // 2 <= pace.pause_ms(random, 0) <= PAUSE_MS_MAX


def test_others_that_have_gone_are_forgotten() -> None:
    pace, random = Pace(), Random(1)
    pace.note_sent(6, others=3)
    for _ in range(3):
        pace.note_sent(6, others=0)
    assert not pace.must_look
    assert pace.pause_ms(random, 0) <= 3


def test_a_first_sheet_that_took_very_long_does_not_make_the_next_ones_wait() -> None:
    pace, random = Pace(), Random(1)
    pace.note_sent(120_000, others=0)
    assert pace.pause_ms(random, 0) <= PAUSE_MS_MAX


def test_nobody_pauses_for_a_store_that_answers_at_once() -> None:
    """With a frozen clock no pause would end."""
    pace, random = Pace(), Random(1)
    for _ in range(20):
        pace.note_sent(0, others=5)
    assert pace.pause_ms(random, 0) == 0
    assert not pace.must_look
