"""Every parser of outside input takes work in proportion to its length, counted and not timed.

Each test doubles an input that was made to be as bad as possible. What is counted are comparisons
and copies where a loop in C could hide, and calls of functions everywhere else.
"""

import gc
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from re import _constants, _parser  # how a pattern was read
from typing import Any

import pytest

import pricekeeper
from counted_calls import calls
from exchanges import Written, exchange
from pricekeeper.errors import InvalidConfigError, InvalidValueError, RequestRefusedError
from pricekeeper.http import edge
from pricekeeper.http.edge import read_body, strict_json
from pricekeeper.http.incoming import QUERY_FIELDS_MAX, Incoming
from pricekeeper.http.routing import Paths
from pricekeeper.shapes import convert
from pricekeeper.telemetry.logs import redacted
from pricekeeper.tenants.parsing import ERRORS_MAX, parse_org_settings
from pricekeeper.wire.runtime import AcquireBody, BatchBody, UsageBody

FEW, MANY = 400, 800
SLACK = 1.1
GOOD: dict[str, Any] = {
    "request_id": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
    "model_label": "premium",
    "input_tokens": 1,
    "output_tokens": 2,
}


class Work:
    """How often something was done."""

    count = 0


class CountedStr(str):
    """Text that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Work.count += 1
        return str.__eq__(self, other)


class CountedBytes(bytes):
    """Bytes that count how often they are compared, and how many are copied."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        Work.count += 1
        return bytes.__eq__(self, other)

    def __add__(self, other: Any) -> "CountedBytes":
        Work.count += len(self) + len(other)
        return CountedBytes(bytes.__add__(self, other))


def counted(work: Callable[[], object]) -> int:
    """How much was compared and copied."""
    Work.count = 0
    work()
    return Work.count


def refused(work: Callable[[], object]) -> Callable[[], None]:
    """The same, for input that is refused in the end."""

    def run() -> None:
        with pytest.raises((RequestRefusedError, InvalidValueError, InvalidConfigError)):
            work()

    return run


def assert_linear(measure: Callable[[int], int]) -> None:
    """Twice the input takes twice the work, not four times as much."""
    few, many = measure(FEW), measure(MANY)
    assert many <= SLACK * (MANY / FEW) * max(few, 10), (few, many)


def test_a_key_that_is_there_twice() -> None:
    """Found by one look at each key."""

    def measure(count: int) -> int:
        names = [CountedStr(f"k{n}") for n in range(count)]
        pairs: list[tuple[str, Any]] = [(name, 1) for name in (*names, CountedStr(names[-1]))]

        def parse() -> None:
            with pytest.raises(ValueError, match=f"'k{count - 1}' is there twice"):
                edge._unique(pairs)

        return counted(parse)

    assert_linear(measure)


def test_headers_that_are_there_twice() -> None:
    """Found by one look at each header."""

    def measure(count: int) -> int:
        headers = [(CountedBytes(b"x-%d" % n), b"y") for n in range(count)]
        twice = (CountedBytes(b"x-1"), b"z")
        incoming = Incoming(exchange(Written(), headers=[*headers, twice]))
        return counted(lambda: incoming.repeated() == {b"x-1"})

    assert_linear(measure)


async def test_a_body_in_many_parts_is_copied_once() -> None:
    async def measure(count: int) -> int:
        parts = [
            {"body": CountedBytes(b"x"), "more_body": n < count, "type": "http.request"}
            for n in range(count + 1)
        ]
        arriving = iter(parts)

        async def receive() -> Any:
            return next(arriving)

        one = exchange(Written())
        one.receive = receive  # type: ignore[method-assign]
        Work.count = 0
        assert await read_body(Incoming(one)) == b"x" * (count + 1)
        return Work.count

    few, many = await measure(FEW), await measure(MANY)
    assert many <= SLACK * 2 * max(few, FEW)


