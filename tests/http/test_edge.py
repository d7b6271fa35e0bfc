"""Strict JSON at the edge: what is refused, and how well that is explained."""

import contextlib
import json
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pricekeeper.errors import FieldError, RequestRefusedError
from pricekeeper.http import edge
from pricekeeper.http.edge import parse_json, strict_json
from pricekeeper.shapes import convert, members_of
from pricekeeper.wire.runtime import UsageBody
from pricekeeper.wire.settings import OrgBody


class Limit(msgspec.Struct, forbid_unknown_fields=True):
    capacity: Annotated[int, msgspec.Meta(ge=1)]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: Annotated[int, msgspec.Meta(ge=0)]
    limits: dict[str, dict[str, Limit]] = {}
    tags: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=2)]], msgspec.Meta(max_length=2)
    ] = []
    maybe: Limit | None = None


class Several(msgspec.Struct, forbid_unknown_fields=True):
    limits: Annotated[list[Limit], msgspec.Meta(min_length=1, max_length=2)]


def test_the_members_of_a_batch_are_not_judged_with_it() -> None:
    """The batch as a whole is."""
    members = [{"capacity": 1}, {"capacity": "none"}]
    assert members_of({"limits": members}, Several) == members
    good = [{"capacity": 1}]
    others: tuple[Any, ...] = ({"limits": []}, {"limits": good * 3}, {"limits": good, "more": 1})
    for plain in (*others, {"limits": good[0]}, {"others": good}, good, None):
        with pytest.raises(RequestRefusedError):
            members_of(plain, Several)


def test_every_mistake_is_told_with_its_place() -> None:
    """Not just the first: wrong types, bounds, missing and unknown fields, at any depth."""
    assert parse_json(b'{"name": "a", "count": 3, "maybe": null}', Body) == Body("a", 3)
    with pytest.raises(RequestRefusedError) as refused:
        parse_json(
            b'{"count": -1, "limits": {"*": {"rpm": {"capacity": 0, "x": 1}, "tpm": {}}}, '
            b'"tags": ["abc"], "maybe": {"capacity": "1"}, "extra": 1}',
            Body,
        )
    assert {mistake.field: mistake.message for mistake in refused.value.mistakes} == {
        "name": "is required",
        "count": "expected int >= 0",
        "limits.*.rpm.capacity": "expected int >= 1",
        "limits.*.rpm.x": "is not a field of this request",
        "limits.*.tpm.capacity": "is required",
        "tags[0]": "expected str of length <= 2",
        "maybe.capacity": "expected int, got str",
        "extra": "is not a field of this request",
    }


def test_a_mistake_of_the_whole_has_no_inner_place() -> None:
    """A list that is too long is itself the field that is wrong."""
    too_long = b'{"name": "a", "count": 1, "tags": ["a", "b", "c"]}'
    for body, mistake in (
        (too_long, FieldError("tags", "expected array of length <= 2")),
        (b"[]", FieldError("", "expected object, got array")),
    ):
        with pytest.raises(RequestRefusedError) as refused:
            parse_json(body, Body)
        assert refused.value.mistakes == (mistake,)


def test_only_so_many_mistakes_are_told() -> None:
    """A hostile body does not get an answer larger than itself."""
    with pytest.raises(RequestRefusedError) as refused:
        parse_json(json.dumps({f"x{n}": 1 for n in range(5000)}).encode(), Body)
    assert len(refused.value.mistakes) == 100


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"{", b'{"a": 1}x', b'{"a": 1,}', b"{'a': 1}", b"\x00", b'{"a": "\x01"}'),
        *(b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}'),
        *(b'{"a": 1, "a": 2}', b'{"b": {"a": 1, "a": 1}}'),
        *(b'{"a": "\\ud800"}', b'{"\\udfff": 1}', b'{"a": "\xff"}', b"\xff\xfe{\x00}\x00"),
        *(b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a":' * 50_000, b'{"a": ' + b"9" * 5_000 + b"}"),
    ],
    ids=range(21),
)
def test_what_two_readers_could_read_differently_is_refused(body: bytes) -> None:
    """Garbage, half a body, duplicate keys, surrogates, NaN, depth: never an exception of ours."""
    with pytest.raises(RequestRefusedError):
        strict_json(body)


