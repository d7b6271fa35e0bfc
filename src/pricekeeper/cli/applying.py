"""``pricekeeper apply``: organisations and apps as files declare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.apply_plan import PlanStep, drawn_plan, drawn_step, drawn_undeclared, plan_step
from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Output, Proposal, proposing_command
from pricekeeper.cli.declarations import Declarations, read_declarations
from pricekeeper.cli.drawing import Section
from pricekeeper.cli.options import argument, option
from pricekeeper.cli.terminal import harmless
from pricekeeper.errors import PriceKeeperError

if TYPE_CHECKING:
    from pricekeeper.cli.backends import AnyAdmin

top = typer.Typer()

DONE: Final = "done"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"
NOT_DONE: Final = "not done"
_SIGNS: Final[Mapping[str, tuple[str, str]]] = {
    DONE: ("✓", "green"),
    FAILED: ("✗", "red"),
    UNKNOWN: ("?", "red"),
    NOT_DONE: ("·", "dim"),
}
_SURELY_NOT_DONE: Final = ("CONFLICT", "RATE_LIMIT_EXCEEDED", "UNREACHABLE")


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Everything that is declared, and what no file declares."""

    steps: tuple[PlanStep, ...]
    undeclared: tuple[Mapping[str, str], ...]

    @property
    def open_steps(self) -> tuple[PlanStep, ...]:
        """Those that change something."""
        return tuple(step for step in self.steps if step.action != "unchanged")

    @property
    def undeclared_names(self) -> list[str]:
        """An app with its organisation, as a command line names it."""
        return [" ".join(one.values()) for one in self.undeclared]

    def answer(self, status: str, outcomes: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The plan as JSON, and what came of each step that changes something."""
        came = dict(zip(map(id, self.open_steps), outcomes, strict=False))
        steps = [{**step.answer, **came.get(id(step), {})} for step in self.steps]
        return {"status": status, "steps": steps, "undeclared": list(self.undeclared)}


@proposing_command(top, "apply")
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
        bool, option("--dry-run", "Show what would change, and change nothing.")
    ] = False,
) -> Output | Proposal:
    """Make organisations and apps what files declare, after showing what that changes.

    Each file has an organisation with its apps, budgets and limits; docs/policies.md has an
    example. What no file declares is left alone, and credentials stay as they are.

    [dim]pricekeeper apply acme.yaml --dry-run[/dim]

    [dim]pricekeeper apply policies --yes[/dim]
    """
    plan = await _make_plan(backend.admin, declarations)
    if not plan.open_steps:
        return Output(plan.answer("unchanged"), _nothing_to_do(plan))
    picture = drawn_plan(plan.steps, plan.undeclared_names)
    if dry_run:
        return Output(plan.answer("planned"), picture)
    question = f"Do this, for {len(plan.open_steps)} of {len(plan.steps)}?"
    return Proposal(picture, question, lambda backend: _carry_out(backend.admin, plan))


async def _make_plan(admin: AnyAdmin, declarations: Declarations) -> ApplyPlan:
    steps: list[PlanStep] = []
    undeclared: list[Mapping[str, str]] = []
    for org in declarations.orgs:
        org_id = org.client.org_id
        current = await exits.unless_missing(admin.get_org(org_id))
        listed = [] if current is None else await admin.list_apps(org_id)
        there = {app["app_id"]: app for app in listed}
        steps.append(plan_step(org.client, current, org.client))
        steps += [plan_step(app, there.pop(str(app.app_id), None), org.client) for app in org.apps]
        undeclared += [{"org_id": org_id, "app_id": app_id} for app_id in there]
    if declarations.are_of_a_folder:
        known = {org.client.org_id for org in declarations.orgs}
        found = [org["org_id"] for org in await admin.list_orgs()]
        undeclared += [{"org_id": org_id} for org_id in found if org_id not in known]
    return ApplyPlan(tuple(steps), tuple(undeclared))


async def _carry_out(admin: AnyAdmin, plan: ApplyPlan) -> Output:
    """Do one step after the other; the first that fails is the last that is tried."""
    outcomes: list[dict[str, Any]] = []
    failure: PriceKeeperError | None = None
    for step in plan.open_steps:
        if failure is not None:
            outcomes.append({"outcome": NOT_DONE})
            continue
        try:
            await _do(admin, step)
        except PriceKeeperError as error:
            failure = error
            said = {"code": error.code, "detail": str(error)}
            outcomes.append({"outcome": _came_of(error), "error": said})
        else:
            outcomes.append({"outcome": DONE})
    answer = plan.answer("applied" if failure is None else "failed", outcomes)
    picture = _picture(plan, [one["outcome"] for one in outcomes], failure)
    return Output(answer, picture, exits.OK if failure is None else exits.FAILED)


async def _do(admin: AnyAdmin, step: PlanStep) -> None:
    """Create what is not there; of what is there, change what differs and nothing else."""
    client = step.declared
    if client.app_id is None:
        if step.patch is None:
            await admin.put_org(client.org_id, client.body)
        else:
            await admin.patch_org(client.org_id, step.patch)
    elif step.patch is None:
        await admin.put_app(client.org_id, client.app_id, client.body)
    else:
        await admin.patch_app(client.org_id, client.app_id, step.patch)


def _came_of(error: PriceKeeperError) -> str:
    """Whether what failed can have been done all the same."""
    refused = exits.exit_code(error) in (exits.USAGE, exits.NOT_FOUND, exits.REFUSED)
    return FAILED if refused or error.code in _SURELY_NOT_DONE else UNKNOWN


def _nothing_to_do(plan: ApplyPlan) -> RenderableType:
    heading = Text.assemble(("✓ ", "green"), f"nothing to do: {len(plan.steps)} as declared")
    return Section(heading, *drawn_undeclared(plan.undeclared_names))


def _picture(
    plan: ApplyPlan, outcomes: Sequence[str], failure: PriceKeeperError | None
) -> RenderableType:
    """What was done, what was not, and what to do next."""
    done = outcomes.count(DONE)
    if failure is None:
        heading = Text.assemble(("✓ ", "green"), f"done, for {done} of {len(plan.steps)}")
    else:
        heading = Text.assemble(("✗ ", "red"), f"{done} of {len(outcomes)} are done")
    lines = [
        drawn_step(step, *_SIGNS[outcome], more=_remark(step, outcome, failure))
        for step, outcome in zip(plan.open_steps, outcomes, strict=True)
    ]
    return Section(heading, *lines, *_next_steps(plan, outcomes, failure))


def _remark(step: PlanStep, outcome: str, failure: PriceKeeperError | None) -> str:
    if outcome == DONE:
        return "created" if step.action == "create" else "changed"
    if outcome == NOT_DONE or failure is None:
        return outcome
    fix = exits.fix_of(failure)
    perhaps = "" if outcome == FAILED else "; it may have been done all the same"
    return f"{failure.code} {failure}{f'; {fix}' if fix else ''}{perhaps}"


def _next_steps(
    plan: ApplyPlan, outcomes: Sequence[str], failure: PriceKeeperError | None
) -> Iterator[RenderableType]:
    created = [
        step
        for step, outcome in zip(plan.open_steps, outcomes, strict=True)
        if step.action == "create" and outcome == DONE
    ]
    if created:
        # Not the retrieval token itself: what applies files writes logs that many people read.
        yield Text("its secret, for each that is new: claim what this shows", "dim")
        for step in created:
            words = harmless(step.words)
            yield Text(f"pricekeeper credentials rotate {words} --grace-hours 0", "bold")
    if failure is not None:
        yield Text("what is done stays so; the same command goes on from here", "dim")
