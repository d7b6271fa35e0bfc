"""Engines that tests and benches run against, of DynamoDB and S3: fetched once, started on demand.

::

    python tools/engine.py fetch     get what is missing; quick when nothing is
    python tools/engine.py status    say what is there

An engine started from here listens on a free port of this machine, keeps its files in a
folder of its own, and never outlives the process that started it. What the engines are and
where they come from is in `engine_packages`.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import http.client
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from engine_packages import (
    CHECKOUT,
    DYNAMODB_LOCAL,
    DYNOXIDE,
    FOLDER,
    JAVA_MAJOR_MIN,
    S3RVER,
    EngineError,
    EngineMissingError,
    EngineUnsupportedError,
    dynoxide_supported,
    ensure_java,
    fetch,
    fetch_s3rver,
    find_java,
    java_major,
    require,
    require_s3rver,
    s3rver_program,
    say,
    tail,
)

READY_SECONDS_MAX: Final = 60
READY_POLL_SECONDS: Final = 0.02
STOP_SECONDS_MAX: Final = 5
START_ATTEMPTS_MAX: Final = 3
PORTS: Final = range(20_000, 32_000)
PORT_ATTEMPTS_MAX: Final = 50

_LOOPBACK: Final = "127.0.0.1"
_TETHER: Final = Path(__file__).resolve().with_name("tether.py")


def engines_required(environment: Mapping[str, str]) -> bool:
    """Whether a missing engine is a failure: in CI, or on request."""
    return (
        environment.get("CI", "").lower() in ("true", "1")
        or environment.get("PRICEKEEPER_REQUIRE_ENGINE") == "1"
    )


class Engine:
    """A running engine; after `stop`, or the end of its ``with`` block, it is gone.

    Three things see to that: `stop`, Python's exit, and on Linux the kernel, which kills it
    when the thread that started it ends, however that came about. So start it from a thread
    that lives as long as the engine is needed; the main thread is one.
    """

    def __init__(self, name: str, command: Sequence[str], port: int) -> None:
        self.name = name
        self.endpoint = f"http://{_LOOPBACK}:{port}"
        self._port = port
        self._owner = os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix=f"pricekeeper-{name}-"))
        self._log = self._directory / "engine.log"
        tether = [sys.executable, "-I", "-S", str(_TETHER), str(self._owner)]
        with self._log.open("wb") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches the tests first and
            # they can still tidy up against a living engine.
            self._process = subprocess.Popen(
                [*tether, *command],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """The process id of the engine itself."""
        return self._process.pid

    def logtail(self) -> str:
        """Read the last lines that the engine wrote."""
        return tail(self._log.read_text(errors="replace"))

    def wait_until_ready(self) -> None:
        """Return once it answers HTTP; raise, with its log, if it dies or takes too long."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            if (status := self._process.poll()) is not None:
                raise EngineError(f"{self.name} ended with status {status}:\n{self.logtail()}")
            if self._answers():
                return
            time.sleep(READY_POLL_SECONDS)
        raise EngineError(f"{self.name} is silent after {READY_SECONDS_MAX} s:\n{self.logtail()}")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(_LOOPBACK, self._port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True

    def stop(self) -> None:
        """End the process, kindly and then not, and remove its files. Twice does no harm."""
        if os.getpid() != self._owner:
            return  # a forked child inherits the exit hook, not the engine
        atexit.unregister(self.stop)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()  # nothing survives that, but a busy machine takes its time
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_dynamodb_local(folder: Path = FOLDER) -> Engine:
    """Start DynamoDB Local, empty and in memory."""
    jar = require(DYNAMODB_LOCAL, folder)
    java = find_java()
    if java is None:
        raise EngineMissingError(
            f"there is no Java {JAVA_MAJOR_MIN} or newer: run `python tools/engine.py fetch`"
        )
    # A small heap, a simple collector and the first compiler only: it starts in half the time.
    tuning = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
    library = f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}"
    options = ["-inMemory", "-sharedDb", "-disableTelemetry"]
    command = [str(java), *tuning, library, "-jar", str(jar), *options, "-port"]
    return _start(DYNAMODB_LOCAL.engine, lambda port: [*command, str(port)])


