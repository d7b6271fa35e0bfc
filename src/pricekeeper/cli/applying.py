"""``pricekeeper apply``: plan what makes a service equal to files, show it, and do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Output, Proposal, backend_command
from pricekeeper.cli.declarations import Declarations, DeclaredClient, read_declarations
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
from pricekeeper.cli.drawing import Section, plain
from pricekeeper.cli.options import argument, option
from pricekeeper.cli.terminal import harmless
from pricekeeper.errors import ConflictError, PriceKeeperError

if TYPE_CHECKING:
    from pricekeeper.client import Admin


top = typer.Typer()

DONE: Final = "done"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"
NOT_DONE: Final = "not done"
_OUTCOME_SIGNS: Final[Mapping[str, tuple[str, str]]] = {
    DONE: ("✓", "green"),
    FAILED: ("✗", "red"),
    UNKNOWN: ("?", "red"),
    NOT_DONE: ("·", "dim"),
}
_SURELY_NOT_DONE: Final = ("CONFLICT", "RATE_LIMIT_EXCEEDED", "UNREACHABLE")


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The steps for declared clients, and the undeclared clients."""

    steps: tuple[PlanStep, ...]
    undeclared: tuple[Mapping[str, str], ...]

    @property
    def open_steps(self) -> tuple[PlanStep, ...]:
        return tuple(step for step in self.steps if step.action != "unchanged")

    @property
    def undeclared_names(self) -> list[str]:
        return [" ".join(one.values()) for one in self.undeclared]

    def answer(self, status: str) -> dict[str, Any]:
        """The plan as JSON."""
        steps = [step.answer for step in self.steps]
        return {"status": status, "steps": steps, "undeclared": list(self.undeclared)}


@backend_command(top, "apply", has_yes=True)
async def apply(
    backend: Backend,
    declarations: Annotated[
        Declarations,
        argument(
            "FILE|FOLDER", "A YAML or JSON file, or a folder of them.", parser=read_declarations
        ),
    ],
    *,
    dry_run: Annotated[
        bool, option("--dry-run", "Show what would change; change nothing.")
    ] = False,
) -> Output | Proposal:
    """Show what differs from the files, then change organisations and apps to match them.

    Each file declares an organisation with its apps, budgets and limits; docs/policies.md has an
    example. Undeclared organisations, undeclared apps and credentials are left alone.

    [dim]pricekeeper apply acme.yaml --dry-run[/dim]

    [dim]pricekeeper apply policies --yes[/dim]
    """
    plan = await _make_plan(backend.admin, declarations)
    if not plan.open_steps:
        return Output(plan.answer("unchanged"), _nothing_to_do(plan))
    picture = drawn_plan(plan.steps, plan.undeclared_names)
    if dry_run:
        return Output(plan.answer("planned"), picture)
    question = f"Apply these changes to {len(plan.open_steps)} of {len(plan.steps)}?"
    return Proposal(picture, question, lambda backend: _carry_out(backend.admin, plan))


async def _make_plan(admin: Admin, declarations: Declarations) -> ApplyPlan:
    steps: list[PlanStep] = []
    undeclared: list[Mapping[str, str]] = []
    for org in declarations.orgs:
        org_id = org.client.org_id
        current = plain(await exits.unless_missing(admin.get_org(org_id)))
        listed = [] if current is None else plain(await admin.list_apps(org_id))
        there = {app["app_id"]: app for app in listed}
        steps.append(plan_step(org.client, current, org.client))
        steps += [plan_step(app, there.pop(str(app.app_id), None), org.client) for app in org.apps]
        undeclared += [{"org_id": org_id, "app_id": app_id} for app_id in there]
    if declarations.are_of_a_folder:
        known = {org.client.org_id for org in declarations.orgs}
        found = [org["org_id"] for org in plain(await admin.list_orgs())]
        undeclared += [{"org_id": org_id} for org_id in found if org_id not in known]
    return ApplyPlan(tuple(steps), tuple(undeclared))


async def _carry_out(admin: Admin, plan: ApplyPlan) -> Output:
    """Do the steps in order, up to the first failure."""
    steps: list[PlanStep] = []
    failure: PriceKeeperError | None = None
    for step in plan.steps:
        if step.action == "unchanged":
            steps.append(step)
        elif failure is not None:
            steps.append(replace(step, outcome=NOT_DONE))
        else:
            failure = await _do(admin, step)
            outcome = DONE if failure is None else _came_of(failure)
            steps.append(replace(step, outcome=outcome, failure=failure))
    came = replace(plan, steps=tuple(steps))
    if failure is None:
        return Output(came.answer("applied"), _picture(came))
    return Output(came.answer("failed"), _picture(came), exits.FAILED)


async def _do(admin: Admin, step: PlanStep) -> PriceKeeperError | None:
    (_, org_id, app_id, body, _), patch = step.declared, step.patch
    try:
        if patch is None and app_id is None:
            await admin.put_org(org_id, body)
        elif patch is None:
            await admin.put_app(org_id, str(app_id), body)
        elif app_id is None:
            await admin.patch_org(org_id, patch)
        else:
            await admin.patch_app(org_id, app_id, patch)
    except PriceKeeperError as error:
        return error
    return None


def _came_of(error: PriceKeeperError) -> str:
    """Tell a step that surely failed from one that may have been done."""
    refused = exits.exit_code(error) in (exits.USAGE, exits.NOT_FOUND, exits.REFUSED)
    return FAILED if refused or error.code in _SURELY_NOT_DONE else UNKNOWN


def _nothing_to_do(plan: ApplyPlan) -> RenderableType:
    heading = Text.assemble(("✓ ", "green"), f"nothing to do: {len(plan.steps)} as declared")
    return Section(heading, *drawn_undeclared(plan.undeclared_names))


