"""The tool that fetches and starts the DynamoDB engines."""

import hashlib
import io
import os
import signal
import sys
import tarfile
import time
from pathlib import Path

import pytest

import engine
import engine_packages
from engine import Engine, engines_required, start_dynoxide
from engine_packages import EngineError, EngineMissingError, Package, fetch, java_major
from programs import run_program

PROGRAM = "bin/program"


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """Make a package as npm would send it."""
    path = tmp_path / "sent.tgz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(f"package/{PROGRAM}")
        entry.size, entry.mode = 2, 0o755
        archive.addfile(entry, io.BytesIO(b"ok"))
    return path


@pytest.fixture
def npm(tmp_path: Path, tarball: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an npm first on the path that sends the tarball and records its calls."""
    calls = tmp_path / "calls"
    command = tmp_path / "npm"
    command.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\ncp "{tarball}" sent.tgz\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return calls


def _package(tarball: Path) -> Package:
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    return Package("toy", "@toys/toy", "1.0.0", digest, 1, PROGRAM)


def test_a_package_is_fetched_once(tmp_path: Path, tarball: Path, npm: Path) -> None:
    package, folder = _package(tarball), tmp_path / "engine"
    home = fetch(package, folder)
    assert fetch(package, folder) == home
    assert os.access(home / PROGRAM, os.X_OK)
    assert npm.read_text().splitlines() == ["pack @toys/toy@1.0.0 --loglevel=error"]
    assert {path.name for path in folder.iterdir()} == {".lock", "toy-1.0.0"}


def test_a_package_with_another_sum_is_deleted(tmp_path: Path, tarball: Path, npm: Path) -> None:
    """What npm sent is not unpacked, and not kept."""
    package, folder = _package(tarball), tmp_path / "engine"
    with tarball.open("ab") as content:
        content.write(b"!")
    with pytest.raises(EngineError, match="is not what we know"):
        fetch(package, folder)
    assert not package.installed(folder)
    assert {path.name for path in folder.iterdir()} == {".lock"}


def test_an_interrupted_fetch_is_begun_anew(tmp_path: Path, tarball: Path, npm: Path) -> None:
    package, folder = _package(tarball), tmp_path / "engine"
    (folder / "partial-killed" / "package").mkdir(parents=True)
    package.home(folder).mkdir()
    assert not package.installed(folder)
    fetch(package, folder)
    assert package.installed(folder)
    assert {path.name for path in folder.iterdir()} == {".lock", "toy-1.0.0"}


def test_without_npm_we_say_what_to_do(
    tmp_path: Path, tarball: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissingError, match=r"install Node\.js"):
        fetch(_package(tarball), tmp_path / "engine")


def test_what_npm_complains_about_is_passed_on(tmp_path: Path, tarball: Path, npm: Path) -> None:
    command = tmp_path / "npm"
    command.write_text("#!/bin/sh\necho no such host >&2\nexit 1\n")
    with pytest.raises(EngineMissingError, match="no such host"):
        fetch(_package(tarball), tmp_path / "engine")


@pytest.mark.parametrize(
    ("told", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 1),
        ('openjdk version "25" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_of_java_is_read(tmp_path: Path, told: str, major: int | None) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{told}\nEND\n")
    java.chmod(0o755)
    assert java_major(java) == major
    assert java_major(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("environment", "required"),
    [
        ({}, False),
        ({"CI": "false"}, False),
        ({"CI": "true"}, True),
        ({"PRICEKEEPER_REQUIRE_ENGINE": "1"}, True),
    ],
)
def test_ci_needs_the_engines(environment: dict[str, str], *, required: bool) -> None:
    assert engines_required(environment) is required


def test_an_engine_that_dies_is_told_with_its_log() -> None:
    dying = Engine("toy", ["/bin/sh", "-c", "echo no room; exit 3"], port=1)
    with dying, pytest.raises(EngineError, match=r"toy ended with status 3:\nno room"):
        dying.wait_until_ready()


def test_an_engine_that_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting has a bound, and so has stopping what ignores a polite request."""
    monkeypatch.setattr(engine, "READY_SECONDS_MAX", 0.5)
    monkeypatch.setattr(engine, "STOP_SECONDS_MAX", 0.2)
    deaf = Engine("toy", ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], port=1)
    with deaf, pytest.raises(EngineError, match="toy is silent"):
        deaf.wait_until_ready()
    assert not _alive(deaf.pid)


def test_a_taken_port_is_not_the_end(dynoxide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = int(dynoxide.rpartition(":")[2])
    free = engine._free_port()
    ports = iter([taken, free])
    monkeypatch.setattr(engine, "_free_port", lambda: next(ports))
    # The engine that holds the port would answer for the one that could not have it.
    monkeypatch.setattr(Engine, "_answers", lambda self: self._port == free)
    with start_dynoxide() as second:
        assert second.endpoint == f"http://127.0.0.1:{free}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tethers a process to its parent")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_dies_with_the_process_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    """Even when that process had no chance to say goodbye."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # no process is left to remove its files
    tools = str(Path(engine_packages.__file__).parent)
    program = (
        f"import os, sys; sys.path.insert(0, {tools!r})\n"
        "from engine import Engine\n"
        "print(Engine('toy', ['/bin/sleep', '60'], port=1).pid, flush=True)\n"
        f"os.kill(os.getpid(), {int(end)})\n"
    )
    done = run_program(program)
    assert done.returncode == -end
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        os.sched_yield()
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    """Whether that process runs; one that is only waiting to be counted does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