BODIES: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "fields": (UsageBody, lambda n: {**GOOD, **{f"x{i}": 1 for i in range(n)}}),
    "a long name": (UsageBody, lambda n: {**GOOD, "x" * n: 1}),
    "a quoted value": (UsageBody, lambda n: {**GOOD, "status": " - at `" * n}),
    "tags": (UsageBody, lambda n: {**GOOD, "tags": {f"{i}": 1 for i in range(n)}}),
    "a long tag": (UsageBody, lambda n: {**GOOD, "tags": {"k" * n: 1}}),
    "too many records": (BatchBody, lambda n: {"requests": [{}] * n}),
    "bad records": (BatchBody, lambda n: {"requests": [{"x" * n: 1}] * 90}),
    "limits": (
        AcquireBody,
        lambda n: {"resource": "premium", "consume": {f"A{i}": -1 for i in range(n)}},
    ),
}
"""Bodies that parse and do not fit, and are walked field by field."""


@pytest.mark.parametrize(("wire", "make"), BODIES.values(), ids=BODIES)
def test_every_mistake_in_a_body(wire: Any, make: Callable[[int], Any]) -> None:
    def measure(count: int) -> int:
        body = make(count)
        return calls(refused(lambda: convert(body, wire)))

    measure(1)  # what is worked out once for each type has been worked out
    assert_linear(measure)
    with pytest.raises(RequestRefusedError) as told:
        convert(make(20_000), wire)
    assert sum(len(one.field) + len(one.message) for one in told.value.mistakes) < 40_000
    assert len(str(told.value)) < 1_000


def test_a_list_that_is_too_long_is_not_walked() -> None:
    """Its length is the mistake, and what is in it makes no difference."""
    assert calls(refused(lambda: convert({"requests": [GOOD] * 101}, BatchBody))) == calls(
        refused(lambda: convert({"requests": [GOOD] * 10_001}, BatchBody))
    )


JSON: dict[str, Callable[[int], str]] = {
    "keys": lambda n: json.dumps({f"k{i}": i for i in range(n)}),
    "objects": lambda n: json.dumps([{"a": i} for i in range(n)]),
    "escapes": lambda n: '"' + "\\u0041" * n + '"',
    "numbers": lambda n: "[" + "1e5," * n + "1]",
}


@pytest.mark.parametrize("make", JSON.values(), ids=JSON)
def test_json_itself(make: Callable[[int], str]) -> None:
    assert_linear(lambda n: calls(lambda: strict_json(make(n).encode())))


@pytest.mark.parametrize(
    "data", [b"[" + b"[]," * 340_000 + b"1]", b"[" * 100_000], ids=["many", "deep"]
)
def test_nobody_searches_for_garbage_while_a_body_is_decoded(data: bytes) -> None:
    searches: list[str] = []

    def note(phase: str, _details: object) -> None:
        searches.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        with suppress(RequestRefusedError):
            strict_json(data)
        assert len(searches) <= 4
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()


def test_a_query() -> None:
    def query(count: int) -> Any:
        text = b"&".join(b"k%d=%%41" % n for n in range(count))
        return Incoming(exchange(Written(), query_string=text)).query

    assert len(query(QUERY_FIELDS_MAX)) == QUERY_FIELDS_MAX
    assert_linear(lambda n: calls(refused(lambda: query(n))))
    assert_linear(
        lambda n: calls(
            lambda: Incoming(exchange(Written(), query_string=b"a=" + b"%41" * n)).query
        )
    )


def test_a_form() -> None:
    """So many parameters and no more; a value as long as the body."""
    assert_linear(lambda n: calls(refused(lambda: edge.parse_form(b"&".join([b"a=1"] * n)))))
    assert_linear(lambda n: calls(lambda: edge.parse_form(b"token=" + b"%41" * n)))


def test_a_path() -> None:
    """The walk ends where the tree does."""
    paths: Paths[str] = Paths()
    paths.add("/a/{x}/b/{y}", "here")
    assert_linear(lambda n: calls(lambda: paths.find("/a" * n)))
    assert_linear(lambda n: calls(lambda: paths.find("/a/" + "x" * n + "/b")))
    assert_linear(lambda n: calls(lambda: paths.find("/" * n)))