def start_dynoxide(folder: Path = FOLDER) -> Engine:
    """Start dynoxide, empty and in memory."""
    if not dynoxide_supported():
        raise EngineUnsupportedError("dynoxide exists for Linux on x64 only")
    binary = require(DYNOXIDE, folder)
    return _start(DYNOXIDE.engine, lambda port: [str(binary), "serve", "--port", str(port)])


def start_s3rver(bucket: str, folder: Path = FOLDER) -> Engine:
    """Start s3rver with one empty bucket. It knows one pair of keys, S3RVER and S3RVER.

    It does not check signatures of version 4, which our requests have.
    """
    node, program = require_s3rver(folder)
    command = [node, str(program), "-d", "objects", "-a", _LOOPBACK, "--no-vhost-buckets"]
    command += ["--configure-bucket", bucket, "-p"]
    return _start(S3RVER, lambda port: [*command, str(port)])


def _start(name: str, command_on: Callable[[int], Sequence[str]]) -> Engine:
    """Start on a free port; on another one if that was taken meanwhile."""
    for attempt in range(1, START_ATTEMPTS_MAX + 1):
        port = _free_port()
        engine = Engine(name, command_on(port), port)
        try:
            engine.wait_until_ready()
        except EngineError as error:
            engine.stop()
            if "in use" not in str(error) or attempt == START_ATTEMPTS_MAX:
                raise
        except BaseException:
            engine.stop()
            raise
        else:
            return engine
    raise AssertionError("the last attempt returns or raises")


def _free_port() -> int:
    """Pick a free port.

    It lies below the ports that the system lends to outgoing connections: one of those could
    be lent, even to our own polling, before the engine gets to it.
    """
    for _ in range(PORT_ATTEMPTS_MAX):
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_LOOPBACK, port))
            return port
    raise EngineError(f"no free port in {PORT_ATTEMPTS_MAX} attempts")


def _fetch_all(*, best_effort: bool) -> int:
    missing: list[str] = []
    steps: list[tuple[str, Callable[[], Path]]] = [
        (DYNAMODB_LOCAL.engine, lambda: fetch(DYNAMODB_LOCAL)),
        (DYNAMODB_LOCAL.engine, ensure_java),
        (S3RVER, fetch_s3rver),
    ]
    if dynoxide_supported():
        steps.append((DYNOXIDE.engine, lambda: fetch(DYNOXIDE)))
    else:
        say("dynoxide is left out: it exists for Linux on x64 only")
    for engine, step in steps:
        try:
            step()
        except EngineMissingError as error:
            missing.append(engine)
            say(f"{engine} is left out: {error}")
        except EngineError as error:
            say(str(error))
            return 1
    if not missing:
        return 0
    return 0 if best_effort and not engines_required(os.environ) else 1


def _status() -> int:
    for package in (DYNAMODB_LOCAL, DYNOXIDE):
        home = package.home(FOLDER)
        told = f"in {home.relative_to(CHECKOUT)}" if package.installed(FOLDER) else "not fetched"
        if package is DYNOXIDE and not dynoxide_supported():
            told = "not for this machine: Linux on x64 only"
        say(f"{package.engine} ({package.name}@{package.version}): {told}")
    say(f"{S3RVER}: {'there' if s3rver_program().is_file() else 'not fetched'}")
    java = find_java()
    say(f"java: {java_major(java)} at {java}" if java else f"java: none of {JAVA_MAJOR_MIN}+")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="get what is missing; quick when nothing is")
    fetching.add_argument(
        "--best-effort",
        action="store_true",
        help="outside CI, continue without what can't be installed here",
    )
    commands.add_parser("status", help="say what is there")
    chosen = parser.parse_args(arguments)
    return _status() if chosen.command == "status" else _fetch_all(best_effort=chosen.best_effort)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
