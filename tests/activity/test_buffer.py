"""What happened since the last time, combined and bounded."""

import pytest

from activity.happenings import ORG, OTHER_ORG, counted, denial, flip, line, note
from pricekeeper.activity import buffer
from pricekeeper.activity.buffer import EventBuffer, OrgNews
from pricekeeper.activity.event import (
    AlertNotice,
    AuthorizationChanges,
    CountedSpend,
    DeniedCalls,
    Event,
    Flip,
    decode_events,
    encode,
    seen_by_app,
)


def only(events: tuple[Event, ...]) -> Event:
    (event,) = events
    return event


def test_records_of_an_app_and_label_are_one_row() -> None:
    """Exactly added up; the records themselves are there, too."""
    news = OrgNews()
    for number in range(3):
        note(news, counted(f"r{number}", is_error=number == 1))
    note(news, counted("x", label="economy", app_id=None, cost_usd_picos=1))
    event = only(news.events(ORG, 77))
    assert isinstance(event, CountedSpend)
    assert (event.org_id, event.at_ms, event.more) == (ORG, 77, 0)
    first, second = event.rows
    assert (first.app_id, first.label) == ("web", "premium")
    assert (first.cost_usd_picos, first.requests, first.errors) == (15_000_000, 3, 1)
    tokens = (first.input_tokens, first.output_tokens)
    assert (*tokens, first.cache_read_tokens, first.cache_write_tokens) == (9, 6, 3, 12)
    assert (second.app_id, second.label, second.requests) == (None, "economy", 1)
    assert [one.request_id for one in event.records] == ["r0", "r1", "r2", "x"]


def test_of_many_records_the_last_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is room for; the rest is counted, and the sums have all of them."""
    news = OrgNews()
    for number in range(1000):
        note(news, counted(f"r{number}"))
    event = only(news.events(ORG, 0))
    assert isinstance(event, CountedSpend)
    assert [one.request_id for one in event.records] == [f"r{n}" for n in range(980, 1000)]
    assert (event.more, event.rows[0].requests) == (980, 1000)
    monkeypatch.setattr(buffer, "LINES_BYTES_MAX", 3 * len(encode((event,))) // 20)
    cropped = only(news.events(ORG, 0))
    assert isinstance(cropped, CountedSpend)
    assert [one.request_id for one in cropped.records] == ["r997", "r998", "r999"]
    assert (cropped.more, news.is_complete) == (997, True)


def test_denials_for_the_same_reasons_are_one() -> None:
    news = OrgNews()
    for number in range(5):
        news.note_denial(denial(number, why={"detail": f"no {number}"}))
    news.note_denial(denial(9, model="auto"))
    same, other = news.events(ORG, 7)
    assert isinstance(same, DeniedCalls)
    assert isinstance(other, DeniedCalls)
    assert (same.count, same.why, same.model) == (5, {"detail": "no 0"}, "premium")
    assert (other.count, other.model) == (1, "auto")


def test_authorizations_are_counted_by_what_became_of_them() -> None:
    """And what they hold, and are charged at."""
    news = OrgNews()
    for status in ("open", "open", "captured", "voided", "unsettled"):
        note(news, line(status, status=status))
    event = only(news.events(ORG, 0))
    assert isinstance(event, AuthorizationChanges)
    (row,) = event.rows
    assert (row.authorized, row.captured, row.voided, row.unsettled) == (2, 1, 1, 1)
    assert (row.held_usd_picos, row.unsettled_usd_picos) == (14_000_000, 7_000_000)
    assert (len(event.lines), event.more) == (5, 0)


@pytest.mark.parametrize("kind", ["counted", "line", "denial", "flip", "alert"])
def test_what_has_no_room_is_missing_and_said_to_be(kind: str) -> None:
    news = OrgNews()
    for number in range(buffer.ROWS_MAX + 1):
        name = f"app-{number}"
        if kind == "counted":
            note(news, counted(app_id=name))
        elif kind == "line":
            note(news, line(app_id=name))
        elif kind == "denial":
            news.note_denial(denial(0, app_id=name))
        elif kind == "flip":
            news.note_flip(flip())
        else:
            news.note_alert(AlertNotice(ORG, 0, None, {}))
    assert not news.is_complete
    told = news.events(ORG, 0)
    rows = sum(len(getattr(event, "rows", (1,))) for event in told)
    assert rows == (buffer.ROWS_MAX if kind in ("counted", "line") else buffer.FEW_MAX)


def test_organisations_have_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later organisations are left out, and readers have to look for themselves."""
    monkeypatch.setattr(buffer, "ORGS_MAX", 1)
    noted = EventBuffer()
    first, second = noted.of(ORG), noted.of(OTHER_ORG)
    assert first is not None
    assert second is None
    assert noted.take() == ({ORG: first}, False)
    assert noted.take() == ({}, True)


def test_what_is_written_is_what_is_read() -> None:
    """Every kind of event, through the bytes of an item."""
    news = OrgNews()
    note(news, counted(tags={"team": "red"}))
    note(news, line(cost_usd_picos=3))
    news.note_denial(denial(1))
    news.note_flip(flip())
    news.note_alert(AlertNotice(ORG, 3, "web", {"name": "budget", "deep": [1, {"a": None}]}))
    events = news.events(ORG, 9)
    assert len(events) == 5
    assert decode_events(encode(events)) == events


def test_an_app_is_told_of_itself_alone() -> None:
    """Its rows, its records, its denials; and of a flip that concerns all apps."""
    news = OrgNews()
    for app in ("web", "batch", "batch"):
        note(news, counted(app, app_id=app))
        note(news, line(app, app_id=app))
        news.note_denial(denial(0, app_id=app))
        news.note_flip(flip(app_id=app))
        news.note_alert(AlertNotice(ORG, 0, app, {}))
    news.note_flip(flip(app_id=None))
    news.note_alert(AlertNotice(ORG, 0, None, {}))
    seen = [one for event in news.events(ORG, 0) if (one := seen_by_app(event, "web")) is not None]
    kinds = [type(event) for event in seen]
    assert kinds == [Flip, Flip, AlertNotice, DeniedCalls, AuthorizationChanges, CountedSpend]
    assert "batch" not in str(seen)
    authorizations, spend = seen[-2:]
    assert isinstance(authorizations, AuthorizationChanges)
    assert isinstance(spend, CountedSpend)
    assert (authorizations.more, spend.more) == (0, 0)
    assert (len(authorizations.rows), len(spend.rows)) == (1, 1)
    other = [seen_by_app(event, "other") for event in news.events(ORG, 0)]
    assert [event for event in other if event is not None] == [flip(app_id=None)]