def test_the_settings_of_an_organisation() -> None:
    def settings(count: int) -> dict[str, Any]:
        many = {f"label-{n}": -1 for n in range(count)}
        lists = {"model_ordering": ["premium"] * 64, "budgets": [many] * 16}
        return {"quotas": many, "rate_limits": many, **lists, **many}

    assert_linear(lambda n: calls(refused(lambda: parse_org_settings(settings(n), {"premium"}))))
    with pytest.raises(InvalidConfigError) as told:
        parse_org_settings(settings(20_000), {"premium"})
    assert len(told.value.errors) == ERRORS_MAX


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (b'{"token":"eyJhbGciOiJFUzI1NiJ9.eyJzdWIi.c2ln"}', b'{"token":"[redacted]"}'),
        (b"eyJ" * 30_000, b"[redacted]"),
        (b"bearer " * 30_000, b"bearer " * 30_000),
        (b"Basic" + b" " * 90_000, b"Basic" + b" " * 90_000),
        (b"Bearer   abcdefgh", b"[redacted]"),
    ],
    ids=["a token", "many beginnings", "no tokens", "blanks", "a header"],
)
def test_what_is_taken_out_of_a_log_line(line: bytes, left: bytes) -> None:
    """Each character is looked at once: see below for why the pattern allows no more."""
    assert redacted(line) == left


OURS = {
    "pricekeeper.credentials.peppers._STORED": "reads what we have stored",
    "pricekeeper.http.openapi._NAME": "reads our own routes",
    "pricekeeper.settings.reading._SENDABLE": "reads our own environment",
    "pricekeeper.http.dashboard._HASHED": "reads the names of files that our own build left",
    "pricekeeper.settings.locations._REGION": "reads our own environment",
    "pricekeeper.settings.locations._PREFIX_OF_OBJECTS": "reads our own environment",
    "pricekeeper.settings.table._OF_KUBERNETES": "reads our own environment",
    "pricekeeper.settings.locations._ARN": "reads our own environment",
    "pricekeeper.alerts.channel._MAILBOX": "looks at 254 characters at most, from an administrator",
    "pricekeeper.standin.script._DIRECTIVE": "reads prompts to the stand-in, for its owner",
}
"""Patterns that may look twice at a character, and why that is no harm."""
LONG_AGO_BOUNDED = {
    "pricekeeper.pricing.model_ids": "a model id has 2,048 characters at most, and is matched whole"
}
APART = ("pricekeeper.cli", "pricekeeper.pricing.sources", "pricekeeper.pricing.strict_yaml")
"""Where nothing is read that came over HTTP."""


def patterns() -> Iterator[tuple[str, "re.Pattern[Any]"]]:
    for module in pkgutil.walk_packages(pricekeeper.__path__, "pricekeeper."):
        if module.name.startswith(APART) or module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, re.Pattern):
                yield f"{module.name}.{name}", value


def can_go_back(parsed: Any, *, last: bool = True) -> bool:
    """Whether something that may fail follows a repetition without a bound."""
    for position, (kind, argument) in enumerate(parsed):
        at_end = last and position == len(parsed) - 1
        if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            _, most, inner = argument
            if most == _constants.MAXREPEAT and not at_end:
                return True
            if can_go_back(inner, last=at_end and most == 1):
                return True
        elif kind is _constants.SUBPATTERN:
            if can_go_back(argument[-1], last=at_end):
                return True
        elif kind is _constants.BRANCH and any(
            can_go_back(branch, last=at_end) for branch in argument[1]
        ):
            return True
    return False


def test_no_pattern_can_be_made_to_look_again() -> None:
    """A repetition without a bound ends its pattern, or gives nothing back of what it took."""
    found = {
        name
        for name, pattern in patterns()
        if can_go_back(_parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))
    }
    assert {
        name for name in found if name.rpartition(".")[0] not in LONG_AGO_BOUNDED
    } <= OURS.keys()
    hostile = re.compile(r" - at `\$?(.*)`$")
    assert can_go_back(_parser.parse(hostile.pattern))
    assert can_go_back(_parser.parse(r"eyJ[a-z]{8,}\.[a-z]+"))
    assert not can_go_back(_parser.parse(r"(?:bearer|basic)\s++[a-z]{8,}"))
