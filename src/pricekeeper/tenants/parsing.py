"""From a decoded JSON object to settings, or to the list of everything that is wrong with it.

Strict on purpose: a misspelt field, a number in quotes or a label that this deployment does
not have is refused, because the alternative is a budget that silently does not hold. The
parser goes on after a mistake, so that one answer names all of them.
"""

from __future__ import annotations

import functools
import re
import zoneinfo
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

from pricekeeper.errors import ConflictError, FieldError, InvalidConfigError
from pricekeeper.tenants import configuration as bounds
from pricekeeper.tenants.configuration import (
    ANY_LABEL,
    AppSettings,
    OrgSettings,
    Quotas,
    QuotaScope,
    RateLimit,
    RateLimits,
)
from pricekeeper.values import ModelLabel

_T = TypeVar("_T")

_LIMIT_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LIMIT_FIELDS: Final = {
    "capacity": bounds.LIMIT_AMOUNT_MAX,
    "refill_amount": bounds.LIMIT_AMOUNT_MAX,
    "refill_period_ms": bounds.LIMIT_PERIOD_MS_MAX,
}
ERRORS_MAX: Final = 100
"""No more mistakes than this are told: an answer is not larger than what was sent."""
_SHOWN_MAX: Final = 64
"""How much of a name that we do not know is repeated in a message."""
_ORG_FIELDS: Final = frozenset(OrgSettings.__dataclass_fields__)
_APP_FIELDS: Final = frozenset(AppSettings.__dataclass_fields__)


def parse_org_settings(
    body: Mapping[str, Any], labels: Collection[str], shard_count_now: int | None = None
) -> OrgSettings:
    """The settings in the body; ``shard_count_now`` is what an existing organisation has.

    Raises `InvalidConfigError` with every bad field, or, if that is the only thing wrong,
    `ConflictError` for another shard count than the one the counters already live under.
    """
    fields = _Fields(body, labels)
    fields.refuse_unknown(_ORG_FIELDS)
    shard_count = fields.one_of("agg_shard_count", bounds.SHARD_COUNTS)
    settings = OrgSettings(
        org_name=fields.required("org_name", fields.name("org_name"), ""),
        timezone=fields.required("timezone", fields.timezone("timezone"), ""),
        quota_scope=QuotaScope(
            fields.required(
                "quota_scope", fields.one_of("quota_scope", tuple(QuotaScope)), QuotaScope.ORG
            )
        ),
        model_ordering=fields.required("model_ordering", fields.ordering("model_ordering"), ()),
        quotas=fields.required("quotas", fields.quotas("quotas"), {}),
        sticky_fallback_enabled=_or(fields.boolean("sticky_fallback_enabled"), default=True),
        agg_shard_count=_or(shard_count, default=_or(shard_count_now, bounds.SHARD_COUNT_DEFAULT)),
        tight_mode_threshold_pct=_or(
            fields.integer("tight_mode_threshold_pct", bounds.TIGHT_PCT_RANGE),
            bounds.TIGHT_PCT_DEFAULT,
        ),
        refresh_interval_normal_secs=_or(
            fields.integer("refresh_interval_normal_secs", bounds.REFRESH_SECS_RANGE),
            bounds.REFRESH_NORMAL_SECS_DEFAULT,
        ),
        refresh_interval_tight_secs=_or(
            fields.integer("refresh_interval_tight_secs", bounds.REFRESH_SECS_RANGE),
            bounds.REFRESH_TIGHT_SECS_DEFAULT,
        ),
        session_limit=_or(
            fields.integer("session_limit", bounds.SESSION_LIMIT_RANGE),
            bounds.SESSION_LIMIT_DEFAULT,
        ),
        rate_limits=_or(fields.rate_limits("rate_limits"), {}),
    )
    fields.require_coverage(settings.quotas, settings.model_ordering)
    fields.finish()
    if shard_count_now is not None and settings.agg_shard_count != shard_count_now:
        raise ConflictError(
            "agg_shard_count", f"is {shard_count_now} and can't be changed after creation"
        )
    return settings


