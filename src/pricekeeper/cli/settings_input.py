"""Settings of organisations and apps from a YAML file, flags, or both.

Files have micro-dollars, flags dollars. A flag replaces its field; of quotas, limits and budgets
only the named entries, and of a budget only the stated fields.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.options import option
from pricekeeper.cli.terminal import PIPE_WIDTH, is_harmless

STDIN: Final = "-"

_LIMIT: Final = re.compile(
    r"(?P<label>[^:=]+):(?P<name>[^:=]+)=(?P<amount>[0-9]+)/(?P<count>[0-9]*)(?P<unit>ms|s|m|h|d)"
    r"(/(?P<capacity>[0-9]+))?"
)
_BUDGET: Final = re.compile(
    r"(?P<name>[^:=]+)=(?P<window>[^:=]+):(?P<dollars>[^:=]+)(:(?P<enforcement>hard|soft))?"
)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MICROS_PER_USD: Final = 1_000_000


def read_settings_file(path: str) -> dict[str, Any]:
    """Read a file, or stdin for ``-``."""
    from pricekeeper.pricing.strict_yaml import InvalidYamlError, load_strict_yaml  # noqa: PLC0415

    try:
        text = _read_stdin() if path == STDIN else Path(path).read_text(encoding="utf-8")
        found = load_strict_yaml(text)
    except OSError as error:
        text = f"--file {path}: {error.strerror}; name a file that this user can read"
        raise MisusedError(text) from error
    except (InvalidYamlError, UnicodeDecodeError) as error:
        raise MisusedError(f"--file {path}: correct this: {error}") from error
    if not isinstance(found, dict):
        raise MisusedError(f"--file {path}: write fields, one a line, as name: value")
    return found


def _read_stdin() -> str:
    if sys.stdin.isatty():
        typer.echo("type settings in YAML, and end with ctrl-d:", err=True)
    return sys.stdin.read()


# Read before the event loop runs: inside it the first ctrl-c would have no effect.
FileOption = Annotated[
    Any,
    option("--file -f FILE", "Settings in YAML; - reads stdin.", parser=read_settings_file),
]


def parse_order(text: str) -> list[str]:
    """Parse ``a,b,c``. An empty label stays, and is refused: a script's variable may be unset."""
    return [label.strip() for label in text.split(",")]


