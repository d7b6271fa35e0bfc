"""Looks for known vulnerabilities in everything that a deployment installs.

The advisories are asked for over the network. Where nobody answers, that is said in one line and
is no failure: a build must not depend on it. A vulnerability that is found is a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
LISTS: Final = ("requirements/deploy.txt", "requirements/build.txt")
SECS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """One advisory about one package."""

    package: str
    advisory: str
    mended_in: tuple[str, ...]

    def __str__(self) -> str:
        mended = ", ".join(self.mended_in) or "no version yet"
        return f"{self.package}: {self.advisory}, mended in {mended}"


@dataclass(frozen=True, slots=True)
class Report:
    """What the advisories say; ``asked`` counts the packages that they know."""

    asked: int
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        return int(bool(self.findings))

    def __str__(self) -> str:
        if not self.asked:
            return "audit: left out, because no advisories could be had from here"
        told = [f"audit: {self.asked} packages, {len(self.findings)} known vulnerabilities"]
        return "\n  ".join([*told, *map(str, self.findings)])


def read_report(text: str) -> Report:
    """Read what ``pip-audit --format json`` printed; nothing at all means that nobody answered."""
    try:
        dependencies: list[dict[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        dependencies = []
    known = [dependency for dependency in dependencies if "skip_reason" not in dependency]
    findings = tuple(
        Finding(
            f"{dependency['name']} {dependency['version']}",
            advisory["id"],
            tuple(advisory.get("fix_versions", ())),
        )
        for dependency in known
        for advisory in dependency.get("vulns", ())
    )
    return Report(len(known), findings)


def main() -> int:
    """Ask, and say what was found."""
    lists = [word for name in LISTS for word in ("-r", str(ROOT / name))]
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes"]
    try:
        done = subprocess.run(
            [*command, "--progress-spinner=off", "--format=json", *lists],
            capture_output=True,
            check=False,
            text=True,
            timeout=SECS_MAX,
        )
        report = read_report(done.stdout)
    except subprocess.TimeoutExpired:
        report = read_report("")
    print(report)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
