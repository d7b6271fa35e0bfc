"""One thing that ``doctor`` has looked at."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Level: TypeAlias = Literal["OK", "WARN", "FAIL"]

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""The bits of a file's mode that let others in."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    level: Level
    told: str
    fix: str = ""
