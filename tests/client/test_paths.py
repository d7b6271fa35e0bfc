"""An id from a caller never turns a request into another one, behind any proxy."""

import ast
import asyncio
import contextlib
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

import pricekeeper
from client.scripted import HastyClock, Reply, ScriptedService, TokenService
from pricekeeper.client import Admin, Api
from pricekeeper.client.transport import path_of
from pricekeeper.errors import InvalidValueError

ORG = "11111111-1111-4111-8111-111111111111"
RECORD = "22222222-2222-4222-8222-222222222222"
SOURCE = Path(pricekeeper.__file__).parent
PRINTED = {SOURCE / "cli" / "demo_org.py"}
"""What writes an address for AWS SDKs on the screen, and sends nothing."""
VOIDED = {
    "request_id": RECORD,
    "status": "voided",
    "correction_id": "",
    "voided_at": "",
    "app_id": None,
    "model_label": "premium",
    "cost_usd_micros": 1,
}
HOSTILE = (
    "../credentials/revoke?",
    "..%2Fcredentials%2Frevoke",
    "%2e%2e/credentials/revoke",
    "..\\credentials",
    "..",
    ".",
    "",
    "a/b",
    "a?b",
    "a#b",
    "a%b",
    "a;b",
    "a b",
    "a\n",
    "\u202e",
    "a" * 129,
)


@asynccontextmanager
async def normalising_proxy(port: int) -> AsyncIterator[str]:
    """Passes requests on as nginx does with a path behind ``proxy_pass``: decoded and resolved."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        target, _, more = rest.partition(b" ")
        path, mark, query = target.decode().partition("?")
        resolved = quote(posixpath.normpath(unquote(path)), safe="/?")
        behind, to_behind = await asyncio.open_connection("127.0.0.1", port)
        to_behind.write(method + f" {resolved}{mark}{query} ".encode() + more)

        async def pass_body() -> None:
            while part := await reader.read(65_536):
                to_behind.write(part)

        passing = asyncio.ensure_future(pass_body())
        writer.write(await behind.read())
        passing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await passing
        to_behind.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_no_id_turns_a_request_into_another(hostile: str) -> None:
    """Behind a normalising proxy this would revoke the organisation's credentials."""
    async with (
        ScriptedService(*[Reply(body=VOIDED)] * 9) as service,
        normalising_proxy(int(service.url.rpartition(":")[2])) as url,
        Admin(url, "key") as admin,
    ):
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: admin.void_usage(ORG, hostile, reason="x"),
            lambda: admin.void_authorization(ORG, hostile, reason="x"),
            lambda: admin.end_session(ORG, session_id=hostile, reason="x"),
            lambda: admin.rotate_admin_key(hostile, grace_period_hours=0),
            lambda: admin.delete_admin_key(hostile),
            lambda: admin.put_alert_channel(ORG, hostile, {}),
            lambda: admin.remove_alert_channel(None, hostile),
        ]
        for call in calls:
            with pytest.raises(InvalidValueError):
                await call()
        await admin.void_usage(ORG, RECORD, reason="x")

    assert service.lines == [f"POST /api/v1/orgs/{ORG}/usage/{RECORD}/void"]


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_no_id_turns_an_apps_request_into_another(hostile: str) -> None:
    async with (
        TokenService() as service,
        Api(service.url, f"org-{ORG}-app-chat", "secret", clock=HastyClock()) as api,
    ):
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: api.release(hostile),
            lambda: api.adjust(hostile, {}),
            lambda: api.capture(hostile, 1, 1),
            lambda: api.void(hostile),
            lambda: api.extend(hostile, 60),
            lambda: api.authorization(hostile),
            lambda: api.end_session(hostile),
        ]
        for call in calls:
            with pytest.raises(InvalidValueError):
                await call()
        assert service.lines == []


def test_ids_go_as_they_are() -> None:
    """The service's ids need no escape, so no proxy changes them."""
    assert path_of("a-b", "v..2", "001-x_y~z") == "/a-b/v..2/001-x_y~z"


def paths_made_in(source: str) -> list[str]:
    """What makes a path there: a text that is one, `RequestPath` as a value, or another name of it.

    `msgspec.structs.replace` takes any value, so a path is not replaced either.
    """
    tree = ast.parse(source)
    annotations = [
        getattr(node, name, None)
        for node in ast.walk(tree)
        for name in ("annotation", "returns")
        if isinstance(getattr(node, name, None), ast.expr)
    ]
    annotated = {inner for one in annotations if one is not None for inner in ast.walk(one)}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                is_made = text.startswith(("/api", "/auth")) or text == "RequestPath"
            case ast.Name(id="RequestPath", ctx=ast.Load()) | ast.Attribute(attr="RequestPath"):
                is_made = node not in annotated
            case ast.alias(name="RequestPath"):
                is_made = node.asname is not None
            case ast.Call():
                is_replacing = ast.unparse(node.func).endswith("replace")
                is_made = is_replacing and any(one.arg == "path" for one in node.keywords)
            case _:
                is_made = False
        if is_made:
            found.append(ast.unparse(node))
    return found


def test_paths_are_made_in_one_place() -> None:
    found = [
        f"{file.relative_to(SOURCE)}: {made}"
        for folder in ("client", "cli")
        for file in sorted((SOURCE / folder).rglob("*.py"))
        if file not in PRINTED
        for made in paths_made_in(file.read_text(encoding="utf-8"))
    ]
    transport = "client/transport.py: "
    assert found == [f"{transport}'RequestPath'", f"{transport}RequestPath"]


@pytest.mark.parametrize(
    "source",
    [
        "path = f'/api/v1/orgs/{org_id}'",
        "path = RequestPath('/x')",
        "path = transport.RequestPath('/x')",
        "from pricekeeper.client.transport import RequestPath as Path",
        "Path = RequestPath",
        "path = cast(RequestPath, '/x')",
        "path = cast('RequestPath', '/x')",
        "request = msgspec.structs.replace(request, path='/x')",
    ],
)
def test_no_other_way_makes_a_path(source: str) -> None:
    """A cast or a replaced field, which mypy does not catch."""
    assert paths_made_in(source)
    assert not paths_made_in("def send(path: RequestPath) -> RequestPath: ...")