def _picture(plan: ApplyPlan) -> RenderableType:
    steps = plan.open_steps
    done = sum(step.outcome == DONE for step in steps)
    if done == len(steps):
        heading = Text.assemble(("✓ ", "green"), f"done, for {done} of {len(plan.steps)}")
    else:
        heading = Text.assemble(("✗ ", "red"), f"{done} of {len(steps)} are done")
    lines = [drawn_step(step, *_OUTCOME_SIGNS[step.outcome], more=_remark(step)) for step in steps]
    return Section(heading, *lines, *_next_steps(steps))


def _remark(step: PlanStep) -> str:
    if step.outcome == DONE:
        return "created" if step.action == "create" else "changed"
    if step.failure is None:
        return step.outcome
    fix = exits.fix_of(step.failure)
    perhaps = "" if step.outcome == FAILED else "; it may have been done nevertheless"
    return f"{step.failure.code} {step.failure}{f'; {fix}' if fix else ''}{perhaps}"


def _next_steps(steps: Sequence[PlanStep]) -> Iterator[RenderableType]:
    created = [step for step in steps if step.action == "create" and step.outcome == DONE]
    if created:
        # Not the retrieval token itself: many people read the logs of what applies files.
        yield Text("to get the secret of each new one, run this and claim it", "dim")
    for step in created:
        yield Text(f"pricekeeper credentials rotate {harmless(step.words)} --grace-hours 0", "bold")
    if any(step.failure is not None for step in steps):
        yield Text("finished steps are kept; run the same command again to continue", "dim")


Action: TypeAlias = Literal["create", "change", "unchanged"]
SHARDS: Final = "agg_shard_count"
_ACTION_SIGNS: Final[Mapping[Action, tuple[str, str]]] = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "unchanged": ("=", "dim"),
}


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What to do for one organisation or app."""

    declared: DeclaredClient
    action: Action
    changes: Sequence[LineChange] = ()
    patch: Mapping[str, Any] | None = None
    """Without a merge patch the whole body is put."""

    outcome: str = ""
    failure: PriceKeeperError | None = None

    @property
    def words(self) -> str:
        return " ".join(filter(None, (self.declared.org_id, self.declared.app_id)))

    @property
    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"org_id": self.declared.org_id}
        if self.declared.app_id is not None:
            answer["app_id"] = self.declared.app_id
        answer |= {"file": self.declared.file, "action": self.action}
        answer["changes"] = [
            {"field": one.line[0], "what": one.line[1], "before": one.before, "after": one.after}
            for one in self.changes
        ]
        if self.outcome:
            answer["outcome"] = self.outcome
        if self.failure is not None:
            answer["error"] = {"code": self.failure.code, "detail": str(self.failure)}
        return answer


def plan_step(
    declared: DeclaredClient, current: Mapping[str, Any] | None, org: DeclaredClient
) -> PlanStep:
    """Compare a declared client with the service. ``org`` is the app's."""
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
    """Put a whole app whose organisation stops sharing quotas: its own quotas are unknown."""
    before = lines_in_force(current)
    after = _lines_after(declared, current, before)
    own = "its own" if "quotas" in declared.fields else INHERITED
    changes = [LineChange(("quotas", "quotas"), "its organisation's", own)]
    return PlanStep(declared, "change", [*changes, *differences(before, after)])


def stated_fields(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The client's own settings in an answer."""
    inherited = answer.get("inherited_fields", ())
    return {
        field: value
        for field, value in effective_fields(answer).items()
        if field not in inherited and field != SHARDS
    }


def drawn_plan(steps: Sequence[PlanStep], undeclared: Sequence[str]) -> RenderableType:
    """Draw the plan."""
    counts = {action: sum(step.action == action for step in steps) for action in _ACTION_SIGNS}
    heading = Text(
        f"{counts['create']} to create, {counts['change']} to change, "
        f"{counts['unchanged']} unchanged",
        "bold",
    )
    return Section(heading, *_drawn_steps(steps), *drawn_undeclared(undeclared))


def drawn_step(step: PlanStep, sign: str, style: str, more: str = "") -> Text:
    """Draw an organisation or app."""
    name = harmless(step.declared.name)
    line = Text.assemble((f"{sign} ", style), (name, "bold"), f"  {harmless(step.words)}")
    if more:
        line.append(f"  {harmless(more)}", "dim")
    return line


def drawn_undeclared(undeclared: Sequence[str]) -> Iterator[RenderableType]:
    """Draw the undeclared clients."""
    if undeclared:
        names = ", ".join(map(harmless, undeclared))
        yield Text(f"left alone, because no file declares them: {names}", "dim")


def _drawn_steps(steps: Sequence[PlanStep]) -> Iterator[RenderableType]:
    for step in steps:
        line = drawn_step(step, *_ACTION_SIGNS[step.action], more=step.declared.file)
        yield Section(line, drawn_changes(step.changes)) if step.changes else line


def _require_same_shards(declared: DeclaredClient, current: Mapping[str, Any]) -> None:
    """Refuse a new number of shards before any step."""
    wanted, there = declared.body.get(SHARDS), current["configuration"][SHARDS]
    if declared.app_id is None and wanted is not None and wanted != there:
        raise ConflictError(
            f"{declared.file}: {SHARDS}", f"is {there} and can't be changed after creation"
        )


def _comparable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sort budgets, and drop an app's empty list."""
    budgets = sorted(fields.get("budgets") or (), key=lambda budget: str(budget["name"]))
    others = {name: value for name, value in fields.items() if name != "budgets"}
    return {**others, "budgets": budgets} if budgets or "org_name" in fields else others


def _merge_patch(stated: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
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
    """Newly inherited settings read "inherited"."""
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
