"""A machine whose wall clock a test sets for the processes that it starts."""

from pathlib import Path

from http_fixtures import ENVIRONMENT

LEAPING = """
import time
from pathlib import Path

_real_ns, _offset = time.time_ns, Path({path!r})
time.time_ns = lambda: _real_ns() + int(_offset.read_text()) * 10**9
"""


class Machine:
    """Whose wall clock is off by so many seconds."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self.is_off_by(0)
        # Python imports a module of this name when it starts.
        (folder / "sitecustomize.py").write_text(LEAPING.format(path=str(self._offset)))
        self.environment = {**ENVIRONMENT, "PYTHONPATH": str(folder)}

    def is_off_by(self, seconds: int) -> None:
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._offset)  # at once: the process reads it all the time
