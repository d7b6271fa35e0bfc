"""``pricekeeper serve``: the service, in one process or several."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import structlog
import uvicorn
from rich.console import Console
from rich.text import Text
from uvicorn.supervisors import Multiprocess

from pricekeeper.bootstrap import (
    STORE_WAIT_MS,
    no_administrator,
    open_services,
    require_administrator,
)
from pricekeeper.cli.demo_org import DEMO_KEY, DEMO_METRICS_TOKEN, prepare_demo
from pricekeeper.cli.listening import FIX, Listening, is_loopback, write_note
from pricekeeper.cli.opening import is_missing_file
from pricekeeper.clock import SystemClock
from pricekeeper.credentials.strength import refuse_public_token, require_strong_key
from pricekeeper.errors import SettingsError
from pricekeeper.http.app import app_from_environment
from pricekeeper.http.dashboard import is_built
from pricekeeper.http.metrics import MULTIPROCESS
from pricekeeper.http.metrics_listener import MetricsListener, OneWorker, SeveralWorkers, Watched
from pricekeeper.http.server import accepting_sockets, server_config
from pricekeeper.http.serving import Shell
from pricekeeper.settings import (
    BEDROCK_REGION,
    BEDROCK_UPSTREAM,
    MEMORY,
    METRICS_PORT,
    METRICS_TOKEN,
    PROVISIONING_KEY,
    STORE,
    Settings,
    SqliteLocation,
    read_settings,
)
from pricekeeper.standin import running as running_standin
from pricekeeper.telemetry.logs import configure_logging

LISTENER_GRACEFUL_SECS: Final = 2
FILES_MAX: Final = 65_536

Application: TypeAlias = Callable[[OneWorker | None], Shell]
"""Made in the process that serves it."""

_log = structlog.get_logger(__name__)


def serve(
    given: Mapping[str, str | None],
    host: str,
    port: int,
    *,
    workers: int,
    demo: bool,
    console: Console,
) -> None:
    """Check settings and store, then serve. ``given`` has the command line's settings."""
    environment = {**os.environ, **{name: text for name, text in given.items() if text is not None}}
    with ExitStack() as opened:
        if demo:
            _default_to_demo(environment, opened)
        settings = read_settings(environment)
        for_demo = demo and is_loopback(host)
        _require_safe(settings, for_demo=for_demo)
        if workers > 1 and settings.store == SqliteLocation(MEMORY):
            raise SettingsError(
                STORE,
                "names a database in memory, which has one process; use a file, or --workers 1",
            )
        listening = opened.enter_context(_bind(host, port, "--host, --port"))
        watching, at = None, settings.metrics_address
        if at is not None:
            watching = opened.enter_context(_bind(at.host, at.port, METRICS_PORT))
        url = _url_of(host, listening)
        asyncio.run(_prepare(settings, url, demo=demo, console=console))
        _tell_exposure(settings, host, listening.getsockname()[1], console)
        count = f" ({workers} worker{'s'[: workers > 1]}); stop with ctrl-c"
        serving = Text.assemble("serving on ", (url, "bold"), count)
        for line in (serving, *_places(settings, url, watching)):
            console.print(line, soft_wrap=True)
        # Workers are processes that read their settings from the environment.
        os.environ.update(environment)
        application = partial(app_from_environment, public_allowed=for_demo)
        _run(application, settings, listening, watching, workers=workers)


def _require_safe(settings: Settings, *, for_demo: bool) -> None:
    """Refuse guessable keys and tokens, before any file is created."""
    at = settings.metrics_address
    require_strong_key(settings.provisioning_key, public_allowed=for_demo)
    if settings.provisioning_key is None and is_missing_file(settings):
        raise no_administrator()
    metrics_for_demo = for_demo and (at is None or is_loopback(at.host))
    refuse_public_token(settings.metrics_token, public_allowed=metrics_for_demo)


def _default_to_demo(environment: dict[str, str], opened: ExitStack) -> None:
    """The demo's public key and metrics token, and a Bedrock stand-in."""
    environment.setdefault(PROVISIONING_KEY, DEMO_KEY)
    if environment[PROVISIONING_KEY] == DEMO_KEY:
        environment.setdefault(METRICS_TOKEN, DEMO_METRICS_TOKEN)
    if not (environment.get(BEDROCK_UPSTREAM) or environment.get(BEDROCK_REGION)):
        environment[BEDROCK_UPSTREAM] = opened.enter_context(running_standin()).url


