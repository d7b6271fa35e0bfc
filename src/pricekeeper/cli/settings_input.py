"""Settings of organisations and apps as people write them: a YAML file, flags, or both.

The file has the fields of the REST contract. A flag replaces the file's field of that meaning; of
quotas, rate limits and budgets it replaces those that it names, and the file's others stay. What a
flag does not say of a budget, such as its labels, stays too.
Money is in dollars on the command line, exact to the micro-dollar, and in micro-dollars in files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
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


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The fields of a file that the command line names."""

    fields: Mapping[str, Any]


def read_settings_file(path: str) -> SettingsFile:
    """Read the file, or stdin."""
    from pricekeeper.pricing.strict_yaml import InvalidYamlError, load_strict_yaml  # noqa: PLC0415

    try:
        text = _read_stdin() if path == STDIN else Path(path).read_text(encoding="utf-8")
        found = load_strict_yaml(text)
    except OSError as error:
        raise MisusedError(f"--file {path}: {error.strerror}") from error
    except (InvalidYamlError, UnicodeDecodeError) as error:
        raise MisusedError(f"--file {path}: {error}") from error
    if not isinstance(found, dict):
        raise MisusedError(f"--file {path}: want fields, name: value")
    return SettingsFile(found)


def _read_stdin() -> str:
    if sys.stdin.isatty():
        typer.echo("settings in YAML, ctrl-d ends them:", err=True)
    return sys.stdin.read()


# Read while the command line is parsed: in the event loop the first ctrl-c would go unheard.
FileOption = Annotated[
    SettingsFile | None,
    option("--file -f FILE", "Settings in YAML; - reads stdin.", parser=read_settings_file),
]