def parse_app_settings(
    body: Mapping[str, Any], labels: Collection[str], org: OrgSettings
) -> AppSettings:
    """What the body overrides, checked as it works out together with the organisation's."""
    fields = _Fields(body, labels)
    fields.refuse_unknown(_APP_FIELDS, elsewhere=_ORG_FIELDS)
    settings = AppSettings(
        app_name=fields.required("app_name", fields.name("app_name"), ""),
        model_ordering=fields.ordering("model_ordering"),
        quotas=fields.quotas("quotas"),
        tight_mode_threshold_pct=fields.integer("tight_mode_threshold_pct", bounds.TIGHT_PCT_RANGE),
        refresh_interval_normal_secs=fields.integer(
            "refresh_interval_normal_secs", bounds.REFRESH_SECS_RANGE
        ),
        refresh_interval_tight_secs=fields.integer(
            "refresh_interval_tight_secs", bounds.REFRESH_SECS_RANGE
        ),
        session_limit=fields.integer("session_limit", bounds.SESSION_LIMIT_RANGE),
        rate_limits=fields.rate_limits("rate_limits"),
    )
    ordering = _or(settings.model_ordering, org.model_ordering)
    fields.require_coverage(_or(settings.quotas, org.quotas), ordering)
    if org.quota_scope is QuotaScope.ORG and settings.quotas is not None:
        fields.require_coverage(org.quotas, ordering)
    fields.finish()
    return settings


