"""The dashboard: ``GET /`` and what it loads.

The page keeps its place behind the ``#`` of its address (``/#/orgs/...``), which no server sees, so
no path of the API can ever be one of the page's. The page may load and ask this service alone;
nothing inside it is run but its own files.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.errors import NotFoundError
from pricekeeper.http.caching import matches
from pricekeeper.http.operation import SECURITY, Access, Answer, Call, Operation
from pricekeeper.http.page_files import DashboardPage, PageFile

PAGE: Final = "page"
"""Under this name the lifespan's state has it."""
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
    """The dashboard, for people."""
    page: DashboardPage = call.request.state[PAGE]
    if page.index is None:
        headers = ((b"cache-control", b"no-store"),)
        return Answer(200, _NOT_BUILT, headers, b"text/html; charset=utf-8", _SECURITY)
    return _file(call, page.index)


async def get_asset(call: Call) -> Answer:
    """A file that the dashboard loads."""
    page: DashboardPage = call.request.state[PAGE]
    found = page.assets.get(call.path["file"])
    if found is None:
        raise NotFoundError("file")
    return _file(call, found)


def _file(call: Call, file: PageFile) -> Answer:
    """The file in the form that the caller takes, or 304 if the caller has it."""
    coding, data = file.choose(call.request.header(b"accept-encoding"))
    etag = file.etag(coding)
    headers = [
        (b"etag", etag),
        (b"cache-control", _FOR_GOOD if file.is_hashed else _ASK_EACH_TIME),
        (b"vary", b"Accept-Encoding"),
    ]
    if coding is not None:
        headers.append((b"content-encoding", coding.encode()))
    if matches(call.request.header(b"if-none-match"), etag):
        return Answer(304, None, tuple(headers), security=_SECURITY)
    return Answer(200, data, tuple(headers), file.media_type, _SECURITY)


_row: Final = partial(Operation, access=Access.PUBLIC, tag="operations", bounds_itself=True)
OPERATIONS: Final = (
    _row("GET", "/", "getPage", get_page, {200: "text/html", 304: None}),
    _row("GET", "/assets/{file}", "getAsset", get_asset,
         {200: "application/octet-stream", 304: None}, problems=(404,)),
)  # fmt: skip
