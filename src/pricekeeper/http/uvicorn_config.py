"""How uvicorn serves the application: by whoever runs it, on whatever socket."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any, Final, Literal

import uvicorn

GRACEFUL_SECS: Final = 30
SILENT_SECS_MAX: Final = 30
"""How long a worker may be silent before it is killed and replaced. uvicorn's own 5 s end workers
that are only slow: on a machine that is busy they never come up."""
_MAPPED_BITS: Final = 96
_PROTOCOL: Final = "pricekeeper.http.protocol:ProblemProtocol"


def server_config(
    app: Any,
    *,
    workers: int = 1,
    factory: bool = False,
    lifespan: Literal["on", "off"] = "on",
    trusted_proxies: str = "",
    graceful_secs: int = GRACEFUL_SECS,
) -> uvicorn.Config:
    """How the application is served, on whatever socket."""
    return uvicorn.Config(
        app,
        factory=factory,
        workers=workers,
        loop="uvloop",
        http=_PROTOCOL,
        ws="none",
        lifespan=lifespan,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=_believed(trusted_proxies) or None,
        timeout_graceful_shutdown=graceful_secs,
        timeout_worker_healthcheck=SILENT_SECS_MAX,
    )


def _believed(trusted_proxies: str) -> str:
    """The same proxies; those of IPv4 also in their IPv6-mapped form."""
    if trusted_proxies == "*":
        return trusted_proxies
    networks = [ip_network(one) for one in trusted_proxies.split(",") if one]
    mapped = [
        f"::ffff:{network.network_address}/{_MAPPED_BITS + network.prefixlen}"
        for network in networks
        if network.version == 4  # noqa: PLR2004 - it reads better as the number everybody knows
    ]
    return ",".join([*map(str, networks), *mapped])
