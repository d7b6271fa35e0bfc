"""``pricekeeper serve``: the service, in one process or several."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

import uvicorn
from rich.console import Console
from uvicorn.supervisors import Multiprocess

from pricekeeper.bootstrap import open_services
from pricekeeper.cli.demo_org import DEMO_KEY, prepare_demo
from pricekeeper.errors import SettingsError
from pricekeeper.http.accepting import accepting_sockets
from pricekeeper.http.metrics import MULTIPROCESS
from pricekeeper.settings import (
    CONFIG,
    MEMORY,
    PROVISIONING_KEY,
    STORE,
    Settings,
    SqliteLocation,
    read_settings,
)
from pricekeeper.telemetry.logs import configure_logging

GRACEFUL_SECS: Final = 30
FILES_MAX: Final = 65_536
_APP: Final = "pricekeeper.http.app:app_from_environment"
_PROTOCOL: Final = "pricekeeper.http.protocol:ProblemProtocol"


def serve(
    *,
    host: str,
    port: int,
    store: str | None,
    config: str | None,
    workers: int,
    demo: bool,
    console: Console,
) -> None:
    """Check everything that can be checked before the first request, then serve until stopped."""
    # Workers are processes of their own and start from the environment, so it carries it all.
    for name, value in ((STORE, store), (CONFIG, config)):
        if value is not None:
            os.environ[name] = value
    if demo:
        os.environ.setdefault(PROVISIONING_KEY, DEMO_KEY)
    settings = read_settings(os.environ)
    if settings.provisioning_key is None:
        raise SettingsError(
            PROVISIONING_KEY, "is required: choose 16 characters or more, or try serve --demo"
        )
    if workers > 1 and settings.store == SqliteLocation(MEMORY):
        raise SettingsError(
            STORE, "a database in memory has one process; use a file, or --workers 1"
        )
    with _bound(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{listening.getsockname()[1]}"
        asyncio.run(_prepare(settings, url, demo=demo, console=console))
        console.print(
            f"serving on [bold]{url}[/bold] ({workers} worker{'s'[: workers > 1]}); ctrl-c ends it"
        )
        console.print(f"the API, readable: [bold]{url}/docs[/bold]", soft_wrap=True)
        _run(listening, workers, settings.trusted_proxies)


def _bound(host: str, port: int) -> socket.socket:
    """The address to serve on, ours from now on: before anything is made or printed."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise SettingsError(
            "--host, --port",
            f"can't serve on {host}, port {port} ({error.strerror}); choose another",
        ) from error
    made.set_inheritable(True)  # workers are processes of their own
    return made


async def _prepare(settings: Settings, url: str, *, demo: bool, console: Console) -> None:
    """Open everything once, so that a mistake is told here and not by every worker."""
    configure_logging("error", for_good=False)  # a person reads this; the log begins with serving
    async with open_services(settings) as services:
        if demo:
            await prepare_demo(services, url, console)


def server_config(
    app: Any,
    *,
    workers: int = 1,
    factory: bool = False,
    trusted_proxies: str = "",
) -> uvicorn.Config:
    """How the application is served, on whatever socket."""
    return uvicorn.Config(
        app,
        factory=factory,
        workers=workers,
        loop="uvloop",
        http=_PROTOCOL,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies or None,
        timeout_graceful_shutdown=GRACEFUL_SECS,
    )


def _raise_file_limit() -> None:
    """As many connections as the machine allows, not as few as a shell does."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _run(listening: socket.socket, workers: int, trusted_proxies: str) -> None:
    metrics_folder = tempfile.mkdtemp(prefix="pricekeeper-metrics-") if workers > 1 else None
    if metrics_folder is not None:
        os.environ[MULTIPROCESS] = metrics_folder
    _raise_file_limit()
    config = server_config(
        _APP,
        factory=True,
        workers=workers,
        trusted_proxies=trusted_proxies,
    )
    try:
        if workers > 1:
            Multiprocess(config, sockets=accepting_sockets(listening)).run()
        else:
            uvicorn.Server(config).run(sockets=accepting_sockets(listening))
    except KeyboardInterrupt:
        return  # the server has shut down properly; this is how it says so
    finally:
        if metrics_folder is not None:
            shutil.rmtree(Path(metrics_folder), ignore_errors=True)
