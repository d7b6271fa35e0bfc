"""What JSON Schema can't say about a request, told to schemathesis.

Data that fits the document has to be accepted. Most rules are in the document; these are not:

- what exists: labels, limits and time zones are the deployment's, and time moves on;
- what can be true: how many tokens a call of a model can have used;
- how many bytes a text has: a document counts characters;
- what must go together: an ordering and its quotas, the two ends of a range, a model and its id,
  a budget and its tag, a kind of channel and its address;
- how a number is written: 5.0 is an integer to JSON Schema, but not to a service that counts money.

So the document is narrowed to what exists before data is made from it, and what must go together
is put together before a request is sent. A part that does not fit the document is left alone, to
be refused.
"""

import os
import re
import uuid
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, get_args

import msgspec
import schemathesis

from http_fixtures import Api, Tenant
from pricekeeper.pricing import load_catalogue
from pricekeeper.tags import TAG_BYTES_MAX, TAGS_MAX
from pricekeeper.wire import (
    administration,
    alerts,
    authorizations,
    provisioning,
    runtime,
    values,
)
from pricekeeper.wire import identity as wire
from pricekeeper.wire import settings as bodies
from pricekeeper.wire.bounds import LIMIT_FILLING_MS_MAX
from pricekeeper.wire.queries import GROUPS

CATALOGUE: Final = load_catalogue(None)
LABELS: Final = tuple(CATALOGUE.labels)
LIMIT: Final = {"capacity": 1_000, "refill_amount": 1_000, "refill_period_ms": 1_000}
LIMIT_NAME: Final = "rpm"
NOW: Final = datetime.now(UTC)
LAST_DAY: Final = NOW.date() - timedelta(days=2)
"""Over in every time zone."""
DAYS_MAX: Final = 92
PLAUSIBLE_TOKENS: Final = 1_000_000
"""A call of any model of the built-in file can have used so many of each kind."""


def pattern_of(annotated: Any) -> str:
    """The pattern that a wire type has in the document."""
    pattern: str = get_args(annotated)[1].pattern
    return pattern


EXISTING: Final[dict[str, tuple[str, ...]]] = {
    pattern_of(values.Label): LABELS,
    bodies.LABEL_OR_ANY: ("*", *LABELS),
    pattern_of(bodies.TimeZone): ("UTC", "America/Argentina/Buenos_Aires", "Etc/GMT+12"),
    values.TIMESTAMP: (
        NOW.strftime("%Y-%m-%dT%H:%M:%SZ"),
        (NOW - timedelta(hours=23)).strftime("%Y-%m-%dT%H:%M:%S.%f+00:00"),
        (NOW + timedelta(minutes=4)).strftime("%Y-%m-%dT%H:%M:%S-00:00"),
    ),
}


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    """Name what exists where the document has a pattern."""
    narrow(raw_schema, EXISTING)
    schemas = raw_schema["components"]["schemas"]
    for body in ("AcquireBody", "AdjustBody", "AuthorizeBody"):
        narrow(schemas[body], {pattern_of(values.LimitName): (LIMIT_NAME,)})
    # The ends of a range are tried in named fields, and in text that has no pattern to keep.
    for body in ("UsageBody", "AuthorizeBody", "CaptureBody"):
        tags = schemas[body]["properties"]["tags"]
        tags["properties"] = {"team": tags["additionalProperties"]}
    for kind in ("Body", "Patch"):
        for body, field in ((f"Org{kind}", "org_name"), (f"App{kind}", "app_name")):
            del schemas[body]["properties"][field]["pattern"]


def narrow(node: Any, existing: dict[str, tuple[str, ...]]) -> None:
    """Replace each of these patterns with the values that exist: a map has them as its fields."""
    if isinstance(node, list):
        for member in node:
            narrow(member, existing)
    if isinstance(node, dict):
        names = existing.get(node.get("propertyNames", {}).get("pattern", ""))
        if names is not None:
            del node["propertyNames"]
            node["properties"] = {name: deepcopy(node["additionalProperties"]) for name in names}
            node["additionalProperties"] = False
        if node.get("pattern") in existing:
            node["enum"] = list(existing[node.pop("pattern")])
            node.pop("examples", None)
        for member in node.values():
            narrow(member, existing)


