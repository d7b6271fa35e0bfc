"""The dashboard's files: as built, under a strict policy, with a clear message if missing."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from http_fixtures import KEY
from in_loop_service import serving
from pricekeeper.clock import SystemClock
from pricekeeper.http import dashboard
from pricekeeper.http.dashboard import load_page
from pricekeeper.settings import MEMORY, Settings, SqliteLocation

HTML = "<!doctype html><script type=module src=/assets/index-B7x2kQ9a.js></script>" + " " * 999
SCRIPT = "console.log('hello')\n" * 200
FOR_GOOD = "public, max-age=31536000, immutable"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A page as the build leaves it."""
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text(HTML)
    (page / "assets" / "index-B7x2kQ9a.js").write_text(SCRIPT)
    (page / "assets" / "index-B7x2kQ9a.js.br").write_bytes(b"as brotli")
    (page / "assets" / "index-B7x2kQ9a.js.map").write_text("{}")
    (page / "assets" / "logo.svg").write_text("<svg/>")
    return page


class Browser:
    """Requests files, and returns them as they came over the wire."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent.setdefault("accept-encoding", "identity")
        async with self.session.request(method, self.url + path, headers=sent) as reply:
            received = {name.lower(): value for name, value in reply.headers.items()}
            return reply.status, received, await reply.read()


@pytest.fixture
async def browser(folder: Path, tmp_path: Path) -> AsyncIterator[Browser]:
    settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path, provisioning_key=KEY)
    async with (
        serving(settings, SystemClock(), page_folder=folder) as service,
        aiohttp.ClientSession(auto_decompress=False) as session,
    ):
        yield Browser(service.url, session)


async def test_the_page_is_asked_for_each_time_and_sent_when_it_changed(browser: Browser) -> None:
    status, headers, data = await browser.get("/")
    assert (status, data.decode()) == (200, HTML)
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    again, told, nothing = await browser.get("/", if_none_match=headers["etag"])
    assert (again, nothing, told["etag"]) == (304, b"", headers["etag"])
    assert (await browser.get("/", if_none_match='"another"'))[0] == 200


async def test_a_file_with_a_hash_in_its_name_is_kept_for_good(browser: Browser) -> None:
    """Its content can't change; another file's can."""
    _, headers, data = await browser.get("/assets/index-B7x2kQ9a.js")
    assert (headers["cache-control"], data.decode()) == (FOR_GOOD, SCRIPT)
    assert headers["content-type"] == "text/javascript; charset=utf-8"
    _, headers, _ = await browser.get("/assets/logo.svg")
    assert (headers["cache-control"], headers["content-type"]) == ("no-cache", "image/svg+xml")


async def test_whoever_takes_it_compressed_gets_it_so(browser: Browser) -> None:
    """Each form has its own ETag, and caches know what it depends on."""
    plain = {"br": b"as brotli", "gzip": gzip.compress(SCRIPT.encode(), mtime=0), None: b""}
    for accepted, coding in {
        "gzip, deflate, br": "br",
        "br;q=0, gzip": "gzip",
        "gzip;q=0.5": "gzip",
        "*": "br",
        "*;q=0": None,
        "deflate": None,
        "gzip;q=0, br; q = 0.000": None,
        "": None,
    }.items():
        _, headers, data = await browser.get("/assets/index-B7x2kQ9a.js", accept_encoding=accepted)
        assert headers.get("content-encoding") == coding, accepted
        assert headers["vary"] == "Accept-Encoding"
        assert data == (plain[coding] or SCRIPT.encode())
        assert headers["etag"].endswith(f'-{coding}"') == (coding is not None)
        assert int(headers["content-length"]) == len(data)


async def test_nothing_but_its_own_files_may_run_in_it(browser: Browser) -> None:
    """No inline script or style, no other host, no frame around it."""
    for path in ("/", "/assets/index-B7x2kQ9a.js"):
        _, headers, _ = await browser.get(path)
        parts = [part.split() for part in headers["content-security-policy"].split(";")]
        policy = {name: set(rest) for name, *rest in parts}
        own = {"script-src", "style-src", "connect-src", "font-src", "manifest-src"}
        assert all(policy.pop(name) == {"'self'"} for name in own)
        assert policy.pop("img-src") == {"'self'", "data:"}
        assert policy.keys() == {"default-src", "base-uri", "form-action", "frame-ancestors"}
        assert all(rest == {"'none'"} for rest in policy.values())
        assert headers["x-content-type-options"] == "nosniff"


async def test_a_head_has_no_body(browser: Browser) -> None:
    for path in ("/", "/assets/index-B7x2kQ9a.js"):
        _, wanted, _ = await browser.get(path)
        status, headers, data = await browser.get(path, "HEAD")
        assert (status, data) == (200, b"")
        changing = {"date", "x-request-id"}
        assert {k: v for k, v in headers.items() if k not in changing} == {
            k: v for k, v in wanted.items() if k not in changing
        }


async def test_nothing_else_is_served(browser: Browser) -> None:
    """Names come from the folder at the start: no path of a request is opened."""
    script = "/assets/index-B7x2kQ9a.js"
    climbing = (f"/assets/{up}/index.html" for up in ("..", "%2e%2e"))
    for path in (
        *("/assets/none.js", f"{script}.map", f"{script}.br", "/assets/", "/index.html"),
        *(*climbing, "/assets/..%2findex.html", "/page/index.html"),
    ):
        async with browser.session.get(URL(browser.url + path, encoded=True)) as reply:
            assert reply.status == 404, path
            assert (await reply.json(content_type=None))["code"] == "NOT_FOUND"


async def test_what_is_built_later_is_served_after_the_next_start(
    browser: Browser, folder: Path
) -> None:
    """Files are read once, so a build under a running service is never half visible."""
    (folder / "index.html").write_text("new")
    assert (await browser.get("/"))[2].decode() == HTML
    assert load_page(folder).index.data == b"new"  # type: ignore[union-attr]


async def test_a_page_that_was_not_built_says_so(tmp_path: Path) -> None:
    settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path, provisioning_key=KEY)
    async with serving(settings, SystemClock(), page_folder=tmp_path / "none") as service:
        async with service.session.get(service.url + "/") as reply:
            text = await reply.text()
            assert (reply.status, reply.content_type) == (200, "text/html")
            assert reply.headers["cache-control"] == "no-store"
        assert "was not built" in text
        assert "make dashboard" in text
        assert re.findall(r'href="([^"]+)"', text) == ["/docs"]
        assert "style" not in text


async def test_a_gateway_alone_has_no_page(folder: Path, tmp_path: Path) -> None:
    settings = Settings(
        SqliteLocation(MEMORY), data_dir=tmp_path, provisioning_key=KEY, serves_api=False
    )
    async with serving(settings, SystemClock(), page_folder=folder) as service:
        for path in ("/", "/assets/index-B7x2kQ9a.js"):
            assert (await service.call("GET", path)).status == 404


@pytest.mark.parametrize("bound", ["FILES_MAX", "BYTES_MAX"])
def test_what_is_too_large_to_be_a_page_is_not_served(
    folder: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are in memory, so their size is bounded."""
    assert load_page(folder).index is not None
    monkeypatch.setattr(dashboard, bound, 2)
    assert load_page(folder).index is None
