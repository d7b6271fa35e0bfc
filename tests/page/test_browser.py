"""The page in a real Chromium, on a real service: what is in `dashboard/e2e`, file by file.

Node's runner drives the browser by Playwright, once for all files whose tests are selected, and
reports the result of each test. Without a browser or npm, pytest skips all of this in one line.
"""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import dashboard
from http_fixtures import KEY
from page_history import live_through
from serving import running_server

PICTURES = "PRICEKEEPER_SCREENSHOTS"
"""The folder for the pictures, which only `make screenshots` takes: other files test the same."""
SUITES = {
    name: path.name
    for path in sorted((dashboard.SOURCE / "e2e").glob("*.test.ts"))
    if PICTURES in os.environ or not path.name.startswith("screenshots")
    for name in re.findall(r'^describe\("(.+)",', path.read_text("utf-8"), re.MULTILINE)
}
"""The file of each suite."""
SMOKE = "logging in"
"""The only suite that `make test` runs."""
RUN_SECS_MAX = 420
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@pytest.fixture(scope="module")
def failures(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, list[str]]:
    """Run the suites that are selected. Returns the failures of each one."""
    folder = tmp_path_factory.mktemp("page")
    try:
        browser = dashboard.prepare()
    except dashboard.PageMissingError as error:
        pytest.skip(f"left out: chromium, because {error}")
    made = live_through(folder)
    environment = {"PRICEKEEPER_PROVISIONING_KEY": KEY, "PRICEKEEPER_LOG_LEVEL": "warning"}
    with running_server(folder, environment=environment, store=made.store) as server:
        world = folder / "world.json"
        known = {**made.description, "url": server.url, "key": KEY}
        world.write_text(json.dumps(known))
        variables = {"PRICEKEEPER_PAGE_WORLD": str(world), dashboard.CHROMIUM: str(browser)}
        selected = {item.name for item in request.session.items}
        files = {file for suite, file in SUITES.items() if f"{BROWSED}[{suite}]" in selected}
        only = [word for file in sorted(files) for word in ("--only", file)]
        return run_tests("e2e", folder / "report.xml", {**os.environ, **variables}, *only)


@pytest.mark.parametrize(
    "suite",
    [pytest.param(name, marks=[] if name == SMOKE else pytest.mark.slow) for name in SUITES],
)
def test_the_page_in_a_browser(failures: dict[str, list[str]], suite: str) -> None:
    assert suite in failures, "it was not run; the output above says why"
    assert not failures[suite], "\n".join(failures[suite])


BROWSED = test_the_page_in_a_browser.__name__


@pytest.mark.slow
def test_the_parts_that_need_no_browser(tmp_path: Path) -> None:
    try:
        dashboard.prepare_modules()
    except dashboard.PageMissingError as error:
        pytest.skip(f"left out: node, because {error}")
    found = run_tests("src", tmp_path / "report.xml", dict(os.environ))
    assert len(found) > 10
    wrong = [one for several in found.values() for one in several]
    assert not wrong, "\n".join(wrong)


def run_tests(
    folder: str, report: Path, environment: dict[str, str], *options: str
) -> dict[str, list[str]]:
    """Run the tests of a folder; returns the failures of each suite."""
    done = subprocess.run(  # noqa: S603 - our own tests
        [dashboard.find_node(), "scripts/test.mjs", folder, "--report", str(report), *options],
        cwd=dashboard.SOURCE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=RUN_SECS_MAX,
    )
    sys.stdout.write(done.stdout)
    found: dict[str, list[str]] = {}
    written = _CONTROL.sub("", report.read_text("utf-8"))  # colours of a message are not XML
    for suite in ET.fromstring(written).iter("testsuite"):  # noqa: S314 - Node has just written it
        found[suite.get("name", "")] = [
            f"{case.get('name')}: {wrong.text}"
            for case in suite.iter("testcase")
            for wrong in case.iter("failure")
        ]
    return found
