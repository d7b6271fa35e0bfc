"""The rules of a session, as values: no store, no clock."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import InvalidValueError
from pricekeeper.sessions import (
    Labels,
    Lifetimes,
    RefreshToken,
    Session,
    SessionId,
    make_labels,
    parse_session_id,
)
from pricekeeper.sessions.session import LABEL_LENGTH_MAX, Slots, Verdict, judge

NOW_MS = 1_768_000_000_000
ID = SessionId(3, "n" * 22)


def session(
    slot: int = 3, opened_at_ms: int = NOW_MS, generation: str = "g", rotation: int = 2
) -> Session:
    return Session(
        subject="client",
        id=SessionId(slot, "n" * 22),
        token_generation=generation,
        rotation=rotation,
        key_id="k",
        refresh_hash="current",
        previous_hash="previous",
        opened_at_ms=opened_at_ms,
        refreshed_at_ms=NOW_MS,
        ends_at_epoch=NOW_MS // 1000 + 100,
        labels=Labels(),
    )


@pytest.mark.parametrize(
    ("presented", "rotation", "after_ms", "verdict"),
    [
        ("current", 2, 0, Verdict.ROTATE),
        ("current", 2, 10**9, Verdict.ROTATE),
        ("previous", 1, 0, Verdict.REPLAY),
        ("previous", 1, 9_999, Verdict.REPLAY),
        ("previous", 1, -5_000, Verdict.REPLAY),
        ("previous", 1, 10_000, Verdict.REUSED),
        ("older", 0, 0, Verdict.REUSED),
        ("unheard of", 3, 0, Verdict.ENDED),
    ],
)
def test_a_token_is_worth_what_its_slot_says(
    presented: str, rotation: int, after_ms: int, verdict: Verdict
) -> None:
    """The current one rotates, the one before is forgiven for a moment, older ones never."""
    token = RefreshToken("client", ID, rotation, presented)
    assert judge(session(), token, NOW_MS + after_ms, 10_000) is verdict


def test_a_token_of_another_session_or_none_is_over() -> None:
    for held in (None, session(slot=4)):
        token = RefreshToken("client", ID, 2, "current")
        assert judge(held, token, NOW_MS, 10_000) is Verdict.ENDED


def test_slots_tell_who_lives_who_goes_and_what_is_free() -> None:
    """Another generation's sessions are left over; slots beyond the limit are gone."""
    old, young, beyond = session(1, NOW_MS - 5), session(0, NOW_MS), session(7, NOW_MS - 9)
    left = session(2, NOW_MS - 99, generation="before")
    slots = Slots("g", (young, old, left, beyond))
    assert slots.live == (beyond, old, young)
    assert slots.oldest(5) == old
    assert slots.beyond(5) == (beyond,)
    assert slots.free(5) == {2: left, 3: None, 4: None}
    assert slots.find(old.id) == old
    assert slots.find(left.id) is None


def test_a_session_ends_by_idling_or_by_age() -> None:
    lifetimes = Lifetimes(idle_secs=10, absolute_secs=25)
    assert lifetimes.end_epoch(1_000, 1_000) == 11
    assert lifetimes.end_epoch(1_000, 12_999) == 22
    assert lifetimes.end_epoch(1_000, 24_000) == 26


@pytest.mark.parametrize(
    ("idle", "absolute", "grace"), [(0, 1, 0), (2, 1, 0), (1, 1, -1), (30 * 86_400 + 1, 10**9, 0)]
)
def test_impossible_lifetimes_are_refused(idle: int, absolute: int, grace: int) -> None:
    with pytest.raises(InvalidValueError):
        Lifetimes(idle, absolute, grace)


@given(st.integers(0, 99), st.text("abcXYZ019_-", min_size=22, max_size=22))
def test_a_session_id_reads_as_it_was_written(slot: int, nonce: str) -> None:
    written = SessionId(slot, nonce)
    assert parse_session_id(str(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100-" + "n" * 22,
        "3-" + "n" * 22,
        "003-" + "n" * 21,
        "003-" + "#" * 22,
        "\u0660\u0660\u0661-" + "n" * 22,
    ],
)
def test_other_texts_are_no_session_ids(text: str) -> None:
    assert parse_session_id(text) is None


@given(st.text(), st.text())
def test_labels_can_always_be_stored_and_shown(user_agent: str, address: str) -> None:
    """Any header a client sends becomes printable text of bounded length."""
    labels = make_labels(user_agent * 100, address)
    for text in (labels.user_agent, labels.address):
        assert len(text) <= LABEL_LENGTH_MAX
        assert len(text.encode()) <= 4 * LABEL_LENGTH_MAX
        assert not any(unicodedata.category(c).startswith("C") for c in text)