RANGES: Final = {
    *("getSpend", "listUsage", "listAudit"),
    *("listAllDenials", "listDenials", "listOrgFlips", "listAppFlips"),
}
"""What is asked about a range of time."""


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: dict[str, Any]) -> None:
    """Put together what must go together, whether the rest of the request is good or bad."""
    name = case.operation.definition.raw["operationId"]
    if isinstance(case.body, dict):
        body = whole_numbers(case.body)
        mend = BODIES.get(name)
        case.body = body if mend is None else mend(body)
    if isinstance(case.query, dict) and "reason" in case.query:
        case.query["reason"] = reason(case.query["reason"])
    if isinstance(case.path_parameters, dict) and "date" in case.path_parameters:
        day = date_of(case.path_parameters["date"])
        if day is not None:
            case.path_parameters["date"] = min(day, LAST_DAY).isoformat()
    if isinstance(case.query, dict) and name in RANGES:
        report(case.query)
    if isinstance(case.query, dict) and name.endswith("AggregatesInRange"):
        first, last = (date_of(case.query.get(end)) for end in ("from", "to"))
        if first is not None and last is not None:
            last = min(last, LAST_DAY)
            count = min(max(0, (last - first).days), DAYS_MAX - 1)
            case.query["from"] = (last - timedelta(days=count)).isoformat()
            case.query["to"] = last.isoformat()


def report(query: dict[str, Any]) -> None:
    """A range that has an end behind its beginning, and groups that come once."""
    for end, days in (("from", 1), ("to", 0)):
        if is_end(query.get(end)):
            query[end] = (LAST_DAY - timedelta(days=days)).isoformat()
    groups = query.get("group_by")
    if isinstance(groups, str) and re.fullmatch(GROUPS, groups):
        query["group_by"] = groups.split(",")[0]
        if query["group_by"].startswith("tag:") and re.match("[^:#]+:", str(query.get("tag", ""))):
            query |= {"group_by": "tag:team", "tag": "team:red"}


def is_end(text: Any) -> bool:
    """Whether it is a date, or a moment."""
    return date_of(text) is not None or fits(text, values.Timestamp)


