"""Parses a decoded JSON object into settings, or lists every mistake in it.

A lenient parser would accept a budget that does not hold. `wire.settings` checks the shape; the
other rules are checked here even if it is wrong elsewhere, so one answer lists everything.
"""

from __future__ import annotations

import functools
import re
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from pricekeeper.errors import ConflictError, FieldError, InvalidConfigError
from pricekeeper.shapes import Wording, cropped, shape_errors
from pricekeeper.tags import TAG_BYTES_MAX
from pricekeeper.tenants.configuration import (
    ANY_LABEL,
    AppSettings,
    OrgSettings,
    QuotaScope,
    is_budget_name,
)
from pricekeeper.values import ModelLabel
from pricekeeper.wire import bounds
from pricekeeper.wire import settings as bodies

ERRORS_MAX: Final = 100
_SHOWN_MAX: Final = 64
_NAMES: Final = frozenset({"org_name", "app_name"})
_LIMIT_NAME: Final = re.compile(bodies.LIMIT_NAME)
_TAG_KEY: Final = re.compile(bodies.TAG_KEY)
_LIMIT_FIELDS: Final = bodies.RateLimitBody.__struct_fields__
_NO_BUDGET: Final = f"must be an object of {', '.join(bodies.BudgetBody.__struct_fields__)}"
_WORDING: Final = Wording(
    "is not a known field", f"must be an object of {', '.join(_LIMIT_FIELDS)}"
)


def parse_org_settings(
    body: Mapping[str, Any], labels: Collection[str], shard_count_now: int | None = None
) -> OrgSettings:
    """Parse the body; ``shard_count_now`` is that of an existing organisation.

    Raises `InvalidConfigError` with every bad field, or `ConflictError` if only the shard count
    differs: counters live under it.
    """
    given = _given(body, bodies.OrgBody)
    coverage = _coverage_errors(given.get("quotas"), _ordering(given, labels) or ())
    _refuse(body, bodies.OrgBody, labels, _declared(given.get("tag_keys", [])), coverage)
    if shard_count_now is not None:
        if given.get("agg_shard_count", shard_count_now) != shard_count_now:
            raise ConflictError(
                "agg_shard_count", f"is {shard_count_now} and can't be changed after creation"
            )
        given["agg_shard_count"] = shard_count_now
    return msgspec.convert(without_nulls(given), OrgSettings)


def parse_app_settings(
    body: Mapping[str, Any], labels: Collection[str], org: OrgSettings
) -> AppSettings:
    """Parse an app's overrides, and check them with the organisation's settings."""
    given = _given(body, bodies.AppBody)
    ordering = _ordering(given, labels)
    ordering = org.model_ordering if ordering is None else ordering
    coverage = _coverage_errors(given.get("quotas", org.quotas), ordering)
    if org.quota_scope is QuotaScope.ORG and isinstance(given.get("quotas"), dict):
        coverage = chain(coverage, _coverage_errors(org.quotas, ordering))
    _refuse(body, bodies.AppBody, labels, org.tag_keys, coverage)
    return msgspec.convert(without_nulls(given), AppSettings)


