"""What ``doctor`` says of one thing that it has looked at."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Level: TypeAlias = Literal["OK", "WARN", "FAIL"]

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""The bits of a file's mode that let others in."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing that was looked at: whether it is as it must be, and what to do if not."""

    name: str
    level: Level
    told: str
    fix: str = ""
