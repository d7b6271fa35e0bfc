"""Reports: spend broken down, as JSON or CSV, and the records that it is made of."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.authority import Role
from pricekeeper.http.operation import (
    AFTER,
    NO_STORE,
    ORG,
    Access,
    Answer,
    Call,
    Operation,
    Parameter,
)
from pricekeeper.http.viewing import END, read_org_policy, viewer_of
from pricekeeper.usecases import budgets, usage_records
from pricekeeper.usecases import spend as cases
from pricekeeper.usecases.csv_text import MEDIA_TYPE, csv_text
from pricekeeper.wire import spend as wire
from pricekeeper.wire.authorizations import AllBudgets
from pricekeeper.wire.values import APP_ID

_CSV: Final = f"{MEDIA_TYPE}; charset=utf-8; header=present".encode()
_GROUP: Final = r"(org|app|label|day|hour|tag:[^#,]+)"
GROUPS: Final = f"^({_GROUP}(,{_GROUP})*)?$"
_LIVE: Final = Parameter(
    "live",
    "Whether what was counted since the last aggregation is in it, if the range is of now; by "
    "default it is. `as_of` says up to when everything is.",
    {"type": "boolean"},
)
_LABEL: Final = {"type": "string", "maxLength": 64, "pattern": "^[a-z0-9][a-z0-9._-]*$"}
_SPEND: Final = (
    Parameter("from", "The first day, or the first full hour.", END, required=True),
    Parameter("to", "The last day, or the full hour at which the range ends.", END, required=True),
    Parameter(
        "group_by",
        "Any of org, app, label, day, hour and one tag:KEY, with commas between them.",
        {"type": "string", "pattern": GROUPS, "examples": ["app,day", "tag:team"]},
    ),
    Parameter("org_id", "Of this organisation alone.", {"type": "string", "format": "uuid"}),
    Parameter(
        "app_id",
        "Of this app alone; a key for more than one organisation names its org_id, too.",
        {"type": "string", "pattern": APP_ID},
    ),
    Parameter("label", "Of this model label alone, also of a former one.", _LABEL),
    Parameter(
        "tag",
        "With this declared tag alone: KEY:VALUE, or KEY: for what has no such tag or an empty "
        "one. If group_by names a tag, it must be the same.",
        {"type": "string", "minLength": 2, "examples": ["team:red"], "pattern": "^[^:#]+:"},
    ),
    _LIVE,
)
_RECORDS: Final = (
    Parameter("from", "The first day or full hour in which a call happened.", END),
    Parameter("to", "The last day, or the full hour at which the range ends.", END),
    Parameter("app_id", "Records of this app alone.", {"type": "string", "pattern": APP_ID}),
    Parameter("label", "Records of this model label alone, also of a former one.", _LABEL),
    Parameter(
        "tag",
        "Records with this tag: KEY:VALUE, or KEY: for those that have no such tag or an empty "
        "one.",
        {"type": "string", "minLength": 2, "examples": ["team:red"], "pattern": "^[^:]+:"},
    ),
    AFTER({"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{12}-[0-9a-f-]{36})?$"}),
)
_CLIENT: Final = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(/(?!\.{1,2}$)[A-Za-z0-9._-]{1,64})?$"
_BUDGETS: Final = (AFTER({"type": "string", "pattern": _CLIENT}),)


async def get_spend(call: Call) -> Answer:
    """What was spent in a range, by org, app, label, day, hour and the value of a tag."""
    request = cases.parse_request(call.query)
    answer, as_of_ms = await cases.read_spend(call.services, viewer_of(call), request)
    headers = (
        (b"cache-control", b"private, no-cache"),
        (b"vary", b"Accept, Authorization, X-API-Key"),
        (b"x-data-lag-secs", b"%d" % (max(0, call.services.clock.now_ms() - as_of_ms) // 1000)),
    )
    if not accepts_csv(call.request.header(b"accept")):
        return Answer(200, answer, headers)
    text = csv_text((*request.grouping.names, *cases.SUM_FIELDS), answer.rows)
    return Answer(200, text.encode(), headers, media_type=_CSV)


async def list_usage(call: Call) -> Answer:
    """Single usage records, the newest first; a page may be empty and have a next."""
    request = usage_records.parse_request(call.query)
    policy = await read_org_policy(call, request.app_id)
    return Answer(200, await usage_records.list_usage(call.services, policy, request), NO_STORE)


async def list_all_budgets(call: Call) -> Answer:
    """Every budget of whom the caller covers, as it stands; a page may be empty and have a next."""
    after = call.query.get("after")
    cursor = None if after is None else budgets.BudgetCursor.parse(after)
    listed = await budgets.list_all_budgets(call.services, viewer_of(call), cursor)
    return Answer(200, listed, NO_STORE)


def accepts_csv(header: str | None) -> bool:
    """Whether the caller would rather have CSV than JSON."""
    weights = {"text/csv": 0.0, "application/json": 0.0}
    for part in (header or "").lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        if kind in weights:
            weights[kind] = _weight(parameters)
    return 0 < weights["text/csv"] >= weights["application/json"]


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter.removeprefix("q="))
            except ValueError:
                return 0.0
    return 1.0


_row: Final = partial(Operation, access=Access.ANY_CLIENT, role=Role.VIEWER, problems=(404,))
OPERATIONS: Final = (
    _row("GET", "/api/v1/spend", "getSpend", get_spend, {200: wire.SpendAnswer}, query=_SPEND,
         limit="reports", tag="aggregates", has_csv=True),
    _row("GET", f"{ORG}/usage", "listUsage", list_usage, {200: wire.UsageList}, query=_RECORDS,
         limit="reports", tag="aggregates"),
    _row("GET", "/api/v1/budgets", "listAllBudgets", list_all_budgets, {200: AllBudgets},
         query=_BUDGETS, limit="limits", tag="authorizations"),
)  # fmt: skip