class _Fields:
    """Reads fields one by one and collects what is wrong; a bad field reads as not given."""

    def __init__(self, body: Mapping[str, Any], labels: Collection[str]) -> None:
        self._body = body
        self._labels = labels
        self._errors: dict[str, str] = {}
        self._unknown_label = False

    def finish(self) -> None:
        """Raise if anything was wrong."""
        if self._errors:
            details = {"valid_labels": sorted(self._labels)} if self._unknown_label else {}
            errors = [FieldError(field, message) for field, message in self._errors.items()]
            raise InvalidConfigError(errors, details)

    def refuse_unknown(
        self, known: Collection[str], elsewhere: Collection[str] = frozenset()
    ) -> None:
        """Name every field that is not one, or is only the organisation's."""
        for field in self._body:
            if field in elsewhere and field not in known:
                self._refuse(field, "is set on the organisation only")
            elif field not in known:
                self._refuse(_shown(field), "is not a known field")

    def required(self, field: str, value: _T | None, stand_in: _T) -> _T:
        """The value, or a stand-in after noting that it is missing."""
        if value is None:
            self._refuse(field, "is required")
            return stand_in
        return value

    def require_coverage(self, quotas: Quotas, ordering: tuple[ModelLabel, ...]) -> None:
        """Name every label of the ordering that has no quota."""
        if "quotas" in self._errors:
            return  # there is no telling what they would have covered
        for label in ordering:
            if label not in quotas:
                self._refuse(f"quotas.{label}", "is missing, but the ordering has this label")

    def name(self, field: str) -> str | None:
        """Text for people, without blanks around it."""
        value = self._body.get(field)
        if value is None:
            return None
        text = value.strip() if isinstance(value, str) else ""
        if not 1 <= len(text) <= bounds.NAME_LENGTH_MAX or not text.isprintable():
            self._refuse(field, f"must be 1 to {bounds.NAME_LENGTH_MAX} printable characters")
            return None
        return text

    def timezone(self, field: str) -> str | None:
        """The name of an IANA time zone, in its exact spelling."""
        value = self._body.get(field)
        if value is None or (isinstance(value, str) and value in _time_zones()):
            return value
        self._refuse(field, "must be an IANA time zone such as America/New_York")
        return None

    def one_of(self, field: str, choices: tuple[_T, ...]) -> _T | None:
        """One of few values, of exactly their type."""
        value = self._body.get(field)
        if value is None:
            return None
        for choice in choices:
            if value == choice and isinstance(choice, type(value)):  # 8.0 and True are no 8
                return choice
        self._refuse(field, f"must be one of {', '.join(map(str, choices))}")
        return None

    def boolean(self, field: str) -> bool | None:
        """A JSON boolean."""
        value = self._body.get(field)
        if value is None or isinstance(value, bool):
            return value
        self._refuse(field, "must be true or false")
        return None

    def integer(self, field: str, allowed: tuple[int, int]) -> int | None:
        """A whole number in that range, both ends included."""
        value = self._body.get(field)
        return None if value is None else self._integer(field, value, *allowed)

    def ordering(self, field: str) -> tuple[ModelLabel, ...] | None:
        """Labels, the first choice first, each once."""
        value = self._body.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or not 1 <= len(value) <= bounds.ORDERING_LENGTH_MAX:
            self._refuse(field, f"must be a list of 1 to {bounds.ORDERING_LENGTH_MAX} model labels")
            return None
        labels: list[ModelLabel] = []
        for index, member in enumerate(value):
            if member in labels:
                self._refuse(f"{field}[{index}]", f"names {member} a second time")
            elif self._known_label(f"{field}[{index}]", member):
                labels.append(ModelLabel(member))
        return tuple(labels)

    def quotas(self, field: str) -> Quotas | None:
        """Micro-dollars a day by label."""
        value = self._body.get(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self._refuse(field, "must be an object of micro-dollars a day by model label")
            return None
        quotas: dict[ModelLabel, int] = {}
        for label, amount in value.items():
            place = _within(field, label)
            if not self._known_label(place, label):
                continue
            checked = self._integer(place, amount, 0, bounds.QUOTA_USD_MICROS_MAX)
            quotas[ModelLabel(label)] = checked or 0
        return quotas

    def rate_limits(self, field: str) -> RateLimits | None:
        """Token buckets by label (or any label), then by name."""
        value = self._body.get(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self._refuse(field, "must be an object of limits by model label or *")
            return None
        limits: dict[str, dict[str, RateLimit]] = {}
        for label, named in value.items():
            place = _within(field, label)
            if label != ANY_LABEL and not self._known_label(place, label):
                continue
            if not isinstance(named, Mapping) or len(named) > bounds.LIMITS_PER_LABEL_MAX:
                self._refuse(
                    place, f"must be an object of up to {bounds.LIMITS_PER_LABEL_MAX} named limits"
                )
                continue
            limits[label] = {
                name: limit
                for name, body in named.items()
                if (limit := self._rate_limit(_within(place, name), name, body)) is not None
            }
        return limits

    def _rate_limit(self, place: str, name: str, body: Any) -> RateLimit | None:
        if not isinstance(name, str) or not _LIMIT_NAME.fullmatch(name):
            self._refuse(place, "a limit's name has 1 to 32 of a-z 0-9 _ and starts with a letter")
            return None
        if not isinstance(body, Mapping):
            self._refuse(place, f"must be an object of {', '.join(_LIMIT_FIELDS)}")
            return None
        for unknown in body.keys() - _LIMIT_FIELDS.keys():
            self._refuse(_within(place, unknown), "is not a known field")
        numbers: dict[str, int | None] = {}
        for field, most in _LIMIT_FIELDS.items():
            where = f"{place}.{field}"
            if body.get(field) is None:
                self._refuse(where, "is required")
            else:
                numbers[field] = self._integer(where, body[field], 1, most)
        limit = RateLimit(**{field: numbers.get(field) or 0 for field in _LIMIT_FIELDS})
        filling_ms_max = bounds.LIMIT_FILLING_MS_MAX
        if limit.capacity * limit.refill_period_ms > limit.refill_amount * filling_ms_max:
            self._refuse(f"{place}.refill_amount", "would take more than ten years to fill it")
        return limit

    def _known_label(self, place: str, label: Any) -> bool:
        if isinstance(label, str) and label in self._labels:
            return True
        self._unknown_label = True
        self._refuse(place, "is not a model label of this deployment")
        return False

    def _integer(self, place: str, value: Any, least: int, most: int) -> int | None:
        if type(value) is int and least <= value <= most:
            return value
        self._refuse(place, f"must be an integer from {least} to {most}")
        return None

    def _refuse(self, place: str, message: str) -> None:
        if len(self._errors) < ERRORS_MAX:
            self._errors.setdefault(place, message)


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _within(place: str, name: Any) -> str:
    return f"{place}.{_shown(name)}"


def _shown(name: Any) -> str:
    """A name that came from outside, fit for a message: short, and nothing but ASCII."""
    return ascii(name)[1:-1][:_SHOWN_MAX] if isinstance(name, str) else "?"


def is_time_zone(name: str) -> bool:
    """Whether this is the name of an IANA time zone, in its exact spelling."""
    return name in _time_zones()


@functools.cache
def _time_zones() -> frozenset[str]:
    """Every zone of the time zone database; ``localtime`` is this machine's, so it is none."""
    return frozenset(zoneinfo.available_timezones()) - {"localtime"}