def test_a_surrogate_pair_is_a_character() -> None:
    assert strict_json(b'{"a": "\\ud834\\udd1e"}') == {"a": "𝄞"}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("input_tokens", [-1, 10**9 + 1, 2**64, 1.0, True, "1", None]),
        ("request_id", ["not-a-uuid", 7]),
        ("model_label", ["Premium#1", ""]),
        ("status", ["FINE"]),
        ("tags", [{"a": 1}, {str(n): "x" for n in range(18)}, []]),
        ("batch", ["true"]),
    ],
)
def test_a_usage_record_is_checked_field_by_field(field: str, values: list[Any]) -> None:
    """The error names the field."""
    good: dict[str, Any] = {
        "request_id": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
        "model_label": "premium",
    }
    good |= {"input_tokens": 1, "output_tokens": 2}
    assert parse_json(json.dumps(good).encode(), UsageBody).output_tokens == 2
    for value in values:
        with pytest.raises(RequestRefusedError) as refused:
            parse_json(json.dumps({**good, field: value}).encode(), UsageBody)
        assert {mistake.field.partition(".")[0] for mistake in refused.value.mistakes} == {field}


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_refused(body: bytes) -> None:
    """Nothing that can be sent raises anything else."""
    with contextlib.suppress(RequestRefusedError):
        strict_json(body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=50)
@given(_json)
def test_any_json_is_a_body_or_refused(plain: Any) -> None:
    try:
        parse_json(json.dumps(plain).encode(), OrgBody)
    except RequestRefusedError as refused:
        assert str(refused)


_texts = st.text(alphabet='ab,:{}[]"\\é', max_size=3).map(json.dumps)
_names = st.sampled_from(['"a"', '"b"', '"a,"']) | _texts
_numbers = st.sampled_from(["0", "-0", "1.0", "1e3", "1e999", "NaN", "true", "01", "9" * 30])
_gaps = st.sampled_from(["", " ", "\n\t"])


def _between(opening: str, members: Any, closing: str) -> st.SearchStrategy[str]:
    """A container with these members, in one of the ways in which it can be written."""
    listed = st.lists(members, max_size=4).map(",".join)
    return st.tuples(_gaps, listed, _gaps).map(lambda one: opening + "".join(one) + closing)


_bodies = st.recursive(  # a name may come twice, and a text may have anything in it
    _texts | _numbers,
    lambda inner: (
        _between("[", inner, "]")
        | _between("{", st.tuples(_names, _gaps, st.just(":"), inner).map("".join), "}")
    ),
    max_leaves=8,
)


@given(_bodies, st.sampled_from(["", "x", "]", " "]))
def test_the_quick_way_reads_what_the_strict_way_reads(body: str, rest: str) -> None:
    """Nothing else, and nothing more: also where a name comes twice."""

    def read(text: bytes) -> str:
        try:
            return repr(strict_json(text))
        except RequestRefusedError as refused:
            return str(refused)

    def give_up(_: bytes) -> Any:
        raise msgspec.DecodeError

    data = (body + rest).encode()
    quickly = read(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(edge, "_decode_quickly", give_up)
        assert read(data) == quickly


@pytest.mark.parametrize("body", [b'{"a": 1, "a": 1}', b'[{"a": 1, "a": 1}]', b'{"a": 1,"a" : 2}'])
def test_a_name_that_comes_twice_is_refused_the_quick_way_too(body: bytes) -> None:
    with pytest.raises(RequestRefusedError, match="the key 'a' is there twice"):
        strict_json(body)


def test_a_bad_key_is_told_where_it_is() -> None:
    """Each of them, and what it is called, if that is not too long to say."""
    long = "k" * 257
    body = {"tags": {"": "x", long: "x", "fine": 1}}
    with pytest.raises(RequestRefusedError) as refused:
        convert(body, UsageBody)
    told = [(one.field, one.message) for one in refused.value.mistakes if "tags" in one.field]
    assert told == [
        ("tags", "the key '': expected str of length >= 1"),
        ("tags", f"the key {long[:80]!r}: expected str of length <= 256"),
        ("tags.fine", "expected str, got int"),
    ]