def parse_names(text: str) -> list[str]:
    """Parse ``a,b``; empty is none."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_quota(text: str) -> tuple[str, int]:
    """Parse ``LABEL=USD`` into micro-dollars."""
    label, separator, dollars = text.partition("=")
    micros = _micros(dollars)
    if not separator or micros is None:
        raise MisusedError(
            f"--quota {text}: write LABEL=USD, such as premium=25 or economy=0.5, "
            "with at most six decimals"
        )
    return label, micros


def parse_budget(text: str) -> dict[str, Any]:
    """Parse ``NAME=WINDOW:USD[:soft]``."""
    matched = _BUDGET.fullmatch(text)
    micros = None if matched is None else _micros(matched["dollars"])
    if matched is None or micros is None:
        raise MisusedError(
            f"--budget {text}: write NAME=WINDOW:USD, such as monthly=MONTH:200 or "
            "hourly=HOUR:0.5:soft, with at most six decimals"
        )
    window, enforcement = matched["window"].upper(), matched["enforcement"]
    budget = {"name": matched["name"], "window": window, "limit_usd_micros": micros}
    return budget if enforcement is None else {**budget, "enforcement": enforcement.upper()}


def parse_rate_limit(text: str) -> dict[str, dict[str, Any]]:
    """Parse ``LABEL:NAME=N/PERIOD[/CAPACITY]``."""
    matched = _LIMIT.fullmatch(text)
    if matched is None:
        raise MisusedError(f"--rate-limit {text}: write LABEL:NAME=N/PERIOD, such as *:rpm=60/1m")
    amount = int(matched["amount"])
    limit = {
        "capacity": int(matched["capacity"] or amount),
        "refill_amount": amount,
        "refill_period_ms": int(matched["count"] or 1) * _UNITS_MS[matched["unit"]],
    }
    return {matched["label"]: {matched["name"]: limit}}


def _micros(dollars: str) -> int | None:
    """Dollars; ``None`` for no amount, or over six decimals."""
    try:
        micros = Decimal(dollars) * _MICROS_PER_USD
        exact = micros.is_finite() and micros == int(micros) and micros >= 0
    except (InvalidOperation, OverflowError):
        return None
    return int(micros) if exact else None


@dataclass(frozen=True, kw_only=True)
class AppFlags:
    """Flags of apps and organisations."""

    name: Annotated[str | None, option("--name", "Its name for people.")] = None
    order: Annotated[
        Any,
        option("--order LABELS", "Model labels, first choice first: a,b,c.", parser=parse_order),
    ] = None
    quota: Annotated[
        list[Any] | None,
        option("--quota LABEL=USD", "Dollars a day for a label; repeatable.", parser=parse_quota),
    ] = None
    rate_limit: Annotated[
        list[Any] | None,
        option(
            "--rate-limit LABEL:NAME=N/PERIOD",
            "A token bucket, such as '*:rpm=60/1m' or 'premium:tpm=9000/1m/20000' "
            "(the last number is the capacity); repeatable.",
            parser=parse_rate_limit,
        ),
    ] = None
    session_limit: Annotated[
        int | None,
        option("--session-limit", "Maximum live sessions, 1 to 100: twice its processes."),
    ] = None
    output_cap: Annotated[int | None, option("--output-cap", "Maximum tokens of an answer.")] = None
    tight_pct: Annotated[
        int | None,
        option("--tight-pct", "Percentage of a quota at which mode becomes TIGHT, 50 to 100."),
    ] = None
    budget: Annotated[
        list[Any] | None,
        option(
            "--budget NAME=WINDOW:USD",
            "Dollars for each HOUR, DAY, WEEK or MONTH, such as monthly=MONTH:200. "
            "With :soft at the end it denies nothing. Repeatable.",
            parser=parse_budget,
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        return {
            "app_name": self.name,
            "model_ordering": self.order,
            "quotas": dict(self.quota) if self.quota else None,
            "rate_limits": reduce(_merged, self.rate_limit) if self.rate_limit else None,
            "session_limit": self.session_limit,
            "max_output_tokens_cap": self.output_cap,
            "tight_mode_threshold_pct": self.tight_pct,
            "budgets": _merged_budgets((), self.budget) if self.budget else None,
        }


@dataclass(frozen=True, kw_only=True)
class OrgFlags(AppFlags):
    """Flags of organisations."""

    timezone: Annotated[
        str | None, option("--timezone", "IANA name. Quotas reset at its midnight.")
    ] = None
    scope: Annotated[str | None, option("--scope ORG|APP", "Whether apps share the quotas.")] = None
    tag_keys: Annotated[
        Any,
        option(
            "--tag-keys NAMES",
            "Tags to total spend by, at most 4: team,feature.",
            parser=parse_names,
        ),
    ] = None
    strict: Annotated[bool, option("--strict", "Enforce daily quotas as hard budgets.")] = False
    advisory: Annotated[bool, option("--advisory", "Use daily quotas only to select a model.")] = (
        False
    )

    def fields(self) -> dict[str, Any]:
        if self.strict and self.advisory:
            raise MisusedError("--strict and --advisory: give one of them")
        shared = super().fields()
        return {
            "org_name": shared.pop("app_name"),
            **shared,
            "timezone": self.timezone,
            "quota_scope": self.scope,
            "tag_keys": self.tag_keys,
            "quota_enforcement": "STRICT" if self.strict else "ADVISORY" if self.advisory else None,
        }


@dataclass(frozen=True, kw_only=True)
class Removals:
    """Flags that remove settings."""

    settings: Annotated[
        list[str] | None,
        option(
            "--unset FIELD",
            "Remove a field, such as session_limit: an app inherits it again, an "
            "organisation gets the default. Repeatable.",
        ),
    ] = None
    quotas: Annotated[
        list[str] | None, option("--no-quota LABEL", "Remove a quota; repeatable.")
    ] = None
    rate_limits: Annotated[
        list[str] | None, option("--no-rate-limit LABEL:NAME", "Remove a limit; repeatable.")
    ] = None
    budgets: Annotated[
        list[str] | None, option("--no-budget NAME", "Remove a budget; repeatable.")
    ] = None


def settings_patch(
    before: Mapping[str, Any], given: Mapping[str, Any], removals: Removals
) -> dict[str, Any]:
    """The merge patch of the flags. A changed inherited quota or limit copies the others."""
    patch: dict[str, Any] = {name.replace("-", "_"): None for name in removals.settings or ()}
    changes = {name: value for name, value in given.items() if value is not None}
    named = {name for name in ("quotas", "rate_limits", "budgets") if getattr(removals, name)}
    if both := sorted(patch.keys() & (changes.keys() | named)):
        raise MisusedError(f"--unset {both[0]}: another flag changes it; leave one of them out")
    holds, inherited = before["configuration"], before.get("inherited_fields", ())
    if changes.pop("budgets", None) or removals.budgets:
        merged = _merged_budgets(holds["budgets"], given.get("budgets") or ())
        patch["budgets"] = _without_budgets(merged, removals.budgets or ())
    gone = {
        "quotas": _gone_quotas(holds["quotas"], removals.quotas or ()),
        "rate_limits": _gone_limits(
            holds["rate_limits"], removals.rate_limits or (), changes.get("rate_limits", ())
        ),
    }
    for name, removed in gone.items():
        if name in changes or removed:
            change = _merged(removed, changes.pop(name, {}))
            patch[name] = _taken_over(holds[name], change) if name in inherited else change
    patch |= changes
    if not patch:
        raise MisusedError("name a setting to change; --help lists them")
    return patch


def _taken_over(inherited: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = _merged(dict(inherited), dict(change))
    return {name: value for name, value in merged.items() if value is not None}


def _gone_quotas(quotas: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    for label in labels:
        if label not in quotas:
            raise _absent("--no-quota", label, quotas)
    return dict.fromkeys(labels)


def _gone_limits(
    limits: Mapping[str, Mapping[str, Any]], wanted: Sequence[str], kept: Collection[str]
) -> dict[str, dict[str, None] | None]:
    """Limits to remove by label; a label's last removes it, unless ``kept``."""
    there = [f"{label}:{name}" for label, named in limits.items() for name in named]
    gone: dict[str, dict[str, None]] = {}
    for spelt in wanted:
        if spelt not in there:
            raise _absent("--no-rate-limit", spelt, there)
        label, _, name = spelt.rpartition(":")
        gone.setdefault(label, {})[name] = None
    return {
        label: None if label not in kept and names.keys() == limits[label].keys() else names
        for label, names in gone.items()
    }