def whole_numbers(node: Any) -> Any:
    """The same values, whole numbers written as such."""
    if isinstance(node, dict):
        return {name: whole_numbers(member) for name, member in node.items()}
    if isinstance(node, list):
        return [whole_numbers(member) for member in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def settings(body: dict[str, Any]) -> dict[str, Any]:
    """Printable names, quotas for the ordering, limits that fill in less than ten years.

    An ordering has all the labels, so that any of them can be the override.
    """
    for field in ("org_name", "app_name"):
        if fits(body.get(field), bodies.Name):
            body[field] = "".join(filter(str.isprintable, body[field])).strip() or "x"
    if fits(body.get("model_ordering"), bodies.Ordering):
        ordering = body["model_ordering"]
        if len(set(ordering)) == len(ordering):
            body["model_ordering"] = list(dict.fromkeys((*ordering, *LABELS)))
    if fits(body.get("quotas"), bodies.Quotas):
        body["quotas"] = {**dict.fromkeys(LABELS, 10**9), **body["quotas"]}
    if fits(body.get("rate_limits"), bodies.RateLimits):
        for named in body["rate_limits"].values():
            for limit in named.values():
                least = limit["capacity"] * limit["refill_period_ms"] // LIMIT_FILLING_MS_MAX + 1
                limit["refill_amount"] = max(limit["refill_amount"], least)
    if fits(body.get("budgets"), bodies.Budgets):
        budgets(body["budgets"], body.get("tag_keys") or ())
    return uncapped(body)


def uncapped(body: dict[str, Any]) -> dict[str, Any]:
    """A cap that is above every longest answer that is asked for: a longer one is refused."""
    if fits(body.get("max_output_tokens_cap"), bodies.OutputCap):
        body["max_output_tokens_cap"] = max(body["max_output_tokens_cap"], PLAUSIBLE_TOKENS)
    return body


def budgets(given: list[dict[str, Any]], declared: Any) -> None:
    """Each with another name, and for the values of a tag that is declared."""
    seen: set[str] = set()
    for index, budget in enumerate(given):
        if budget["name"] in seen:
            budget["name"] = f"budget-{index}"
        seen.add(budget["name"])
        per_tag = budget.get("per_tag")
        if per_tag is not None and re.fullmatch(bodies.TAG_KEY, per_tag):
            budget["per_tag"] = per_tag if per_tag in declared else None


def org_settings(body: dict[str, Any]) -> dict[str, Any]:
    """Also the limit that leases are taken from."""
    limits = body.get("rate_limits")
    limits = {} if limits is None else limits
    if fits(limits, bodies.RateLimits):
        others = list(limits.get("*", {}).items())[:15]
        body["rate_limits"] = {**limits, "*": {**dict(others), LIMIT_NAME: LIMIT}}
    return settings(body)


def patched(body: dict[str, Any]) -> dict[str, Any]:
    """Quotas for all labels, and whole limits, whose names do not add up from change to change."""
    if fits(body.get("quotas"), dict[bodies.Label, bodies.Micros | None]):
        given = {label: quota for label, quota in body["quotas"].items() if quota is not None}
        body["quotas"] = {**dict.fromkeys(LABELS, 10**9), **given}
    limits = body.get("rate_limits", ())
    if fits(limits, dict[str, dict[bodies.LimitName, bodies.RateLimitPatch | None] | None]):
        body["rate_limits"] = {label: {LIMIT_NAME: LIMIT} for label in ("*", *limits)}
    return settings(body)


def org_patched(body: dict[str, Any]) -> dict[str, Any]:
    """Also the limit that leases are taken from, and no tag without the budgets that need it."""
    if body.get("rate_limits", ()) is None:
        body["rate_limits"] = {}
    if "tag_keys" in body:
        body.setdefault("budgets", [])
    return patched(body)


def reason(text: Any) -> Any:
    """A reason is printable."""
    if not fits(text, provisioning.Reason):
        return text
    return "".join(filter(str.isprintable, text)).strip() or "x"


def containing(body: dict[str, Any]) -> dict[str, Any]:
    """Why it is done."""
    return {**body, "reason": reason(body["reason"])} if "reason" in body else body


def usage(body: dict[str, Any]) -> dict[str, Any]:
    """The id of the label's model, and an id of its own."""
    label = body.get("model_label")
    if label in LABELS and fits(body.get("bedrock_model_id"), runtime.ModelId):
        body["bedrock_model_id"] = CATALOGUE.model(label).bedrock_model_id
    if fits(body.get("request_id"), values.Uuid):
        body["request_id"] = str(uuid.uuid4())
    return plausible(body)


def plausible(body: dict[str, Any]) -> dict[str, Any]:
    """Batch without a tier, few and short tags in bytes, so many tokens as a call can have."""
    if body.get("batch") is True and fits(body.get("service_tier"), runtime.ServiceTier):
        body["service_tier"] = "default"
    if isinstance(tags := body.get("tags"), dict):
        if len(tags) == TAGS_MAX + 1:  # the type accepts our own mark on top
            tags.popitem()
        body["tags"] = {_cut(name): _cut(value) for name, value in tags.items()}
    for field in (name for name in body if name.endswith("_tokens")):
        if fits(body[field], values.Tokens):
            body[field] = min(body[field], PLAUSIBLE_TOKENS)
    return body


def _cut(text: Any) -> Any:
    """A text that has few enough characters, with few enough bytes; anything else is unchanged."""
    if not isinstance(text, str) or len(text) > TAG_BYTES_MAX:
        return text
    return text.encode("utf-8", "replace")[:TAG_BYTES_MAX].decode("utf-8", "ignore")


def authorization(body: dict[str, Any]) -> dict[str, Any]:
    """An id is for one authorization, and a model is one that there is.

    Nothing is used that the deployment file has no price or no window for.
    """
    if fits(body.get("uses"), list[authorizations.Use]):
        body["uses"] = []
    if fits(body.get("window_tokens"), values.Tokens):
        body["window_tokens"] = 0
    if fits(body.get("authorization_id"), values.Uuid):
        body["authorization_id"] = str(uuid.uuid4())
    if fits(body.get("model"), authorizations.ModelName):
        body["model"] = "auto"
    return plausible(body)


def capturing(body: dict[str, Any]) -> dict[str, Any]:
    """The id of the model is left out: the granted label is unknown."""
    if fits(body.get("bedrock_model_id"), runtime.ModelId):
        body["bedrock_model_id"] = None
    return plausible(body)


def admin_key(body: dict[str, Any]) -> dict[str, Any]:
    """A printable name, organisations that there are (all of them), an end that is to come."""
    if fits(body.get("name"), administration.KeyName):
        name = "".join(one for one in body["name"] if one.isprintable() and one != "/")
        body["name"] = name.strip() or "x"
    if fits(body, administration.AdminKeyBody):
        body |= {"org_ids": None, "expires_at": None}
    return body


def lease(body: dict[str, Any]) -> dict[str, Any]:
    """An id is for one lease."""
    if fits(body.get("lease_id"), values.Uuid):
        body["lease_id"] = str(uuid.uuid4())
    return body


def adjustment(body: dict[str, Any]) -> dict[str, Any]:
    """An id is for one adjustment, which returns at most what the lease holds.

    Nor does it use more than a lease can hold, which depends on the limit's capacity.
    """
    if fits(body.get("adjustment_id"), values.Uuid):
        body["adjustment_id"] = str(uuid.uuid4())
    if fits(body.get("delta"), dict[values.LimitName, values.Delta]):
        body["delta"] = {name: abs(delta) % 100 for name, delta in body["delta"].items()}
    return body


def channel(body: dict[str, Any]) -> dict[str, Any]:
    """An address that may be called, and that does not exist."""
    if fits(body, alerts.ChannelBody):
        kinds = {"kinds": body["kinds"]} if "kinds" in body else {}
        fields = {"url": "https://hooks.invalid/", "secret": "0123456789abcdef"}
        return {"kind": "WEBHOOK", **fields, **kinds}
    return body


def client(body: dict[str, Any]) -> dict[str, Any]:
    """A client must say who it is, here or by HTTP Basic; a refresh token is for its own grant."""
    if not fits(body, wire.TokenBody):
        return body
    if body["grant_type"] == "refresh_token":
        return refresh(body)
    body.pop("refresh_token", None)
    if body.get("client_id", "") == body.get("client_secret", "") == "":
        made = tenant()
        body |= {"client_id": made.client_id, "client_secret": made.secrets[made.client_id]}
    return body


def refresh(body: dict[str, Any]) -> dict[str, Any]:
    """A refresh token works once and for its own client, so each request has its own."""
    if fits(body, wire.RefreshBody) or fits(body, wire.TokenBody):
        made = tenant()
        body["refresh_token"] = made.login(made.client_id)["refresh_token"]
        body |= {"client_id": made.client_id, "client_secret": made.secrets[made.client_id]}
    return body


BODIES: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "putOrg": org_settings,
    "putApp": settings,
    "patchOrg": org_patched,
    "patchApp": patched,
    "recordUsage": usage,
    "authorize": authorization,
    "captureAuthorization": capturing,
    "voidAuthorization": containing,
    "voidOrgAuthorization": containing,
    "voidUsage": containing,
    "acquire": lease,
    "createAdminKey": admin_key,
    "adjustLease": adjustment,
    "putDeploymentAlertChannel": channel,
    "putOrgAlertChannel": channel,
    "issueToken": client,
    "refreshToken": refresh,
    **{
        name.format(kind): containing
        for kind in ("Org", "App")
        for name in ("revoke{}Credentials", "freeze{}", "reset{}Limits")
    },
}


def fits(value: Any, kind: Any) -> bool:
    """Whether the document would have it so."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def date_of(text: Any) -> date | None:
    """The date, if it is one."""
    try:
        return date.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def tenant() -> Tenant:
    """A new one: the one that was registered first may have been deleted."""
    return Tenant(Api(os.environ["PRICEKEEPER_URL"])).register()
