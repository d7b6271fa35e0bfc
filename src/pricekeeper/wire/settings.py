"""The types of settings bodies, which are also their documentation.

`parsing` checks the rules in `extra_json_schema`: it knows the deployment's labels and names the
exact wrong part. `MESSAGE` is the error message for a value that does not fit its type.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field
from msgspec.structs import fields

from pricekeeper.shapes import MESSAGE
from pricekeeper.wire import bounds

_LABEL: Final = "[a-z0-9][a-z0-9._-]{0,63}"
LABEL: Final = f"^{_LABEL}$"
LABEL_OR_ANY: Final = rf"^(\*|{_LABEL})$"
LIMIT_NAME: Final = "^[a-z][a-z0-9_]{0,31}$"
TAG_KEY: Final = f"^[^#,]{{1,{bounds.TAG_KEY_LENGTH_MAX}}}$"

NO_NAME: Final = f"must be 1 to {bounds.NAME_LENGTH_MAX} printable characters"
NO_TIME_ZONE: Final = "must be an IANA time zone such as America/New_York"
NO_TAG_KEY: Final = (
    f"must be a tag's name: 1 to {bounds.TAG_KEY_LENGTH_MAX} characters, none of them # or a comma"
)
NO_BUDGET_NAME: Final = (
    "must be 1 to 32 of a-z 0-9 -, and must not start with quota-, which is reserved"
)
UNKNOWN_LABEL: Final = "is not a model label of this deployment"


def _with_message(message: str, **rules: Any) -> Meta:
    return Meta(extra={MESSAGE: message}, **rules)


def _whole(least: int, most: int) -> Meta:
    return _with_message(f"must be an integer from {least} to {most}", ge=least, le=most)


Amount = Annotated[int, _whole(1, bounds.LIMIT_AMOUNT_MAX)]
Micros = Annotated[int, _whole(0, bounds.QUOTA_USD_MICROS_MAX)]
Percent = Annotated[int, _whole(*bounds.TIGHT_PCT_RANGE)]
Seconds = Annotated[int, _whole(*bounds.REFRESH_SECS_RANGE)]
Sessions = Annotated[int, _whole(*bounds.SESSION_LIMIT_RANGE)]
OutputCap = Annotated[
    int,
    _whole(*bounds.OUTPUT_CAP_RANGE),
    Meta(description="The longest answer of a call, in tokens; any length if left out."),
]
Name = Annotated[
    str,
    _with_message(
        NO_NAME,
        description="Printable characters; leading and trailing blanks are removed.",
        pattern=r"\S",
        min_length=1,
        max_length=bounds.NAME_LENGTH_MAX,
    ),
]
TimeZone = Annotated[
    str,
    _with_message(
        NO_TIME_ZONE,
        description="The name of an IANA time zone.",
        examples=["America/New_York"],
        pattern="^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}$",
        max_length=64,
    ),
]
Label = Annotated[str, _with_message(UNKNOWN_LABEL, extra_json_schema={"pattern": LABEL})]
LabelOrAny = Annotated[str, Meta(extra_json_schema={"pattern": LABEL_OR_ANY})]
LimitName = Annotated[str, Meta(extra_json_schema={"pattern": LIMIT_NAME})]
TagKey = Annotated[str, _with_message(NO_TAG_KEY, extra_json_schema={"pattern": TAG_KEY})]


class Readable(Struct, frozen=True):
    """Fields can be read by their JSON names; those left out are absent."""

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.__struct_fields__ and getattr(self, str(name)) is not UNSET

    def get(self, name: str, default: Any = None) -> Any:
        found = getattr(self, name, UNSET)
        return default if found is UNSET else found


class RateLimitBody(Readable, frozen=True, forbid_unknown_fields=True):
    """A token bucket, which fills within ten years."""

    capacity: Amount
    refill_amount: Amount
    refill_period_ms: Annotated[int, _whole(1, bounds.LIMIT_PERIOD_MS_MAX)]


Ordering = Annotated[
    list[Label],
    _with_message(
        f"must be a list of 1 to {bounds.ORDERING_LENGTH_MAX} model labels",
        min_length=1,
        max_length=bounds.ORDERING_LENGTH_MAX,
        description="Labels of this deployment in order of preference, each once.",
        extra_json_schema={"uniqueItems": True},
    ),
]
Quotas = Annotated[
    dict[Label, Micros],
    _with_message(
        "must be an object of micro-dollars a day by model label",
        description="Micro-dollars a day; every label of the ordering needs one.",
    ),
]
Limits = Annotated[
    dict[LimitName, RateLimitBody],
    _with_message(
        f"must be an object of up to {bounds.LIMITS_PER_LABEL_MAX} named limits",
        max_length=bounds.LIMITS_PER_LABEL_MAX,
    ),
]
RateLimits = Annotated[
    dict[LabelOrAny, Limits],
    _with_message(
        "must be an object of limits by model label or *",
        description="Token buckets by label, or * for any label, then by name.",
    ),
]

TagKeys = Annotated[
    list[TagKey],
    _with_message(
        f"must be a list of at most {bounds.TAG_KEYS_MAX} names of tags",
        max_length=bounds.TAG_KEYS_MAX,
        description="Names of tags; from now on spend is also totalled by their values.",
        examples=[["team", "feature"]],
        extra_json_schema={"uniqueItems": True},
    ),
]


Thresholds = Annotated[
    list[Annotated[int, _whole(*bounds.THRESHOLD_PCT_RANGE)]],
    _with_message(
        f"must be a list of at most {bounds.THRESHOLDS_MAX} percentages",
        max_length=bounds.THRESHOLDS_MAX,
        examples=[[80, 100]],
    ),
]


Share = Annotated[int, _whole(*bounds.SHARE_PCT_RANGE)]
QuotaThresholds = Annotated[
    Thresholds, Meta(description="Percentages of each daily quota; an empty list means no alert.")
]
DeniedShare = Annotated[
    Share,
    Meta(description="The share of an app's calls denied in ten minutes; 0 means no alert."),
]
UnsettledShare = Annotated[
    Share,
    Meta(
        description="The share of an hour's charges that is for calls that were never settled; "
        "0 means no alert."
    ),
]
AnomalyPercent = Annotated[
    int,
    _whole(*bounds.ANOMALY_PCT_RANGE),
    Meta(description="Today's spend as a percentage of the usual spend; 0 means no alert."),
]
SecretDays = Annotated[
    int,
    _whole(*bounds.SECRET_DAYS_RANGE),
    Meta(description="The age of a client's secret in days; 0 means no alert."),
]


class AlertsBody(Readable, frozen=True, forbid_unknown_fields=True):
    """The thresholds of the organisation's alerts; null counts as left out."""

    quota_at_pct: QuotaThresholds | None = field(
        default_factory=lambda: list(bounds.QUOTA_AT_PCT_DEFAULT)
    )
    denied_pct: DeniedShare | None = bounds.DENIED_PCT_DEFAULT
    unsettled_pct: UnsettledShare | None = bounds.UNSETTLED_PCT_DEFAULT
    anomaly_pct: AnomalyPercent | None = bounds.ANOMALY_PCT_DEFAULT
    secret_days: SecretDays | None = bounds.SECRET_DAYS_DEFAULT


