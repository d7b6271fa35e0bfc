"""Settings from outside: what is accepted, what is refused, and that everything is named."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pricekeeper.errors import ConflictError, InvalidConfigError, InvalidValueError
from pricekeeper.limiter import Limit
from pricekeeper.tenants import AppSettings, OrgSettings, QuotaEnforcement, QuotaScope, RateLimit
from pricekeeper.tenants.parsing import parse_app_settings, parse_org_settings
from pricekeeper.wire import bounds
from tenants.conftest import LABELS, app_body, app_refused, org, org_body, org_refused

BOTH_QUOTAS = {"quotas.premium", "quotas.standard"}
LIMIT = {"capacity": 10, "refill_amount": 5, "refill_period_ms": 1000}


def refused(**changes: Any) -> set[str]:
    """The fields that are named when the organisation is refused."""
    return set(org_refused(**changes))


def test_what_is_optional_has_the_defaults_of_the_contract() -> None:
    assert org() == OrgSettings(
        org_name="Sample",
        timezone="America/New_York",
        quota_scope=QuotaScope.APP,
        model_ordering=("premium", "standard"),  # type: ignore[arg-type]
        quotas={"premium": 10_000_000, "standard": 5_000_000},  # type: ignore[dict-item]
        sticky_fallback_enabled=True,
        agg_shard_count=8,
        tight_mode_threshold_pct=95,
        refresh_interval_normal_secs=300,
        refresh_interval_tight_secs=60,
        session_limit=5,
        rate_limits={},
        tag_keys=(),
        budgets=(),
        quota_enforcement=QuotaEnforcement.ADVISORY,
    )


def test_null_is_the_same_as_not_given() -> None:
    assert org(session_limit=None, rate_limits=None, tag_keys=None) == org()


def test_tag_keys_are_names_of_tags_without_what_separates_them() -> None:
    names = ["team", "cost centre", "équipe", "x" * 64]
    assert org(tag_keys=names).tag_keys == tuple(names)
    assert org(tag_keys=[]).tag_keys == ()


@pytest.mark.parametrize(
    ("tag_keys", "field"),
    [
        (["a", "b", "c", "d", "e"], "tag_keys"),
        ("team", "tag_keys"),
        (["team", "team"], "tag_keys[1]"),
        (["a", "b#c"], "tag_keys[1]"),
        (["a,b"], "tag_keys[0]"),
        ([""], "tag_keys[0]"),
        (["x" * 65], "tag_keys[0]"),
        (["\ud800"], "tag_keys[0]"),
        ([1], "tag_keys[0]"),
    ],
)
def test_what_is_no_list_of_tag_keys_is_refused(tag_keys: Any, field: str) -> None:
    """The error names the very one that is wrong."""
    assert refused(tag_keys=tag_keys) == {field}


def test_tag_keys_are_the_organisations_alone() -> None:
    """An app can't have spend totalled by other tags."""
    assert app_refused(org(), tag_keys=["team"]) == {"tag_keys"}


@pytest.mark.parametrize(
    "field", ["org_name", "timezone", "quota_scope", "model_ordering", "quotas"]
)
@pytest.mark.parametrize("missing", [..., None])
def test_what_is_required_is_asked_for(field: str, missing: Any) -> None:
    assert refused(**{field: missing}) == {field}


