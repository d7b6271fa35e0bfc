"""The dashboard: what builds it, checks it, and finds a browser to drive it in.

``dashboard/`` is built by npm into ``src/pricekeeper/http/page``: git ignores it, a wheel has it.
Where npm is missing or too old the service runs without a page and says so; nothing here is needed
to work on the rest.

    python tools/dashboard.py build     # what `make dashboard` does; quick when nothing has changed
    python tools/dashboard.py check     # its types and its form
    python tools/dashboard.py format    # mend its form
    python tools/dashboard.py prepare   # get what its tests need: packages, a build, a browser
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = CHECKOUT / "dashboard"
BUILT: Final = CHECKOUT / "src" / "pricekeeper" / "http" / "page"
NODE_MIN: Final = (20, 19)
COMMAND_SECONDS_MAX: Final = 900
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CHROMIUM: Final = "PRICEKEEPER_CHROMIUM"
"""Which browser to take instead, by its path."""

_STAMP: Final = ".stamp"
_BUILD_INPUTS: Final = ("index.html", "package-lock.json", "scripts/build.mjs")
_LINES_SHOWN: Final = 20


class PageError(Exception):
    """Something did not work; the message says what."""


class PageMissingError(PageError):
    """What is needed is not on this machine; the message says what to do."""


def say(text: str) -> None:
    """Report to the caller."""
    print(f"page: {text}", flush=True)


def find_npm() -> str:
    """Where npm is, with a node that is new enough."""
    npm = shutil.which("npm")
    if npm is None:
        raise PageMissingError("npm was not found: install Node.js 20.19 or newer")
    find_node()
    return npm


def find_node() -> str:
    """Where a node is that is new enough."""
    node = shutil.which("node")
    if node is None:
        raise PageMissingError("node was not found: install Node.js 20.19 or newer")
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < NODE_MIN:
        wanted = ".".join(map(str, NODE_MIN))
        raise PageMissingError(f"node {told.strip() or 'of no version'} is too old: want {wanted}")
    return node


def install(npm: str, *, everything: bool) -> None:
    """Install what the build needs, or everything that development needs, as the lock file says."""
    modules = SOURCE / "node_modules"
    wanted = _digest([SOURCE / "package-lock.json"])
    stamp = modules / _STAMP
    have = stamp.read_text() if stamp.is_file() else ""
    if have == f"{wanted} everything" or (have == f"{wanted} build" and not everything):
        return
    say("installing what it needs (the first time)")
    _run([npm, "ci", "--no-audit", "--no-fund", *([] if everything else ["--omit=dev"])])
    stamp.write_text(f"{wanted} {'everything' if everything else 'build'}")


def build() -> Path:
    """Build the dashboard unless what is there was built from the same, and say where it is."""
    with _alone():
        wanted = _digest(sorted(_build_inputs()))
        stamp = SOURCE / ".built"
        if (BUILT / "index.html").is_file() and stamp.is_file() and stamp.read_text() == wanted:
            return BUILT
        npm = find_npm()
        install(npm, everything=False)
        say("building the dashboard")
        _run([npm, "run", "--silent", "build"])
        stamp.write_text(wanted)
    return BUILT


def run_script(name: str, *arguments: str) -> None:
    """Run one of the scripts of the dashboard's package, with everything installed."""
    npm = prepare_modules()
    _run([npm, "run", "--silent", name, *(["--", *arguments] if arguments else [])], quiet=False)


def prepare() -> Path:
    """Get everything that the tests of the dashboard need, and say where the browser is."""
    prepare_modules()
    build()
    return ensure_browser()


def prepare_modules() -> str:
    """Install everything that development needs, and say where npm is."""
    npm = find_npm()
    with _alone():
        install(npm, everything=True)
    return npm


def find_browser() -> Path:
    """Where a Chromium is that the tests can drive."""
    chosen = os.environ.get(CHROMIUM)
    if chosen is not None:
        return Path(chosen)
    for name in BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise PageMissingError("there is no Chromium: install Debian's chromium, for example")


def ensure_browser() -> Path:
    """Find a browser; where there is none and this may install packages, install Debian's."""
    try:
        return find_browser()
    except PageMissingError:
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise
    say("installing Debian's chromium")
    packages = [apt, "install", "-y", "--no-install-recommends", "chromium"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (packages, [apt, "update"], packages):
        done = subprocess.run(
            command, env=quiet, capture_output=True, check=False, timeout=COMMAND_SECONDS_MAX
        )
        if done.returncode == 0 and command is packages:
            break
    return find_browser()


def _build_inputs() -> Iterator[Path]:
    for name in _BUILD_INPUTS:
        yield SOURCE / name
    for path in (SOURCE / "src").rglob("*"):
        if path.is_file() and ".test." not in path.name:
            yield path


def _digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.relative_to(SOURCE)}\0{path.stat().st_size}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


@contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time install and build."""
    with (SOURCE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], *, quiet: bool = True) -> None:
    done = subprocess.run(
        command,
        cwd=SOURCE,
        check=False,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
    )
    if done.returncode != 0:
        lines = (done.stdout or "").splitlines()[:_LINES_SHOWN]
        shown = " ".join(Path(part).name if "/" in part else part for part in command)
        raise PageError("\n".join((f"'{shown}' has failed", *lines)))


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("build", "check", "format", "prepare"))
    parser.add_argument(
        "--best-effort", action="store_true", help="continue without what can't be installed here"
    )
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "build":
            build()
        elif chosen.command == "prepare":
            prepare()
        else:
            run_script(chosen.command)
    except PageError as error:
        # What is not here is left out; what is here and does not work is never taken for success.
        is_left_out = chosen.best_effort and isinstance(error, PageMissingError)
        say(f"{chosen.command} is left out: {error}" if is_left_out else str(error))
        return 0 if is_left_out else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
