"""The parameters in the query strings of operations."""

from __future__ import annotations

from typing import Any, Final, get_args

from pricekeeper.values import REASON_LENGTH_MAX
from pricekeeper.wire.alerts import KindName, StateName
from pricekeeper.wire.bounds import AUDIT_CURSOR, AUDIT_FILTER_LENGTH_MAX, PAGE_MAX
from pricekeeper.wire.operation import AFTER, Parameter
from pricekeeper.wire.values import APP_ID

KEY_ID: Final = "^[A-Za-z0-9]{12}$"
_UUID: Final = {"type": "string", "format": "uuid"}
_APP: Final = {"type": "string", "pattern": APP_ID}
_DATE: Final = {"type": "string", "format": "date"}
_LABEL: Final = {"type": "string", "maxLength": 64, "pattern": "^[a-z0-9][a-z0-9._-]*$"}


def _end(example: str) -> dict[str, Any]:
    return {
        "type": "string",
        "anyOf": [{"format": "date"}, {"format": "date-time"}],
        "examples": ["2026-01-23", example],
    }


def _tag(pattern: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 2, "examples": ["team:red"], "pattern": pattern}


_HOUR: Final = _end("2026-01-23T15:00:00Z")
_MOMENT: Final = _end("2026-01-23T15:30:45Z")

REASON: Final = Parameter(
    "reason",
    "Why, for people: printable characters without a secret.",
    {"type": "string", "minLength": 1, "maxLength": REASON_LENGTH_MAX, "pattern": r"\S"},
)
LIMIT: Final = Parameter(
    "limit", "Entries per page.", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX}
)
ORG_PAGES: Final = (AFTER(_UUID), LIMIT)
APP_PAGES: Final = (AFTER(_APP), LIMIT)
KEY_PAGES: Final = (AFTER({"type": "string", "pattern": KEY_ID}), LIMIT)
FORCE_CHECK: Final = Parameter(
    "force_check",
    "Sum the counters instead of reading totals; callers within a second share one sum.",
    {"type": "boolean"},
)
UNFINISHED: Final = (
    Parameter(
        "status", "Only these; by default both.", {"type": "string", "enum": ["open", "unsettled"]}
    ),
    AFTER(_UUID),
)
DAYS: Final = (
    Parameter("from", "The first day, yyyy-mm-dd.", _DATE, required=True),
    Parameter("to", "The last day, yyyy-mm-dd.", _DATE, required=True),
)
_TO: Final = Parameter("to", "The last day, or the full hour at which the range ends.", _HOUR)
_SINCE: Final = Parameter("from", "The first day or full hour; by default all that is kept.", _HOUR)
FLIPS: Final = (
    *(_SINCE, _TO),
    AFTER({"type": "string", "pattern": "^[0-9]{8}-[A-Za-z0-9._-]{0,64}$"}),
)
ALL_DENIALS: Final = (
    *(_SINCE, _TO),
    AFTER({"type": "string", "pattern": "^[0-9]{1,9}(-[0-9a-f]{12}-[0-9a-f-]{36})?$"}),
)
ORG_DENIALS: Final = (*ALL_DENIALS, Parameter("app_id", "Denials of this app only.", _APP))
_GROUP: Final = r"(org|app|label|day|hour|tag:[^#,]+)"
GROUPS: Final = f"^({_GROUP}(,{_GROUP})*)?$"
SPEND: Final = (
    Parameter("from", "The first day, or the first full hour.", _HOUR, required=True),
    Parameter("to", _TO.description, _HOUR, required=True),
    Parameter(
        "group_by",
        "Any of org, app, label, day, hour and one tag:KEY, separated by commas.",
        {"type": "string", "pattern": GROUPS, "examples": ["app,day", "tag:team"]},
    ),
    Parameter("org_id", "This organisation only.", _UUID),
    Parameter(
        "app_id",
        "This app only; a key for more than one organisation must also name its org_id.",
        _APP,
    ),
    Parameter("label", "This model label only; a former one is allowed.", _LABEL),
    Parameter(
        "tag",
        "This declared tag only: KEY:VALUE, or KEY: for usage without the tag or with an empty "
        "value. If group_by names a tag, it must be the same.",
        _tag("^[^:#]+:"),
    ),
    Parameter(
        "live",
        "Whether to add usage since the last aggregation, if the range includes now; "
        "true by default. Everything before `as_of` is included in any case.",
        {"type": "boolean"},
    ),
)
RECORDS: Final = (
    Parameter("from", "The first day or full hour in which a call happened.", _HOUR),
    _TO,
    Parameter("app_id", "Records of this app only.", _APP),
    Parameter("label", "Records of this model label only; a former one is allowed.", _LABEL),
    Parameter(
        "tag",
        "Records with this tag: KEY:VALUE, or KEY: for records without the tag or with an empty "
        "value.",
        _tag("^[^:]+:"),
    ),
    AFTER({"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{12}-[0-9a-f-]{36})?$"}),
)
_CLIENT: Final = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(/(?!\.{1,2}$)[A-Za-z0-9._-]{1,64})?$"
ALL_BUDGETS: Final = (AFTER({"type": "string", "pattern": _CLIENT}),)
ALERTS: Final = (
    Parameter("org_id", "Alerts of this organisation only.", _UUID),
    Parameter(
        "kind", "Alerts of this kind only.", {"type": "string", "enum": list(get_args(KindName))}
    ),
    Parameter(
        "state",
        "Alerts with this state of delivery only.",
        {"type": "string", "enum": list(get_args(StateName))},
    ),
    AFTER(_UUID),
)
_FILTER: Final = {"type": "string", "minLength": 1, "maxLength": AUDIT_FILTER_LENGTH_MAX}
AUDIT: Final = (
    Parameter("org_id", "Entries of this organisation only, even if it was deleted.", _UUID),
    Parameter("actor", "By this actor, or all whose name has this before a slash.", _FILTER),
    Parameter("action", "Of this kind, or all that have this before a dot.", _FILTER),
    Parameter("from", "The first day in UTC, or the first moment.", _MOMENT),
    Parameter("to", "The last day in UTC, or the moment before which the range ends.", _MOMENT),
    AFTER({"type": "string", "pattern": f"^{AUDIT_CURSOR}$"}),
    LIMIT,
)
EVENTS: Final = (
    Parameter(
        "last_event_id",
        "The id of the last event that was seen; alternatively the header `Last-Event-ID`.",
        {"type": "string", "pattern": r"^[0-9]{1,16}(\.[0-9]{1,6})?$"},
    ),
)