@pytest.mark.parametrize(
    ("field", "good"),
    [
        ("org_name", ["x", "x" * 200, f" {'x' * 200} ", "  Größe & Söhne  "]),
        ("timezone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"]),
        ("quota_scope", ["ORG", "APP"]),
        ("sticky_fallback_enabled", [True, False]),
        ("agg_shard_count", [8, 16, 32, 64]),
        ("tight_mode_threshold_pct", [50, 100]),
        ("refresh_interval_normal_secs", [1, 86_400]),
        ("refresh_interval_tight_secs", [1, 86_400]),
        ("session_limit", [1, 100]),
        ("max_output_tokens_cap", [1, 100_000_000]),
        (
            "quotas",
            [{"premium": 0, "standard": 10**15}, {"premium": 1, "standard": 1, "economy": 1}],
        ),
        ("rate_limits", [{}, {"*": {}}, {"premium": {"rpm": LIMIT}, "*": {"tpm": LIMIT}}]),
    ],
)
def test_the_ends_of_every_range_are_inside(field: str, good: list[Any]) -> None:
    """What the contract allows is allowed to the last value."""
    for value in good:
        org(**{field: value})


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("org_name", ["", "   ", "x" * 201, "a\nb", "a\0b", "\ud800", 5, ["x"]]),
        (
            "timezone",
            [
                *("", "Mars/Phobos", "utc ", "europe/berlin", "America", "UTC\0"),
                *("../etc/passwd", "/etc/localtime", "localtime", "posixrules", 3, ["UTC"]),
                "\ud800",
            ],
        ),
        ("quota_scope", ["", "org", "USER", 1, ["ORG"], "\ud800"]),
        ("sticky_fallback_enabled", [1, 0, "true", []]),
        ("agg_shard_count", [0, 1, 7, 9, 128, -8, 8.0, "8", True]),
        ("tight_mode_threshold_pct", [49, 101, -1, 95.0, "95", True]),
        ("refresh_interval_normal_secs", [0, -1, 86_401, 300.0, "300", False]),
        ("refresh_interval_tight_secs", [0, -1, 86_401, 60.5, "60"]),
        ("session_limit", [0, 101, -5, 5.0, "5", True]),
        ("max_output_tokens_cap", [0, -1, 100_000_001, 5.0, "5", True]),
        ("model_ordering", [[], "premium", {"premium": 1}, ["premium"] * 65]),
        ("quotas", [[], 5, "premium"]),
        ("rate_limits", [[], 5, "premium"]),
    ],
)
def test_what_is_outside_is_refused_by_name(field: str, bad: list[Any]) -> None:
    """Each of them, and no other field is blamed."""
    for value in bad:
        assert refused(**{field: value}) == {field}, value


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"model_ordering": ["premium", "platinum"]}, {"model_ordering[1]"}),
        ({"model_ordering": ["premium", "standard", "premium"]}, {"model_ordering[2]"}),
        ({"model_ordering": ["premium", 7, None]}, {"model_ordering[1]", "model_ordering[2]"}),
        ({"model_ordering": ["premium", "a#b"]}, {"model_ordering[1]"}),
        ({"quotas": {"premium": 1}}, {"quotas.standard"}),
        ({"quotas": {"premium": -1, "standard": 1}}, {"quotas.premium"}),
        ({"quotas": {"premium": 10**15 + 1, "standard": 1.5}}, BOTH_QUOTAS),
        ({"quotas": {"premium": None, "standard": True}}, BOTH_QUOTAS),
        ({"quotas": {"premium": 1, "standard": 1, "gold": 1}}, {"quotas.gold"}),
        ({"rate_limits": {"gold": {}}}, {"rate_limits.gold"}),
        ({"rate_limits": {"premium": [1]}}, {"rate_limits.premium"}),
        (
            {"rate_limits": {"*": {f"n{n}": LIMIT for n in range(17)}}},
            {"rate_limits.*"},
        ),
        ({"rate_limits": {"*": {"R P M": LIMIT}}}, {"rate_limits.*.R P M"}),
        ({"rate_limits": {"*": {"rpm": 5}}}, {"rate_limits.*.rpm"}),
        ({"rate_limits": {"*": {"rpm": {**LIMIT, "burst": 1}}}}, {"rate_limits.*.rpm.burst"}),
        (
            {"rate_limits": {"*": {"rpm": {**LIMIT, "\ud800": 1}}}},
            {"rate_limits.*.rpm.\\ud800"},
        ),
        ({"rate_limits": {"*": {"rpm": {**LIMIT, "capacity": 0}}}}, {"rate_limits.*.rpm.capacity"}),
        (
            {"rate_limits": {"*": {"rpm": {**LIMIT, "capacity": 10**12, "refill_amount": 1}}}},
            {"rate_limits.*.rpm.refill_amount"},
        ),
        (
            {"rate_limits": {"*": {"rpm": {"capacity": 1.0, "refill_amount": -1}}}},
            {f"rate_limits.*.rpm.{name}" for name in LIMIT},
        ),
        ({"colour": "red"}, {"colour"}),
        ({"\ud800\n": "x"}, {"\\ud800\\n"}),
        ({"x" * 500: "x"}, {"x" * 64}),
    ],
)
def test_a_bad_part_is_named_by_its_path(changes: dict[str, Any], fields: set[str]) -> None:
    """So that a form can mark the very field."""
    assert refused(**changes) == fields


def test_every_bad_field_is_named_at_once() -> None:
    """One round trip tells all there is to mend."""
    bad = {"timezone": "Mars", "session_limit": 0, "quotas": {"premium": -1}, "colour": 1}
    fields = ("timezone", "session_limit", "quotas.premium", "quotas.standard", "colour")
    assert refused(**bad) == {*fields}


def test_an_unknown_label_tells_the_known_ones() -> None:
    """And only then: they are of no help with a time zone."""
    with pytest.raises(InvalidConfigError) as refusal:
        org(model_ordering=["platinum"])
    assert refusal.value.details == {"valid_labels": ["economy", "premium", "standard"]}
    with pytest.raises(InvalidConfigError) as refusal:
        org(timezone="Mars")
    assert refusal.value.details == {}


def test_names_are_trimmed() -> None:
    assert org(org_name="  Sample Corp ").org_name == "Sample Corp"


