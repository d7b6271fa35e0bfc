"""What a usage record must look like, when it is accepted, and when two are the same."""

from typing import Any

import msgspec
import pytest

from metering.conftest import a_usage
from pricekeeper.errors import InvalidValueError
from pricekeeper.metering.usage import (
    AHEAD_MS_MAX,
    LATE_MS_MAX,
    MOMENT_LIFE_SECS,
    UsageStatus,
    checked,
    fingerprint,
    happened_at_ms,
)
from pricekeeper.metering.voiding import VOIDABLE_DAYS

ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
NOW_MS = 1_768_000_000_000


def test_a_request_id_in_capitals_is_the_same_request() -> None:
    """There is one spelling inside, so there can be one receipt."""
    assert checked(a_usage(ID.upper())).request_id == ID
    assert checked(a_usage(ID)).request_id == ID


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "not-a-uuid"),
        ("request_id", ""),
        ("request_id", ID.replace("-", "")),
        ("request_id", f"{{{ID}}}"),
        ("request_id", f"{ID}#"),
        ("request_id", f"{ID}\n"),
        ("request_id", ID.replace("7", "\N{FULLWIDTH DIGIT SEVEN}")),
        ("calling_region", "us east 1"),
        ("calling_region", ""),
        ("service_tier", ""),
        ("service_tier", "t" * 33),
        ("service_tier", "a tier"),
        ("bedrock_model_id", "m" * 2049),
        ("tags", {f"k{n}": "v" for n in range(17)}),
        ("tags", {"": "v"}),
        ("tags", {"k": "v" * 257}),
        ("tags", {"k": "\N{SNOWMAN}" * 86}),
        ("tags", {"k" * 257: "v"}),
    ],
)
def test_a_field_that_breaks_its_rule_is_named(field: str, value: Any) -> None:
    """So that the client knows what to mend."""
    usage = msgspec.structs.replace(a_usage(), **{field: value})
    with pytest.raises(InvalidValueError) as refused:
        checked(usage)
    assert refused.value.field.split(".")[0] == field


@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "cache_write_1h_tokens"])
@pytest.mark.parametrize("count", [-1, 10**9 + 1])
def test_a_token_count_is_from_0_to_a_billion(field: str, count: int) -> None:
    """Both ends are accepted, and nothing outside."""
    with pytest.raises(InvalidValueError, match=field):
        _ = msgspec.structs.replace(a_usage(), **{field: count}).tokens
    for accepted in (0, 10**9):
        usage = msgspec.structs.replace(a_usage(), **{field: accepted})
        assert getattr(usage.tokens, field) == accepted


@pytest.mark.parametrize(
    ("offset_ms", "accepted"),
    [
        (0, True),
        (-LATE_MS_MAX, True),
        (-LATE_MS_MAX - 1, False),
        (AHEAD_MS_MAX, True),
        (AHEAD_MS_MAX + 1, False),
    ],
)
def test_an_event_may_be_a_day_old_and_five_minutes_ahead(offset_ms: int, accepted: bool) -> None:
    """To the millisecond."""
    usage = a_usage(timestamp_ms=NOW_MS + offset_ms)
    if accepted:
        assert happened_at_ms(usage, NOW_MS) == NOW_MS + offset_ms
    else:
        with pytest.raises(InvalidValueError, match="timestamp"):
            happened_at_ms(usage, NOW_MS)


def test_without_a_timestamp_it_happened_now() -> None:
    """The moment of its arrival."""
    assert happened_at_ms(a_usage(), NOW_MS) == NOW_MS


def test_a_moment_outlives_every_time_at_which_its_record_can_come_back() -> None:
    """Accepted 5 minutes early, a record can be accepted again until it is 24 hours old."""
    margin_secs = MOMENT_LIFE_SECS - (LATE_MS_MAX + AHEAD_MS_MAX) // 1000
    assert margin_secs > 24 * 3600


def test_a_moment_outlives_the_days_on_which_its_record_can_be_voided() -> None:
    """A day begins 14 hours earlier in the easternmost zone than in UTC."""
    assert MOMENT_LIFE_SECS > VOIDABLE_DAYS * 86_400 + 14 * 3600 + AHEAD_MS_MAX // 1000


@pytest.mark.parametrize(
    "change",
    [
        {"model_label": "standard"},
        {"input_tokens": 1_001},
        {"output_tokens": 501},
        {"cache_read_tokens": 1},
        {"cache_write_5m_tokens": 1},
        {"cache_write_1h_tokens": 1},
        {"service_tier": "flex"},
        {"batch": True},
        {"bedrock_model_id": "anthropic.claude-3-5-sonnet-20241022-v2:0"},
        {"calling_region": "us-east-1"},
        {"status": UsageStatus.ERROR},
        {"timestamp_ms": NOW_MS},
        {"tags": {"team": "search"}},
    ],
)
def test_any_other_field_makes_another_body(change: dict[str, Any]) -> None:
    """A request id that comes back with it was used for something else."""
    assert fingerprint("c", a_usage(ID)) != fingerprint("c", a_usage(ID, **change))


def test_the_same_words_make_the_same_body() -> None:
    """A default that is spelled out, and tags in another order, say nothing new."""
    plain = a_usage(ID, tags={"a": "1", "b": "2"})
    spelled_out = a_usage(ID, cache_read_tokens=0, batch=False, tags={"b": "2", "a": "1"})
    assert fingerprint("c", plain) == fingerprint("c", spelled_out)


def test_another_client_has_another_body() -> None:
    """One app of an organisation can't ask what another was charged."""
    assert fingerprint("org-1-app-a", a_usage(ID)) != fingerprint("org-1-app-b", a_usage(ID))


def test_what_is_not_text_is_refused() -> None:
    """A lone surrogate has no bytes to be counted or compared by."""
    with pytest.raises(InvalidValueError, match="surrogate"):
        checked(a_usage(ID, tags={"k": "\ud800"}))
