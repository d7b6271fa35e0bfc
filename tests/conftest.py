"""Fixtures of all tests: the DynamoDB engines, and an environment without an AWS account.

An engine starts with the first test that uses it and ends with the session. If it is not installed,
its tests are skipped and the summary says so; in CI they fail. An engine that does not start is a
failure everywhere.
"""

from __future__ import annotations

import fcntl
import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import structlog

from engine import Engine, engines_required, start_dynamodb_local, start_dynoxide, start_s3rver
from engine_packages import (
    DYNAMODB_LOCAL,
    DYNOXIDE,
    S3RVER,
    EngineError,
    EngineMissingError,
    EngineUnsupportedError,
)

pytest_plugins = ["slowness"]

# Pytest rewrites the asserts of 450 modules, two thirds of the CPU time of a collection. It keeps
# the result only where Python may write bytecode, and so do the processes that tests start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Half the CPU time of a collection went into searches for garbage among 500,000 living objects.
gc.disable()

# A traceback through rich, with all local variables, takes up to a second each.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback

CONTRACT_FOLDER: Final = "tests/contract/"
CONTRACT_STORES: Final = ("sqlite-memory", "sqlite-file", "dynoxide", "dynamodb-local")

# The longest modules start first, so that no worker still runs one when the others are done.
LONGEST: Final = (
    "metering/test_simulation.py",
    "http/test_schema.py",
    "page/test_browser.py",
    "authorizations/test_simulation.py",
    "cli/test_people.py",
    "test_wheel.py",
    "http/test_service.py",
    "export/test_stopped.py",
    "limiter/test_clocks_apart.py",
    "limiter/test_lease_simulation.py",
    "gateway/test_refusals.py",
    "gateway/test_upstream_failures.py",
    "gateway/test_sdks.py",
    "http/test_events.py",
    "http/test_limits.py",
    "storage/dynamodb/test_mixture.py",
    "test_client_doc.py",
)

# The results of these modules do not depend on the store.
ONE_STORE: Final = frozenset(
    f"tests/http/test_{name}.py"
    for name in (
        *("audit", "aws_credentials", "containment", "hostile"),
        *("provisioning_keys", "public_bodies", "roles", "tenants", "usage_details"),
    )
)

_LEFT_OUT: Final = re.compile(r"left out: (?P<engine>[\w-]+), because (?P<reason>.*)", re.DOTALL)
_AWS: Final = {
    "AWS_ACCESS_KEY_ID": "AKIDFORTESTSONLY",  # the engines accept letters and digits only
    "AWS_SECRET_ACCESS_KEY": "secretForTestsOnly",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}

# Fixed examples, so that a failure repeats on another machine. For more and different examples:
# HYPOTHESIS_PROFILE=dev make test
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the `LONGEST` modules first, and skip stores on which a test shows nothing new.

    All stores pass the contract. So the quick suite runs other tests on a file, the slow suite
    also on an engine, and neither in memory. `make test-stores` runs all tests on all stores.
    """
    ranks = {f"tests/{name}": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
    if not os.environ.get("EVERY_STORE"):
        known = {item.nodeid for item in items}
        redundant = {item for item in items if _is_redundant(item.nodeid, known)}
        config.hook.pytest_deselected(items=[*redundant])
        items[:] = [item for item in items if item not in redundant]
    known = {item.nodeid for item in items}
    for item in items:
        if _has_twin_on_file(item.nodeid, known):
            item.add_marker(pytest.mark.slow)


def _is_redundant(name: str, known: set[str]) -> bool:
    """Whether a run on another store is enough."""
    if name.startswith(CONTRACT_FOLDER):
        return False
    if "sqlite-memory" in name:
        return name.replace("sqlite-memory", "sqlite-file") in known
    return name.partition("::")[0] in ONE_STORE and _has_twin_on_file(name, known)


def _has_twin_on_file(name: str, known: set[str]) -> bool:
    """Whether this test of an engine also runs on a file. Contract tests have no twins."""
    twins = {name.replace(engine, "sqlite-file") for engine in ("dynoxide", "dynamodb-local")}
    return not name.startswith(CONTRACT_FOLDER) and any(twin in known for twin in twins - {name})


def pytest_collection_finish() -> None:
    """Search for garbage from now on, but not among the objects collected so far."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def aws_environment() -> Iterator[None]:
    """Hide the developer's AWS settings, and stop the SDKs from asking the network for any."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in _AWS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def dynamodb_local(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Start DynamoDB Local for this session; the value is its endpoint.

    Parallel workers share one: a JVM of their own would cost each 300 MB and seconds of CPU time.
    The first user starts it, and stops it after all others: in no test, since a test has a timeout.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    shared, lock, users = (folder / f"dynamodb-local{end}" for end in ("", ".lock", ".users"))

    def stop(engine: Engine) -> None:
        with engine, _locked(lock), _locked(users):
            shared.unlink()

    with ExitStack() as using:
        with _locked(lock):
            if shared.exists():
                using.enter_context(_locked(users, fcntl.LOCK_SH))
            else:
                engine = _start(DYNAMODB_LOCAL.engine, start_dynamodb_local)
                request.config.add_cleanup(lambda: stop(engine))
                shared.write_text(engine.endpoint)
        yield shared.read_text()


@contextmanager
def _locked(file: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    with file.open("a") as opened:
        fcntl.flock(opened, kind)
        yield


@pytest.fixture(scope="session")
def dynoxide() -> Iterator[str]:
    """Start dynoxide for this session; the value is its endpoint."""
    with _start(DYNOXIDE.engine, start_dynoxide) as engine:
        yield engine.endpoint


S3_BUCKET: Final = "exports"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Start a server that speaks S3, with the bucket `S3_BUCKET`; the value is its endpoint."""
    with _start(S3RVER, lambda: start_s3rver(S3_BUCKET)) as engine:
        yield engine.endpoint


def _start(name: str, start: Callable[[], Engine]) -> Engine:
    try:
        return start()
    except EngineMissingError as error:
        possible = not isinstance(error, EngineUnsupportedError)
        if possible and engines_required(os.environ):
            pytest.fail(f"{name} is required here, but {error}", pytrace=False)
        pytest.skip(f"left out: {name}, because {error}")
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many contract checks passed on each store, and the skipped tests.

    Both come from the reports, because parallel workers send nothing else.
    """
    if passed := _contract_checks_passed(terminalreporter):
        text = ", ".join(f"{store} {passed[store]}" for store in CONTRACT_STORES if store in passed)
        terminalreporter.write_line(f"contract checks passed: {text}")
    if left_out := _left_out(terminalreporter):
        text = "; ".join(
            f"{' and '.join(what)}, because {reason}" for reason, what in sorted(left_out.items())
        )
        terminalreporter.write_line(f"left out: {text}", yellow=True)


def _contract_checks_passed(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    passed: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        path, _, parameters = report.nodeid.partition("[")
        if report.when == "call" and path.startswith(CONTRACT_FOLDER):
            passed.update(store for store in CONTRACT_STORES if store in parameters)
    return passed


def _left_out(terminalreporter: pytest.TerminalReporter) -> dict[str, list[str]]:
    """The engines that were left out, by reason."""
    tests: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if found := _LEFT_OUT.search(text):
            tests[" ".join(found["reason"].split()), found["engine"]] += 1
    left_out: dict[str, list[str]] = {}
    for (reason, engine), count in sorted(tests.items()):
        left_out.setdefault(reason, []).append(f"{count} tests on {engine}")
    return left_out
