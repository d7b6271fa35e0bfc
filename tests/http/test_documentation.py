"""The documentation page: self-contained, under a policy that admits nothing else."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from http_fixtures import Api
from serving import Server

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_SECS_MAX = 60
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    "--virtual-time-budget=5000",
)


@pytest.fixture(scope="module")
def api(sqlite_server: Server) -> Api:
    return Api(sqlite_server.url)


def directives(policy: str) -> dict[str, list[str]]:
    return {name: rest for name, *rest in (part.split() for part in policy.split(";"))}


def test_the_page_asks_nobody_else(api: Api) -> None:
    """It works without a network."""
    page = api.call("GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(rb"https?://|//[a-z]|\bsrc=|\bhref=|@import|url\(", page.data)


def test_the_policy_admits_its_own_script_and_style_alone(api: Api) -> None:
    """By their hashes, so that no injected code runs."""
    page = api.call("GET", "/docs")
    policy = directives(page.headers["content-security-policy"])
    text = page.data.decode()
    for kind in ("script", "style"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy.pop(f"{kind}-src") == [f"'sha256-{digest}'"]
    assert policy == {
        "default-src": ["'none'"],
        "connect-src": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
    assert not re.findall(r"<[^>]+\son\w+=|<[^>]+\sstyle=", text)


@pytest.fixture(scope="module")
def browser() -> str:
    """A browser, if this machine has one."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"left out: browser, because none of {', '.join(BROWSERS)} is installed")
    return found


def look_at(url: str, browser: str, profile: Path) -> str:
    """Load the page, run its script, and return the result."""
    quiet = {"PATH": os.environ["PATH"], "HOME": str(profile)}
    done = subprocess.run(  # noqa: S603 - a browser on our own page
        [browser, *FLAGS, f"--user-data-dir={profile / 'data'}", "--dump-dom", url],
        env=quiet,
        capture_output=True,
        text=True,
        timeout=BROWSER_SECS_MAX,
        check=True,
    )
    return unescape(done.stdout)


def test_a_browser_shows_every_operation(api: Api, browser: str, tmp_path: Path) -> None:
    """Each with its path, its name and its own anchor."""
    document = json.loads(api.call("GET", "/openapi.json").data)
    page = look_at(f"{api.url}/docs#recordUsage", browser, tmp_path)
    text = re.sub(r"<[^>]+>", "", page.partition("<main")[2].partition("</main>")[0])
    for path, methods in document["paths"].items():
        assert path in text
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page
            assert operation["summary"] in text
    (opened,) = re.findall(r"<details [^>]*\bopen=[^>]*>", page)
    assert 'id="recordUsage"' in opened
    assert "an access token, as Authorization: Bearer" in text
    assert "input_tokens" in text
    assert document["info"]["version"] in page
    assert "could not be read" not in page.partition("<script>")[0]