class BudgetBody(Readable, frozen=True, forbid_unknown_fields=True):
    """A limit on spend in each window of the organisation's calendar; null counts as left out."""

    name: Annotated[
        str,
        _with_message(
            NO_BUDGET_NAME,
            description="Unique among the budgets of the list.",
            examples=["monthly"],
            extra_json_schema={"pattern": bounds.BUDGET_NAME},
        ),
    ]
    window: Annotated[
        Literal["HOUR", "DAY", "WEEK", "MONTH"],
        _with_message(
            "must be one of HOUR, DAY, WEEK, MONTH",
            description="In the organisation's time zone; weeks begin on Monday.",
        ),
    ]
    limit_usd_micros: Annotated[int, _whole(0, bounds.BUDGET_USD_MICROS_MAX)]
    labels: (
        Annotated[
            list[Label],
            _with_message(
                f"must be a list of 1 to {bounds.BUDGET_LABELS_MAX} model labels, "
                "or left out for all of them",
                min_length=1,
                max_length=bounds.BUDGET_LABELS_MAX,
                description="Labels whose spend counts, each once; all of them if left out.",
                extra_json_schema={"uniqueItems": True},
            ),
        ]
        | None
    ) = None
    per_tag: (
        Annotated[
            str,
            _with_message(
                NO_TAG_KEY,
                description="One of the organisation's tag_keys; each value has its own budget.",
                extra_json_schema={"pattern": TAG_KEY},
            ),
        ]
        | None
    ) = None
    enforcement: (
        Annotated[
            Literal["HARD", "SOFT"],
            _with_message(
                "must be one of HARD, SOFT",
                description="HARD denies calls beyond the limit, SOFT only alerts.",
            ),
        ]
        | None
    ) = "HARD"
    alert_at_pct: (
        Annotated[
            Thresholds,
            Meta(description="Percentages of the limit; kept in rising order, each once."),
        ]
        | None
    ) = field(default_factory=list)