def test_rate_limits_become_values() -> None:
    limits = org(rate_limits={"premium": {"rpm": LIMIT}}).rate_limits
    assert limits == {"premium": {"rpm": RateLimit(10, 5, 1000)}}


@given(
    capacity=st.integers(1, bounds.LIMIT_AMOUNT_MAX),
    refill_amount=st.integers(1, bounds.LIMIT_AMOUNT_MAX),
    refill_period_ms=st.integers(1, bounds.LIMIT_PERIOD_MS_MAX),
)
@example(capacity=10 * 366, refill_amount=1, refill_period_ms=86_400_000)
@example(capacity=10 * 366 + 1, refill_amount=1, refill_period_ms=86_400_000)
def test_what_is_taken_here_the_limiter_takes(**terms: int) -> None:
    """A limit that it refused later would stop an app that has done nothing wrong."""
    try:
        Limit("rpm", **terms)
    except InvalidValueError:
        assert refused(rate_limits={"*": {"rpm": terms}}) == {"rate_limits.*.rpm.refill_amount"}
    else:
        org(rate_limits={"*": {"rpm": terms}})


class TestShardCount:
    """The counters live under it, so it never changes."""

    def test_a_new_one_is_a_conflict(self) -> None:
        with pytest.raises(ConflictError) as conflict:
            parse_org_settings(org_body(agg_shard_count=16), LABELS, shard_count_now=8)
        assert conflict.value.field == "agg_shard_count"

    @pytest.mark.parametrize("body", [org_body(agg_shard_count=32), org_body()])
    def test_the_same_one_is_fine_and_not_naming_it_keeps_it(self, body: dict[str, Any]) -> None:
        """The default is for creation; it is no reason for a conflict later."""
        assert parse_org_settings(body, LABELS, shard_count_now=32).agg_shard_count == 32

    def test_invalid_comes_before_conflict(self) -> None:
        with pytest.raises(InvalidConfigError):
            parse_org_settings(org_body(agg_shard_count=16, timezone="Mars"), LABELS, 8)


class TestApp:
    """An app overrides; what counts is what comes out together with its organisation."""

    def test_only_a_name_is_required(self) -> None:
        assert parse_app_settings(app_body(), LABELS, org()) == AppSettings("Production API")
        assert app_refused(org(), app_name=None) == {"app_name"}

    @pytest.mark.parametrize(
        "field",
        ["timezone", "quota_scope", "agg_shard_count", "sticky_fallback_enabled", "org_name"],
    )
    def test_what_is_the_orgs_alone_is_refused(self, field: str) -> None:
        """Even with the value that the organisation has."""
        assert app_refused(org(), **{field: getattr(org(), field)}) == {field}

    def test_an_ordering_needs_quotas_from_somewhere(self) -> None:
        """The organisation's quotas cover what the app adds, or the app has to."""
        ordering = ["premium", "economy"]
        assert app_refused(org(), model_ordering=ordering) == {"quotas.economy"}
        quotas = {"premium": 1, "economy": 1}
        parse_app_settings(app_body(model_ordering=ordering, quotas=quotas), LABELS, org())

    def test_quotas_have_to_cover_an_inherited_ordering(self) -> None:
        """Overriding replaces the whole map, so a label can fall through."""
        assert app_refused(org(), quotas={"premium": 1}) == {"quotas.standard"}

    def test_under_org_scope_the_orgs_quotas_have_to_cover(self) -> None:
        """They are the ones in force, also with an app's own."""
        shared = org(quota_scope="ORG")
        bad = {"model_ordering": ["economy"], "quotas": {"economy": 1}}
        assert app_refused(shared, **bad) == {"quotas.economy"}

    def test_every_bad_field_is_named_at_once(self) -> None:
        bad = {"timezone": "UTC", "session_limit": 0, "model_ordering": ["x"], "colour": 1}
        fields = ("timezone", "session_limit", "model_ordering[0]", "colour")
        assert app_refused(org(), **bad) == {*fields}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text() | st.sampled_from(["premium", "*", "rpm", "capacity", "name", "labels"]),
            inner,
        )
    ),
    max_leaves=8,
)
bodies = st.dictionaries(
    st.sampled_from([*OrgSettings.__dataclass_fields__, "app_name"]) | st.text(), json_values
)


@given(bodies)
def test_no_body_breaks_the_parser(body: dict[str, Any]) -> None:
    """Any JSON is valid settings, or is refused with names of fields."""
    whole = org()
    for changed in (body, org_body(**body), app_body(**body)):
        try:
            parse_org_settings(changed, LABELS, 8)
            parse_app_settings(changed, LABELS, whole)
        except InvalidConfigError as refusal:
            assert refusal.errors
            assert all(error.field.isascii() and error.message for error in refusal.errors)
        except ConflictError:
            pass