def _given(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    given = {field: body[field] for field in kind.__struct_fields__ if body.get(field) is not None}
    for field in _NAMES & given.keys():
        if isinstance(given[field], str):
            given[field] = given[field].strip()
    return given


def without_nulls(plain: Any) -> Any:
    """Remove null members, which count as left out."""
    if isinstance(plain, dict):
        return {name: without_nulls(one) for name, one in plain.items() if one is not None}
    return [without_nulls(one) for one in plain] if isinstance(plain, list) else plain


def _refuse(
    body: Mapping[str, Any],
    kind: type[msgspec.Struct],
    labels: Collection[str],
    tag_keys: Collection[str] | None,
    coverage: Iterator[FieldError],
) -> None:
    """Raise if anything is wrong; only the first mistake of a path is reported."""
    given = _given(body, kind)
    found: dict[str, str] = {}
    for error in chain(
        _unknown_errors(body, kind),
        _text_errors(given),
        _label_errors(given, labels),
        _limit_errors(given.get("rate_limits")),
        _tag_key_errors(given.get("tag_keys")),
        _budget_errors(given.get("budgets"), labels, tag_keys),
        shape_errors(given, kind, wording=_WORDING),
        coverage,
    ):
        found.setdefault(ascii(error.field)[1:-1], error.message)
        if len(found) == ERRORS_MAX:
            break
    if found:
        unknown_label = bodies.UNKNOWN_LABEL in found.values()
        details = {"valid_labels": sorted(labels)} if unknown_label else {}
        raise InvalidConfigError(
            [FieldError(field, message) for field, message in found.items()], details
        )


def _unknown_errors(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> Iterator[FieldError]:
    for field in body:
        if field not in kind.__struct_fields__:
            known = field in bodies.OrgBody.__struct_fields__
            message = "is set on the organisation only" if known else _WORDING.unknown
            yield FieldError(field[:_SHOWN_MAX], message)


def _text_errors(given: Mapping[str, Any]) -> Iterator[FieldError]:
    for field in _NAMES & given.keys():
        if isinstance(given[field], str) and not given[field].isprintable():
            yield FieldError(field, bodies.NO_NAME)
    zone = given.get("timezone", "UTC")
    if isinstance(zone, str) and not is_time_zone(zone):
        yield FieldError("timezone", bodies.NO_TIME_ZONE)


def _listed(given: Mapping[str, Any]) -> list[Any] | None:
    found = given.get("model_ordering")
    is_list = isinstance(found, list) and 1 <= len(found) <= bounds.ORDERING_LENGTH_MAX
    return found if is_list else None


def _ordering(given: Mapping[str, Any], labels: Collection[str]) -> tuple[ModelLabel, ...] | None:
    listed = _listed(given)
    if listed is None:
        return None
    known = (label for label in listed if isinstance(label, str) and label in labels)
    return tuple(dict.fromkeys(map(ModelLabel, known)))


def _label_errors(given: Mapping[str, Any], labels: Collection[str]) -> Iterator[FieldError]:
    listed = _listed(given) or []
    yield from _list_errors("model_ordering", listed, labels.__contains__, bodies.UNKNOWN_LABEL)
    for field, known in (("quotas", labels), ("rate_limits", {*labels, ANY_LABEL})):
        by_label = given.get(field)
        for label in by_label if isinstance(by_label, dict) else ():
            if label not in known:
                yield FieldError(f"{field}.{cropped(label)}", bodies.UNKNOWN_LABEL)


def _list_errors(
    path: str, listed: list[Any], is_one: Callable[[str], bool], message: str
) -> Iterator[FieldError]:
    for index, name in enumerate(listed):
        if not isinstance(name, str) or not is_one(name):
            yield FieldError(f"{path}[{index}]", message)
        elif name in listed[:index]:
            yield FieldError(f"{path}[{index}]", f"names {name} a second time")


def _limit_errors(rate_limits: Any) -> Iterator[FieldError]:
    for label, named in rate_limits.items() if isinstance(rate_limits, dict) else ():
        for name, limit in named.items() if isinstance(named, dict) else ():
            path = f"rate_limits.{cropped(label)}.{cropped(name)}"
            if not _LIMIT_NAME.fullmatch(name):
                message = "a limit's name has 1 to 32 of a-z 0-9 _ and starts with a letter"
                yield FieldError(path, message)
            elif _fills_too_slowly(limit):
                message = "would take more than ten years to fill it"
                yield FieldError(f"{path}.refill_amount", message)


def _tag_key_errors(tag_keys: Any) -> Iterator[FieldError]:
    if isinstance(tag_keys, list) and len(tag_keys) <= bounds.TAG_KEYS_MAX:
        yield from _list_errors("tag_keys", tag_keys, is_tag_key, bodies.NO_TAG_KEY)


def is_tag_key(name: str) -> bool:
    """Check whether an organisation may declare this tag, a part of keys."""
    if not _TAG_KEY.fullmatch(name):
        return False
    try:
        return len(name.encode()) <= TAG_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _declared(tag_keys: Any) -> list[str] | None:
    if not isinstance(tag_keys, list) or len(tag_keys) > bounds.TAG_KEYS_MAX:
        return None
    return [name for name in tag_keys if isinstance(name, str) and is_tag_key(name)]


def _budget_errors(
    budgets: Any, labels: Collection[str], tag_keys: Collection[str] | None
) -> Iterator[FieldError]:
    if not isinstance(budgets, list) or len(budgets) > bounds.BUDGETS_MAX:
        return
    seen: set[str] = set()
    for index, budget in enumerate(budgets):
        path = f"budgets[{index}]"
        if not isinstance(budget, dict):
            yield FieldError(path, _NO_BUDGET)
            continue
        name, listed, per_tag = (budget.get(field) for field in ("name", "labels", "per_tag"))
        if not isinstance(name, str) or not is_budget_name(name):
            yield FieldError(f"{path}.name", bodies.NO_BUDGET_NAME)
        elif name in seen:
            yield FieldError(f"{path}.name", f"names {name} a second time")
        else:
            seen.add(name)
        if isinstance(listed, list) and len(listed) <= bounds.BUDGET_LABELS_MAX:
            is_label = labels.__contains__
            yield from _list_errors(f"{path}.labels", listed, is_label, bodies.UNKNOWN_LABEL)
        if per_tag is not None and tag_keys is not None and per_tag not in tag_keys:
            known = ", ".join(tag_keys) or "there are none yet"
            message = f"must be one of the organisation's tag_keys: {known}"
            yield FieldError(f"{path}.per_tag", message)


def _fills_too_slowly(limit: Any) -> bool:
    try:
        body = msgspec.convert(limit, bodies.RateLimitBody)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    filling_ms_max = bounds.LIMIT_FILLING_MS_MAX
    return body.capacity * body.refill_period_ms > body.refill_amount * filling_ms_max


def _coverage_errors(quotas: Any, ordering: Collection[ModelLabel]) -> Iterator[FieldError]:
    for label in ordering if isinstance(quotas, Mapping) else ():
        if label not in quotas:
            yield FieldError(f"quotas.{label}", "is missing, but the ordering has this label")


def is_time_zone(name: str) -> bool:
    """Check for the exact name of an IANA time zone."""
    return name in _time_zones()


@functools.cache
def _time_zones() -> frozenset[str]:
    """``localtime`` is this machine's, so it is left out."""
    return frozenset(zoneinfo.available_timezones()) - {"localtime"}
