"""A listener: every moment once and in order, and it knows when something is missing."""

from collections import Counter

import pytest

from activity.happenings import ORG, counted
from pricekeeper.activity import listening
from pricekeeper.activity.event import CountedSpend, Event
from pricekeeper.activity.items import FeedItem
from pricekeeper.activity.listening import Arrived, FeedPosition, Listener, Missed, Quiet
from pricekeeper.errors import InvalidValueError


def event(name: str) -> Event:
    return CountedSpend(ORG, 0, (), (counted(name),), 0)


def moment(number: int, *names: str, is_complete: bool = True) -> FeedItem:
    return FeedItem(number, tuple(map(event, names)), is_complete, 0)


def listener(number: int = 10) -> Listener:
    return Listener(FeedPosition(number), Counter())


def told(*numbered: tuple[str, str]) -> list[Arrived]:
    return [Arrived(FeedPosition.parse(position), event(name)) for position, name in numbered]


async def test_moments_are_told_once_and_in_order() -> None:
    """Also items that arrive twice because of the read at joining."""
    one = listener()
    for item in (
        moment(9, "z"),
        moment(10, "y"),
        moment(11, "a"),
        moment(11, "a"),
        moment(12, "b"),
    ):
        one.put(item)
    assert await one.read() == told(("11", "a"))
    assert await one.read() == told(("12", "b"))


async def test_each_event_of_a_moment_has_its_position() -> None:
    """The last one has that of the whole moment."""
    one = listener()
    one.put(moment(11, "a", "b", "c"))
    assert await one.read() == told(("11.1", "a"), ("11.2", "b"), ("11", "c"))


@pytest.mark.parametrize(
    ("position", "rest"),
    [
        ("11.0", ["a", "b", "c", "d"]),
        ("11.1", ["b", "c", "d"]),
        ("11.2", ["c", "d"]),
        ("11", ["d"]),
    ],
)
async def test_it_resumes_from_any_position(position: str, rest: list[str]) -> None:
    """Also from the middle of a moment, with what came meanwhile behind."""
    one = listener(11)
    one.put(moment(12, "d"))
    one.begin(FeedPosition.parse(position), [moment(11, "a", "b", "c"), moment(12, "d")])
    names: list[str] = []
    while len(names) < len(rest):
        for news in await one.read():
            assert isinstance(news, Arrived)
            assert isinstance(news.event, CountedSpend)
            names.append(news.event.records[0].request_id)
    assert names == rest
    one.close("left")
    assert await one.read() == []


async def test_a_gap_is_told() -> None:
    one = listener()
    one.put(moment(13, "a"))
    missed, *news = await one.read()
    assert missed == Missed(FeedPosition(13, 0), "TOO_LATE")
    assert news == told(("13", "a"))
    one.put(moment(14, "b", is_complete=False))
    assert await one.read() == [Missed(FeedPosition(14, 0), "TOO_MUCH"), *told(("14", "b"))]


async def test_a_moment_that_was_told_in_part_and_is_gone_is_a_gap() -> None:
    one = Listener(FeedPosition(10, 1), Counter())
    one.put(moment(11, "a"))
    assert (await one.read())[0] == Missed(FeedPosition(11, 0), "TOO_LATE")


async def test_a_position_that_is_gone_is_told_first() -> None:
    one = listener(20)
    one.put(moment(21, "a"))
    one.begin(FeedPosition(3), None)
    assert await one.read() == [Missed(FeedPosition(20), "TOO_LATE")]
    assert await one.read() == told(("21", "a"))


async def test_who_does_not_keep_up_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded; resumed items come on top."""
    monkeypatch.setattr(listening, "WAITING_MAX", 3)
    one = listener()
    for number in range(11, 15):
        assert one.end is None
        one.put(moment(number, "x"))
    assert str(one.end) == "slow"
    assert await one.read() == []
    resumed = listener()
    resumed.begin(FeedPosition(10), [moment(number) for number in range(10, 30)])
    for number in range(30, 33):
        resumed.put(moment(number, "x"))
    assert resumed.end is None


async def test_silence_is_told_only_if_nothing_waits() -> None:
    one = listener()
    one.note_quiet()
    assert await one.read() == [Quiet(FeedPosition(10))]
    one.put(moment(11, "a"))
    one.note_quiet()
    assert await one.read() == told(("11", "a"))
    one.note_quiet()
    assert await one.read() == [Quiet(FeedPosition(11))]


@pytest.mark.parametrize("text", ["", "x", "1.", ".1", "1.x", "-1", "1" * 17, "1.2.3", "१"])
def test_a_position_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        FeedPosition.parse(text)