def _without_budgets(budgets: Sequence[Any], names: Sequence[str]) -> list[Any]:
    there = [budget["name"] for budget in budgets]
    for name in names:
        if name not in there:
            raise _absent("--no-budget", name, there)
    return [budget for budget in budgets if budget["name"] not in names]


def _absent(flag: str, name: str, there: Iterable[str]) -> MisusedError:
    return MisusedError(f"{flag} {name}: not found; choose one of: {', '.join(there) or 'none'}")


def settings_body(file: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """A PUT's body: the file's fields, with flags over them."""
    body = dict(file or {})
    for name, value in given.items():
        if value is not None:
            merged = _merged_budgets if name == "budgets" else _merged
            body[name] = merged(body.get(name), value)
    if not body:
        raise MisusedError("give its settings with --file or with flags; --help lists them")
    return body


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}


def _merged_budgets(old: Any, new: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Change old budgets of the same name, append others."""
    changes = {budget["name"]: budget for budget in new}
    merged: list[Any] = []
    for budget in old if isinstance(old, list) else ():
        name = budget.get("name") if isinstance(budget, dict) else None
        change = changes.pop(name, None) if isinstance(name, str) else None
        merged.append(budget if change is None else {**budget, **change})
    return [*merged, *changes.values()]


def settings_file(answer: Mapping[str, Any]) -> str:
    """An answer as a file for ``put --file``, without what is inherited."""
    import yaml  # noqa: PLC0415

    name = "app_name" if "app_id" in answer else "org_name"
    fields = {field: value for field, value in answer["configuration"].items() if value is not None}
    if "app_id" in answer:
        from pricekeeper.tenants.configuration import INHERITED  # noqa: PLC0415

        own = set(INHERITED) - set(answer["inherited_fields"])
        if fields.get("budgets"):
            own.add("budgets")
        fields = {field: value for field, value in fields.items() if field in own}
    settings = {name: answer[name], **fields}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=PIPE_WIDTH)
    if not is_harmless(text):  # YAML's escapes keep the meaning
        text = yaml.safe_dump(settings, sort_keys=False, width=PIPE_WIDTH)
    return text
