"""``pricekeeper doctor``: check a deployment, and say how to repair it."""

from __future__ import annotations

import stat
from dataclasses import asdict, dataclass
from typing import Final, Literal, TypeAlias

import typer
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Where
from pricekeeper.cli.command import Output, bare_command
from pricekeeper.cli.drawing import Section
from pricekeeper.cli.terminal import harmless

top = typer.Typer()
Level: TypeAlias = Literal["OK", "WARN", "FAIL"]

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""Mode bits that give others access."""

_STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


@dataclass(frozen=True, slots=True)
class Checked:
    """One line: OK, WARN (works, but needs attention) or FAIL."""

    name: str
    level: Level
    told: str
    fix: str = ""


@bare_command(top, "doctor", has_options=True)
async def doctor(target: Where) -> Output:
    """Check store, tables, clock, keys, settings and disk. Exit 1 if a check fails.

    [dim]pricekeeper doctor[/dim]

    [dim]pricekeeper doctor --url https://keeper.example.com[/dim]
    """
    url = target.service_url
    if url is not None:
        from pricekeeper.cli.checks_service import check_service  # noqa: PLC0415

        checks = [check async for check in check_service(target, url)]
    else:
        from pricekeeper.cli.checks import check_store  # noqa: PLC0415

        checks = [check async for check in check_store(target)]
    width = max(len(check.name) for check in checks)
    lines: list[Text] = []
    for check in checks:
        level, text = (f"{check.level:<4}", _STYLES[check.level]), harmless(check.told)
        lines.append(Text.assemble(level, f"  {check.name:<{width}}  ", text))
        if check.fix:
            lines.append(Text(f"      {'':<{width}}  → {harmless(check.fix)}", "bold"))
    failed = sum(check.level == "FAIL" for check in checks)
    warned = sum(check.level == "WARN" for check in checks)
    verdict = Text("all checks passed", "green")
    if failed or warned:
        verdict = Text(f"{failed} failed, {warned} warnings", "red" if failed else "yellow")
    answer = {"checks": [asdict(check) for check in checks], "failed": failed, "warned": warned}
    code = exits.FAILED if failed else exits.OK
    return Output(answer, Section(verdict, *lines), code)