def _bind(host: str, port: int, setting: str) -> socket.socket:
    """Bind the address, before anything is created or printed."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise SettingsError(
            setting, f"can't serve on {host}, port {port} ({error.strerror}); choose another"
        ) from error
    return made


def _url_of(host: str, listening: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def _places(settings: Settings, url: str, watching: socket.socket | None) -> Iterator[Text]:
    if settings.serves_api and is_built():
        yield Text.assemble("the dashboard: ", (f"{url}/", "bold"))
    elif settings.serves_api:
        yield Text("the dashboard is not built: run 'make dashboard', which needs npm")
    yield Text.assemble("the API's documentation: ", (f"{url}/docs", "bold"))
    if settings.bedrock is not None and settings.serves_gateway:
        where = f"{url}/bedrock"
        yield Text.assemble("the gateway: ", (where, "bold"), f" to {settings.bedrock.url}")
    yield _metrics_place(settings, url, watching)


def _metrics_place(settings: Settings, url: str, watching: socket.socket | None) -> Text:
    at, urls = settings.metrics_address, []
    if watching is not None and at is not None:
        urls.append(f"{_url_of(at.host, watching)}/metrics")
    if settings.metrics_token is not None:
        urls.append(f"{url}/metrics")
    shown = " and ".join(urls) or f"not served; set {METRICS_PORT} or {METRICS_TOKEN}"
    key = f", with ${METRICS_TOKEN} as bearer token" if settings.metrics_token is not None else ""
    if at is not None and settings.metrics_token is None and not is_loopback(at.host):
        key = f", for any host that reaches it; set {METRICS_TOKEN} to require a token"
    return Text(f"metrics: {shown}{key}")


async def _prepare(settings: Settings, url: str, *, demo: bool, console: Console) -> None:
    """Open everything once, so mistakes are reported once."""
    configure_logging("warning", for_good=False)  # a wait for the store is shown
    async with open_services(settings, store_wait_ms=STORE_WAIT_MS) as services:
        await require_administrator(services)
        if demo:
            configure_logging("error", for_good=False)  # not the audit lines of the demo
            await prepare_demo(services, url, console)


def _tell_exposure(settings: Settings, host: str, port: int, console: Console) -> None:
    """Warn if callers' addresses are hidden."""
    listening = Listening(host, port, settings.trusted_proxies)
    write_note(settings.data_dir, listening)
    if listening.is_exposed:
        configure_logging(settings.log_level, for_good=False)
        _log.warning("trusted_proxies_not_set", host=host, told=listening.warning, fix=FIX)
        console.print(f"WARNING: {listening.warning}; {FIX}", style="bold red", soft_wrap=True)


def _raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _run(
    application: Application,
    settings: Settings,
    listening: socket.socket,
    watching: socket.socket | None,
    *,
    workers: int,
) -> None:
    _raise_file_limit()
    sockets, proxies = accepting_sockets(listening), settings.trusted_proxies or ""
    with ExitStack() as closing, suppress(KeyboardInterrupt):  # after an orderly shutdown
        watched: Watched
        if workers > 1:
            folder = closing.enter_context(
                TemporaryDirectory(prefix="pricekeeper-metrics-", ignore_cleanup_errors=True)
            )
            os.environ[MULTIPROCESS] = folder
            listening.set_inheritable(True)
            config = server_config(
                application, factory=True, workers=workers, trusted_proxies=proxies
            )
            supervisor = Multiprocess(config, sockets=sockets)
            watched, run = SeveralWorkers(Path(folder), partial(_pids, supervisor)), supervisor.run
        else:
            watched = worker = OneWorker()
            config = server_config(
                partial(application, worker), factory=True, trusted_proxies=proxies
            )
            run = partial(uvicorn.Server(config).run, sockets=sockets)
        with _serve_metrics(settings, watched, listening, watching):
            run()


def _pids(supervisor: Multiprocess) -> list[int]:
    return [one.pid for one in list(supervisor.processes) if one.pid is not None]


@contextmanager
def _serve_metrics(
    settings: Settings, watched: Watched, listening: socket.socket, watching: socket.socket | None
) -> Iterator[None]:
    if watching is None:
        yield
        return
    host, port = listening.getsockname()[:2]
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - reached by the loopback
    service = (anywhere.get(host, host), port)
    application = MetricsListener(watched, service, settings.metrics_token, SystemClock())
    config = server_config(application, lifespan="off", graceful_secs=LISTENER_GRACEFUL_SECS)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([watching],), name="pricekeeper-metrics")
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
