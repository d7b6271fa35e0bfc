"""Where the service listens. Callers behind an unnamed proxy share its rate limits."""

from __future__ import annotations

import os
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

import msgspec

from pricekeeper.settings import NO_PROXIES, TRUSTED_PROXIES

NOTE: Final = "listening.json"
FIX: Final = (
    f"set {TRUSTED_PROXIES} to the proxy's address or network, such as 10.0.0.0/16, "
    f"or to {NO_PROXIES} if there is no proxy"
)
_PRIVATE: Final = 0o600


class Listening(msgspec.Struct, frozen=True):
    """The address of the last start."""

    host: str
    port: int
    trusted_proxies: str | None

    @property
    def is_exposed(self) -> bool:
        """Other machines can reach it, and no setting names a proxy."""
        return not is_loopback(self.host) and self.trusted_proxies is None

    @property
    def warning(self) -> str:
        return (
            f"the service listens on {self.host or 'every address'} and {TRUSTED_PROXIES} is not "
            "set: behind a load balancer or proxy all callers have its address, and share its "
            "rate limits"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def write_note(data_dir: Path, listening: Listening) -> None:
    """Write the note, if the folder allows it."""
    fresh = data_dir / f"{NOTE}.new"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(msgspec.json.encode(listening) + b"\n")
        fresh.replace(data_dir / NOTE)
    except OSError:
        return


def read_note(data_dir: Path) -> Listening | None:
    """The last start's note; ``None`` if unreadable."""
    try:
        return msgspec.json.decode((data_dir / NOTE).read_bytes(), type=Listening)
    except (OSError, msgspec.DecodeError):
        return None