Budgets = Annotated[
    list[BudgetBody],
    _with_message(
        f"must be a list of at most {bounds.BUDGETS_MAX} budgets",
        max_length=bounds.BUDGETS_MAX,
        description="Limits on spend. An app's are added to its organisation's, "
        "which cover all of its apps.",
    ),
]


class OrgBody(Struct, frozen=True, forbid_unknown_fields=True):
    """An organisation's settings; null counts as left out."""

    org_name: Name
    timezone: TimeZone
    quota_scope: Annotated[Literal["ORG", "APP"], _with_message("must be one of ORG, APP")]
    model_ordering: Ordering
    quotas: Quotas
    sticky_fallback_enabled: Annotated[bool, _with_message("must be true or false")] | None = True
    agg_shard_count: (
        Annotated[Literal[8, 16, 32, 64], _with_message("must be one of 8, 16, 32, 64")] | None
    ) = bounds.SHARD_COUNT_DEFAULT
    tight_mode_threshold_pct: Percent | None = bounds.TIGHT_PCT_DEFAULT
    refresh_interval_normal_secs: Seconds | None = bounds.REFRESH_NORMAL_SECS_DEFAULT
    refresh_interval_tight_secs: Seconds | None = bounds.REFRESH_TIGHT_SECS_DEFAULT
    session_limit: Sessions | None = bounds.SESSION_LIMIT_DEFAULT
    rate_limits: RateLimits | None = field(default_factory=dict)
    tag_keys: TagKeys | None = field(default_factory=list)
    budgets: Budgets | None = field(default_factory=list)
    quota_enforcement: (
        Annotated[
            Literal["ADVISORY", "STRICT"],
            _with_message(
                "must be one of ADVISORY, STRICT",
                description="STRICT makes the daily quotas hard budgets.",
            ),
        ]
        | None
    ) = "ADVISORY"
    alerts: AlertsBody | None = field(default_factory=AlertsBody)
    max_output_tokens_cap: OutputCap | None = None


class AppBody(Struct, frozen=True, forbid_unknown_fields=True):
    """An app's settings: its name and its overrides."""

    app_name: Name
    model_ordering: Ordering | None = None
    quotas: Quotas | None = None
    tight_mode_threshold_pct: Percent | None = None
    refresh_interval_normal_secs: Seconds | None = None
    refresh_interval_tight_secs: Seconds | None = None
    session_limit: Sessions | None = None
    rate_limits: RateLimits | None = None
    budgets: Budgets | None = None
    max_output_tokens_cap: OutputCap | None = None


class RateLimitPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to a token bucket; a new one needs all fields."""

    capacity: Amount | UnsetType = UNSET
    refill_amount: Amount | UnsetType = UNSET
    refill_period_ms: Annotated[int, _whole(1, bounds.LIMIT_PERIOD_MS_MAX)] | UnsetType = UNSET


_PATCHED: Final[dict[str, Any]] = {
    "quotas": Annotated[
        dict[Label, Micros | None],
        Meta(description="Micro-dollars a day for the labels to change; null removes one."),
    ],
    "rate_limits": Annotated[
        dict[LabelOrAny, dict[LimitName, RateLimitPatch | None] | None],
        Meta(description="Changes by label and name; null removes a limit, or all of a label."),
    ],
}


def _patch_of(kind: type[Struct], name: str, description: str) -> type[Struct]:
    """The type of a merge patch for a body: only optional fields can be removed."""
    changes: list[tuple[str, Any, Any]] = []
    for one in fields(kind):
        wanted = _PATCHED.get(one.name, one.type)
        if not one.required:
            wanted |= None
        changes.append((one.name, wanted | UnsetType, UNSET))
    namespace = {"__doc__": description}
    return defstruct(
        name, changes, namespace=namespace, module=__name__, frozen=True, forbid_unknown_fields=True
    )


OrgPatch: Final = _patch_of(
    OrgBody,
    "OrgPatch",
    "Changes to an organisation's settings (RFC 7396); null restores a default.",
)
AppPatch: Final = _patch_of(
    AppBody,
    "AppPatch",
    "Changes to an app's settings (RFC 7396); a null setting is inherited again.",
)
