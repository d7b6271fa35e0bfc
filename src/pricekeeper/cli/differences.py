"""Settings as lines, and the difference of two of them. Money has all its digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rich.text import Text

from pricekeeper.cli.drawing import Facts
from pricekeeper.cli.terminal import harmless
from pricekeeper.showing import usd_exact

INHERITED: Final = "inherited"
NONE: Final = "none"
NAMES: Final = ("org_name", "app_name")

Line: TypeAlias = tuple[str, str]
"""The field, and the line's title."""
Lines: TypeAlias = Mapping[Line, str]

_TITLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(NAMES, "name"),
    "timezone": "timezone",
    "quota_scope": "quota scope",
    "model_ordering": "order",
    "tag_keys": "totals by tag",
    "sticky_fallback_enabled": "sticky fallback",
    "tight_mode_threshold_pct": "tight from",
    "refresh_interval_normal_secs": "refresh",
    "refresh_interval_tight_secs": "refresh when tight",
    "session_limit": "sessions",
    "max_output_tokens_cap": "longest answer",
    "quota_enforcement": "quotas are",
}
_WINDOWS: Final = {"HOUR": "an hour", "DAY": "a day", "WEEK": "a week", "MONTH": "a month"}
_UNITS: Final[Mapping[str, str]] = {
    "tight_mode_threshold_pct": " %",
    "refresh_interval_normal_secs": " s",
    "refresh_interval_tight_secs": " s",
    "session_limit": " at most",
    "max_output_tokens_cap": " tokens",
}


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line that differs."""

    line: Line
    before: str
    after: str


def lines_of(fields: Mapping[str, Any]) -> dict[Line, str]:
    """One line for each quota, limit and budget."""
    return {
        (field, title): text for field in fields for title, text in _lines(field, fields[field])
    }


def lines_in_force(answer: Mapping[str, Any]) -> dict[Line, str]:
    """The lines of an answer, inherited ones marked."""
    inherited = answer.get("inherited_fields", ())
    return {
        line: f"{text}, {INHERITED}" if line[0] in inherited else text
        for line, text in lines_of(effective_fields(answer)).items()
    }


def effective_fields(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with a value, without what only organisations have."""
    (name,) = [name for name in NAMES if name in answer]
    fields = {field: value for field, value in answer["configuration"].items() if value is not None}
    if name == "app_name":
        from pricekeeper.tenants.configuration import INHERITED as MAY_STATE  # noqa: PLC0415

        fields = {field: fields[field] for field in fields if field in (*MAY_STATE, "budgets")}
    return {name: answer[name], **fields}


def differences(before: Lines, after: Lines) -> list[LineChange]:
    """Return the lines that differ."""
    return [
        LineChange(line, before.get(line, NONE), after.get(line, NONE))
        for line in dict.fromkeys((*before, *after))
        if before.get(line, NONE) != after.get(line, NONE)
    ]


def drawn_changes(changes: Sequence[LineChange]) -> Facts:
    """Draw each change as ``before -> after``."""
    return Facts(
        {
            harmless(one.line[1]): Text.assemble(
                (harmless(one.before), "dim"), " -> ", (harmless(one.after), "bold")
            )
            for one in changes
        }
    )


def _lines(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is not None:
        several = _SEVERAL.get(field)
        if several is None:
            yield _TITLES.get(field, field.replace("_", " ")), _shown(field, value)
        else:
            yield from several(value)


def _quota_lines(quotas: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for label, micros in quotas.items():
        yield f"quota {label}", f"{usd_exact(micros)} a day"


def _limit_lines(limits: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for label, named in limits.items():
        for name, limit in named.items():
            period = _duration(limit["refill_period_ms"])
            more = "" if limit["capacity"] == limit["refill_amount"] else f"/{limit['capacity']}"
            yield f"rate limit {label}:{name}", f"{limit['refill_amount']}/{period}{more}"


def _duration(milliseconds: int) -> str:
    """In its largest whole unit."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def _budget_lines(budgets: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for budget in budgets:
        window = _WINDOWS.get(budget["window"], budget["window"])
        parts = [f"{usd_exact(budget['limit_usd_micros'])} {window}"]
        if budget["labels"]:
            parts.append(f"of {' + '.join(budget['labels'])}")
        if budget["per_tag"] is not None:
            parts.append(f"per {budget['per_tag']}")
        if budget["enforcement"] == "SOFT":
            parts.append("soft")
        if budget["alert_at_pct"]:
            parts.append(f"alerts at {' '.join(f'{pct}%' for pct in budget['alert_at_pct'])}")
        yield f"budget {budget['name']}", ", ".join(parts)


def _alert_lines(alerts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in alerts.items():
        if value is not None:
            yield f"alerts {name.replace('_', ' ')}", _shown(name, value)


_SEVERAL: Final[Mapping[str, Callable[[Any], Iterator[tuple[str, str]]]]] = {
    "quotas": _quota_lines,
    "rate_limits": _limit_lines,
    "budgets": _budget_lines,
    "alerts": _alert_lines,
}


def _shown(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return (" > " if field == "model_ordering" else ", ").join(map(str, value)) or NONE
    return f"{value}{_UNITS.get(field, '')}"