@dataclass(frozen=True, kw_only=True)
class AppFlags:
    """Flags about an app; an organisation has them, too."""

    name: Annotated[str | None, option("--name", "What people call it.")] = None
    order: Annotated[
        str | None, option("--order LABELS", "Model labels, first choice first: a,b,c.")
    ] = None
    quota: Annotated[
        list[str] | None, option("--quota LABEL=USD", "Dollars a day for a label; repeatable.")
    ] = None
    rate_limit: Annotated[
        list[str] | None,
        option(
            "--rate-limit LABEL:NAME=N/PERIOD",
            "A token bucket, such as '*:rpm=60/1m' or 'premium:tpm=9000/1m/20000' "
            "(the last number is the capacity); repeatable.",
        ),
    ] = None
    session_limit: Annotated[
        int | None,
        option("--session-limit", "Live sessions at most, 1 to 100; twice its processes."),
    ] = None
    output_cap: Annotated[
        int | None, option("--output-cap", "The longest answer of a call, in tokens.")
    ] = None
    tight_pct: Annotated[
        int | None, option("--tight-pct", "TIGHT from this percentage on, 50 to 100.")
    ] = None
    budget: Annotated[
        list[str] | None,
        option(
            "--budget NAME=WINDOW:USD",
            "Dollars for each HOUR, DAY, WEEK or MONTH, such as monthly=MONTH:200; "
            "with :soft behind it, nothing is refused; repeatable.",
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """What they say, by the fields of the REST contract; ``None`` is not said."""
        return {
            "app_name": self.name,
            "model_ordering": parse_order(self.order),
            "quotas": parse_quotas(self.quota),
            "rate_limits": parse_rate_limits(self.rate_limit),
            "session_limit": self.session_limit,
            "max_output_tokens_cap": self.output_cap,
            "tight_mode_threshold_pct": self.tight_pct,
            "budgets": parse_budgets(self.budget),
        }


@dataclass(frozen=True, kw_only=True)
class OrgFlags(AppFlags):
    """Flags about an organisation."""

    timezone: Annotated[
        str | None, option("--timezone", "IANA name; its midnight resets the quotas.")
    ] = None
    scope: Annotated[str | None, option("--scope ORG|APP", "Whether apps share the quotas.")] = None
    tag_keys: Annotated[
        str | None,
        option(
            "--tag-keys NAMES",
            "Tags by whose values spend is totalled too, at most 4: team,feature.",
        ),
    ] = None
    strict: Annotated[bool, option("--strict", "Make the daily quotas hard budgets, too.")] = False
    advisory: Annotated[
        bool, option("--advisory", "Let the daily quotas only guide the choice of a model.")
    ] = False

    def fields(self) -> dict[str, Any]:
        """What they say, by the fields of the REST contract; ``None`` is not said."""
        shared = super().fields()
        return {
            "org_name": shared.pop("app_name"),
            **shared,
            "timezone": self.timezone,
            "quota_scope": self.scope,
            "tag_keys": parse_tag_keys(self.tag_keys),
            "quota_enforcement": parse_enforcement(strict=self.strict, advisory=self.advisory),
        }


@dataclass(frozen=True, kw_only=True)
class Removals:
    """Flags about what shall be gone."""

    settings: Annotated[
        list[str] | None,
        option(
            "--unset FIELD",
            "A field to remove, such as session_limit: an app inherits it again, an "
            "organisation has its default; repeatable.",
        ),
    ] = None
    quotas: Annotated[
        list[str] | None, option("--no-quota LABEL", "A label to have no quota; repeatable.")
    ] = None
    rate_limits: Annotated[
        list[str] | None, option("--no-rate-limit LABEL:NAME", "A limit to remove; repeatable.")
    ] = None
    budgets: Annotated[
        list[str] | None, option("--no-budget NAME", "A budget to remove; repeatable.")
    ] = None


def settings_patch(
    before: Mapping[str, Any], given: Mapping[str, Any], removals: Removals
) -> dict[str, Any]:
    """The merge patch for a client as it was read: what the flags name, and nothing else.

    The quotas or rate limits that an app inherits become its own if a flag changes one of them:
    the app has one list or its organisation's, and the other entries are to stay in force.
    """
    patch: dict[str, Any] = {name.replace("-", "_"): None for name in removals.settings or ()}
    changes = {name: value for name, value in given.items() if value is not None}
    named = {name for name in ("quotas", "rate_limits", "budgets") if getattr(removals, name)}
    if both := sorted(patch.keys() & (changes.keys() | named)):
        raise MisusedError(f"--unset {both[0]}: another flag changes it")
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
        raise MisusedError("say what shall change; see --help")
    return patch


def _taken_over(inherited: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """What an app inherits, as its own, with the change in it."""
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
    """The limits to remove, by label; the label with its last one, unless it is to be kept."""
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
    return MisusedError(f"{flag} {name}: there is none; there is {', '.join(there) or 'none'}")


def settings_body(file: SettingsFile | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a PUT: the file's fields, and over them the flags that were given."""
    body = {} if file is None else dict(file.fields)
    for name, value in given.items():
        if value is not None:
            merged = _merged_budgets if name == "budgets" else _merged
            body[name] = merged(body.get(name), value)
    if not body:
        raise MisusedError("say what it shall be, with --file or with flags; see --help")
    return body


def _merged(old: Any, new: Any) -> Any:
    """The new value; where both are mappings, the old one with the new one's entries in it."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}


def _merged_budgets(old: Any, new: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The old budgets, those of a name in the new ones changed by them, and the others behind."""
    changes = {budget["name"]: budget for budget in new}
    merged: list[Any] = []
    for budget in old if isinstance(old, list) else ():
        name = budget.get("name") if isinstance(budget, dict) else None
        change = changes.pop(name, None) if isinstance(name, str) else None
        merged.append(budget if change is None else {**budget, **change})
    return [*merged, *changes.values()]


def parse_order(text: str | None) -> list[str] | None:
    """``a,b,c`` as labels."""
    return None if text is None else [label.strip() for label in text.split(",")]


def parse_tag_keys(text: str | None) -> list[str] | None:
    """``a,b`` as names of tags; nothing is no tag at all."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def parse_quotas(texts: Sequence[str] | None) -> dict[str, int] | None:
    """``LABEL=USD``, each, as micro-dollars by label."""
    if not texts:
        return None
    quotas: dict[str, int] = {}
    for text in texts:
        label, separator, dollars = text.partition("=")
        micros = _micros(dollars)
        if not separator or micros is None:
            raise MisusedError(
                f"--quota {text}: want LABEL=USD, such as premium=25 or economy=0.5, "
                "to the micro-dollar at the finest"
            )
        quotas[label] = micros
    return quotas


def parse_budgets(texts: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """``NAME=WINDOW:USD[:soft]``, each, as fields of a budget; the last of a name counts."""
    if not texts:
        return None
    budgets: dict[str, dict[str, Any]] = {}
    for text in texts:
        matched = _BUDGET.fullmatch(text)
        micros = None if matched is None else _micros(matched["dollars"])
        if matched is None or micros is None:
            raise MisusedError(
                f"--budget {text}: want NAME=WINDOW:USD, such as monthly=MONTH:200 or "
                "hourly=HOUR:0.5:soft, to the micro-dollar at the finest"
            )
        budget = {
            "name": matched["name"],
            "window": matched["window"].upper(),
            "limit_usd_micros": micros,
        }
        if matched["enforcement"] is not None:
            budget["enforcement"] = matched["enforcement"].upper()
        budgets[matched["name"]] = budget
    return list(budgets.values())


def parse_enforcement(*, strict: bool, advisory: bool) -> str | None:
    """``--strict`` or ``--advisory``, as the enforcement of quotas."""
    if strict and advisory:
        raise MisusedError("--strict and --advisory: want one of them")
    return "STRICT" if strict else "ADVISORY" if advisory else None


def _micros(dollars: str) -> int | None:
    """Micro-dollars; ``None`` if it is no amount, or not a whole number of them."""
    try:
        micros = Decimal(dollars) * _MICROS_PER_USD
        exact = micros.is_finite() and micros == int(micros) and micros >= 0
    except (InvalidOperation, OverflowError):
        return None
    return int(micros) if exact else None


def parse_rate_limits(texts: Sequence[str] | None) -> dict[str, dict[str, Any]] | None:
    """``LABEL:NAME=N/PERIOD[/CAPACITY]``, each, as the contract has rate limits."""
    if not texts:
        return None
    limits: dict[str, dict[str, Any]] = {}
    for text in texts:
        matched = _LIMIT.fullmatch(text)
        if matched is None:
            raise MisusedError(
                f"--rate-limit {text}: want LABEL:NAME=N/PERIOD, such as *:rpm=60/1m"
            )
        amount = int(matched["amount"])
        limits.setdefault(matched["label"], {})[matched["name"]] = {
            "capacity": int(matched["capacity"] or amount),
            "refill_amount": amount,
            "refill_period_ms": int(matched["count"] or 1) * _UNITS_MS[matched["unit"]],
        }
    return limits


def settings_file(answer: Mapping[str, Any]) -> str:
    """An organisation or app as a file that can be put again; an app without what it inherits."""
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
    if not is_harmless(text):  # YAML's own escapes, so that it means the same when it is put again
        text = yaml.safe_dump(settings, sort_keys=False, width=PIPE_WIDTH)
    return text
