"""The dashboard: ``GET /`` and its files, read once at the start.

The page's location is behind the ``#``, so it can't collide with a path of the API. Its policy lets
it load from this service only.

The build fills the folder ``page`` beside this module, perhaps with compressed forms (``.gz``,
``.br``); missing ``.gz`` forms are made here. Bounds: `FILES_MAX` files with `BYTES_MAX` bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from pricekeeper.errors import NotFoundError
from pricekeeper.http.incoming import weights_of
from pricekeeper.http.operation import SECURITY, Answer, Call
from pricekeeper.usecases.provisioning import matches

PAGE: Final = "page"
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'"
)
_SECURITY: Final = tuple({**dict(SECURITY), b"content-security-policy": POLICY}.items())
_FOR_GOOD: Final = b"public, max-age=31536000, immutable"
_ASK_EACH_TIME: Final = b"no-cache"
_NOT_BUILT: Final = b"""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Bedrock Price Keeper</title>
<h1>The dashboard was not built</h1>
<p>The service is running. Only its page is missing: it is built with npm, from the folder
<code>dashboard</code> of the repository.</p>
<pre>make dashboard</pre>
<p>Then start the service again. The API, readable: <a href="/docs">/docs</a></p>
</html>
"""


async def get_page(call: Call) -> Answer:
    """The dashboard."""
    page: DashboardPage = call.request.state[PAGE]
    if page.index is None:
        headers = ((b"cache-control", b"no-store"),)
        return Answer(200, _NOT_BUILT, headers, b"text/html; charset=utf-8", _SECURITY)
    return _file(call, page.index)


async def get_asset(call: Call) -> Answer:
    """A file of the dashboard."""
    page: DashboardPage = call.request.state[PAGE]
    found = page.assets.get(call.path["file"])
    if found is None:
        raise NotFoundError("file")
    return _file(call, found)


def _file(call: Call, file: PageFile) -> Answer:
    """In the best coding that the caller accepts; 304 if the caller has it."""
    coding, data = file.choose(call.request.header(b"accept-encoding"))
    etag = file.etag(coding)
    headers = [
        (b"etag", etag),
        (b"cache-control", _FOR_GOOD if file.is_hashed else _ASK_EACH_TIME),
        (b"vary", b"Accept-Encoding"),
    ]
    if coding is not None:
        headers.append((b"content-encoding", coding.encode()))
    if matches(call.request.header(b"if-none-match"), etag.decode()):
        return Answer(304, None, tuple(headers), security=_SECURITY)
    return Answer(200, data, tuple(headers), file.media_type, _SECURITY)


FOLDER: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"
ASSETS: Final = "assets"
FILES_MAX: Final = 256
BYTES_MAX: Final = 16 * 1024 * 1024

MEDIA_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".ico": b"image/x-icon",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".webmanifest": b"application/manifest+json",
    ".woff2": b"font/woff2",
}
"""Files with other suffixes, such as source maps, are not served."""
_CODED: Final = {".br": "br", ".gz": "gzip"}
_COMPRESSED_ALREADY: Final = frozenset({".ico", ".png", ".woff2"})
_PREFERENCE: Final = ("br", "gzip")
_HASHED: Final = re.compile(r".+[.-][A-Za-z0-9_-]{8,}\.[a-z0-9]+")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, plain and compressed."""

    name: str
    media_type: bytes
    data: bytes
    coded: Mapping[str, bytes] = field(default_factory=dict)
    """By content coding: ``gzip``, ``br``."""
    digest: str = ""

    @property
    def is_hashed(self) -> bool:
        """Its name changes with its content, so it may be cached for good."""
        return _HASHED.fullmatch(self.name) is not None

    def choose(self, accepted: str | None) -> tuple[str | None, bytes]:
        wanted = weights_of(accepted)
        for coding in _PREFERENCE:
            if coding in self.coded and wanted.get(coding, wanted.get("*", 0)):
                return coding, self.coded[coding]
        return None, self.data

    def etag(self, coding: str | None) -> bytes:
        return f'"{self.digest}-{coding}"'.encode() if coding else f'"{self.digest}"'.encode()


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """The files of the dashboard; empty if it was not built."""

    index: PageFile | None = None
    assets: Mapping[str, PageFile] = field(default_factory=dict)


def is_built(folder: Path = FOLDER) -> bool:
    """Whether the dashboard was built, without reading it."""
    return (folder / INDEX).is_file()


def load_page(folder: Path = FOLDER) -> DashboardPage:
    """Read the built files. If they exceed the bounds, none is served, and that is logged."""
    if not is_built(folder):
        return DashboardPage()
    paths = [folder / INDEX, *sorted(_files_in(folder / ASSETS))]
    size = sum(path.stat().st_size for path in paths)
    if len(paths) > FILES_MAX or size > BYTES_MAX:
        _log.error("page_too_large", folder=str(folder), files=len(paths), size_bytes=size)
        return DashboardPage()
    index, *assets = (_read(path) for path in paths)
    return DashboardPage(index, {one.name: one for one in assets})


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_file() and path.suffix in MEDIA_TYPES:
                yield path


def _read(path: Path) -> PageFile:
    data = path.read_bytes()
    coded = {}
    for suffix, coding in _CODED.items():
        beside = path.with_name(path.name + suffix)
        if beside.is_file():
            coded[coding] = beside.read_bytes()
    if path.suffix not in _COMPRESSED_ALREADY:
        coded.setdefault("gzip", gzip.compress(data, mtime=0))
    smaller = {coding: form for coding, form in coded.items() if len(form) < len(data)}
    digest = hashlib.blake2b(data, digest_size=12).hexdigest()
    return PageFile(path.name, MEDIA_TYPES[path.suffix], data, smaller, digest)
