"""Looks for known vulnerabilities in everything that a deployment installs.

The advisories are read over the network. Exit codes: 0 if no vulnerability is known, 1 if one is,
`NOT_DONE` if nothing could be looked up. `.ci/run` shows the last one and does not fail for it.
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
NOT_DONE: Final = 75
"""EX_TEMPFAIL; make itself exits with 2 at most."""
WHY_LENGTH_MAX: Final = 200


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
    """What the advisories say; ``asked`` counts the packages that were looked up."""

    asked: int
    findings: tuple[Finding, ...]
    skipped: int
    why: str
    """Why the first of the others was not looked up."""

    @property
    def exit_code(self) -> int:
        return int(bool(self.findings)) if self.asked else NOT_DONE

    def __str__(self) -> str:
        if not self.asked:
            return f"audit: NOT DONE, because nothing could be looked up: {self.why}"
        told = [f"audit: {self.asked} packages, {len(self.findings)} known vulnerabilities"]
        if self.skipped:
            told.append(f"not looked up: {self.skipped}, such as: {self.why}")
        return "\n  ".join([*told, *map(str, self.findings)])


def read_report(text: str, errors: str) -> Report:
    """Read what ``pip-audit --format json`` printed, and what it said of errors."""
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
    reasons = [one["skip_reason"] for one in dependencies if "skip_reason" in one]
    why = [*reasons[:1], *errors.strip().splitlines()[-1:], "pip-audit printed no report"][0]
    return Report(len(known), findings, len(reasons), why[:WHY_LENGTH_MAX])


def main() -> int:
    """Look the packages up, and print the findings."""
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
        report = read_report(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        report = read_report("", f"no answer within {SECS_MAX} s")
    print(report)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
