"""What has to be done so that a service has what files declare, worked out before it is done.

A declared organisation or app is what its file says, and nothing else: a setting that the file does
not name has its default or is inherited. What no file declares is left alone. Credentials are no
settings, so no plan touches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.declarations import DeclaredClient
from pricekeeper.cli.differences import (
    INHERITED,
    Line,
    LineChange,
    differences,
    drawn_changes,
    effective_fields,
    lines_in_force,
    lines_of,
)
from pricekeeper.cli.drawing import Section
from pricekeeper.cli.terminal import harmless
from pricekeeper.errors import ConflictError

Action: TypeAlias = Literal["create", "change", "unchanged"]
SHARDS: Final = "agg_shard_count"
_SIGNS: Final[Mapping[Action, tuple[str, str]]] = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "unchanged": ("=", "dim"),
}


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What has to be done for one organisation or app."""

    declared: DeclaredClient
    action: Action
    changes: Sequence[LineChange] = ()
    patch: Mapping[str, Any] | None = None
    """The merge patch of what differs; if there is none, the whole body is put."""

    @property
    def words(self) -> str:
        """The organisation or app as a command line names it."""
        app_id = self.declared.app_id
        return self.declared.org_id if app_id is None else f"{self.declared.org_id} {app_id}"

    @property
    def answer(self) -> dict[str, Any]:
        """The step as JSON."""
        app = {} if self.declared.app_id is None else {"app_id": self.declared.app_id}
        return {
            "org_id": self.declared.org_id,
            **app,
            "file": self.declared.file,
            "action": self.action,
            "changes": [
                {
                    "field": change.line[0],
                    "what": change.line[1],
                    "before": change.before,
                    "after": change.after,
                }
                for change in self.changes
            ],
        }


def plan_step(
    declared: DeclaredClient, current: Mapping[str, Any] | None, org: DeclaredClient
) -> PlanStep:
    """What to do, by what the service says that there is; ``org`` is the app's organisation."""
    if current is None:
        return PlanStep(declared, "create", differences({}, lines_of(declared.fields)))
    _require_same_shards(declared, current)
    scopes = current["configuration"]["quota_scope"], org.fields["quota_scope"]
    if declared.app_id is not None and scopes == ("ORG", "APP"):
        return _step_out_of_scope(declared, current)
    wanted, stated = _comparable(declared.fields), _comparable(stated_fields(current))
    patch = _merge_patch(stated, wanted)
    if not patch:
        return PlanStep(declared, "unchanged")
    before = lines_in_force(current)
    after = _lines_after(declared, current, before)
    return PlanStep(declared, "change", differences(before, after), patch)


def _step_out_of_scope(declared: DeclaredClient, current: Mapping[str, Any]) -> PlanStep:
    """What to do for an app whose organisation stops sharing its quotas.

    Nobody can see whether the app has quotas of its own, so whatever it has is replaced.
    """
    before = lines_in_force(current)
    after = _lines_after(declared, current, before)
    own = "its own" if "quotas" in declared.fields else INHERITED
    changes = [LineChange(("quotas", "quotas"), "its organisation's", own)]
    return PlanStep(declared, "change", [*changes, *differences(before, after)])


def stated_fields(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a client states itself, by the service's answer."""
    inherited = answer.get("inherited_fields", ())
    return {
        field: value
        for field, value in effective_fields(answer).items()
        if field not in inherited and field != SHARDS
    }


def drawn_plan(steps: Sequence[PlanStep], undeclared: Sequence[str]) -> RenderableType:
    """The plan as people read it."""
    counts = {action: sum(step.action == action for step in steps) for action in _SIGNS}
    heading = Text(
        f"{counts['create']} to create, {counts['change']} to change, "
        f"{counts['unchanged']} unchanged",
        "bold",
    )
    return Section(heading, *_drawn_steps(steps), *drawn_undeclared(undeclared))


def drawn_step(step: PlanStep, sign: str, style: str, more: str = "") -> Text:
    """One line about an organisation or app."""
    name = harmless(step.declared.name)
    line = Text.assemble((f"{sign} ", style), (name, "bold"), f"  {harmless(step.words)}")
    if more:
        line.append(f"  {harmless(more)}", "dim")
    return line


def drawn_undeclared(undeclared: Sequence[str]) -> Iterator[RenderableType]:
    """What no file declares, and what happens to it: nothing."""
    if undeclared:
        names = ", ".join(map(harmless, undeclared))
        yield Text(f"left alone, because no file declares it: {names}", "dim")


def _drawn_steps(steps: Sequence[PlanStep]) -> Iterator[RenderableType]:
    for step in steps:
        line = drawn_step(step, *_SIGNS[step.action], more=step.declared.file)
        yield Section(line, drawn_changes(step.changes)) if step.changes else line


def _require_same_shards(declared: DeclaredClient, current: Mapping[str, Any]) -> None:
    """Refuse, before anything is done, what can't be changed any more."""
    wanted, there = declared.body.get(SHARDS), current["configuration"][SHARDS]
    if declared.app_id is None and wanted is not None and wanted != there:
        raise ConflictError(
            f"{declared.file}: {SHARDS}", f"is {there} and can't be changed after creation"
        )


def _comparable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in one form: the order of budgets means nothing, nor do an app's that are none."""
    budgets = sorted(fields.get("budgets") or (), key=lambda budget: str(budget["name"]))
    others = {name: value for name, value in fields.items() if name != "budgets"}
    return {**others, "budgets": budgets} if budgets or "org_name" in fields else others


def _merge_patch(stated: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes the one of the other."""
    patch: dict[str, Any] = dict.fromkeys(name for name in stated if name not in wanted)
    for name, value in wanted.items():
        there = stated.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            if inner := _merge_patch(there, value):
                patch[name] = inner
        elif name not in stated or value != there:
            patch[name] = value
    return patch


def _lines_after(
    declared: DeclaredClient, current: Mapping[str, Any], before: Mapping[Line, str]
) -> dict[Line, str]:
    """What will be so. What an app inherits now goes on as it is; what it will inherit is named."""
    after = lines_of(declared.fields)
    inherited = current.get("inherited_fields", ())
    for line, text in before.items():
        field = line[0]
        if field in inherited and field not in declared.fields:
            after[line] = text
        elif declared.app_id is not None and field not in (*declared.fields, "budgets"):
            after[line] = INHERITED
        elif field == SHARDS:
            after[line] = text
    return after
