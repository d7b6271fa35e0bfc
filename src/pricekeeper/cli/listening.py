"""Where the service listens, and whether it can tell its callers apart there.

Behind a proxy that nobody has named, every caller has the proxy's address, and shares with all
others what is limited by address. Only ``serve`` knows where it listens, so it leaves a note in
the data folder, by which ``doctor`` can say the same later.
"""

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
    """How the service was last started."""

    host: str
    port: int
    trusted_proxies: str | None

    @property
    def is_exposed(self) -> bool:
        """Whether it can be reached from elsewhere, and nobody has said by way of what."""
        return not is_loopback(self.host) and self.trusted_proxies is None

    @property
    def warning(self) -> str:
        """What is wrong with that."""
        return (
            f"the service listens on {self.host or 'every address'} and {TRUSTED_PROXIES} is not "
            "set: behind a load balancer or proxy all callers have its address, and share what "
            "is limited by address"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def write_note(data_dir: Path, listening: Listening) -> None:
    """Leave the note. A folder that can't be written to has none: then ``doctor`` does not know."""
    fresh = data_dir / f"{NOTE}.new"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(msgspec.json.encode(listening) + b"\n")
        fresh.replace(data_dir / NOTE)
    except OSError:
        return


def read_note(data_dir: Path) -> Listening | None:
    """The note of the last start, if there is one that can be read."""
    try:
        return msgspec.json.decode((data_dir / NOTE).read_bytes(), type=Listening)
    except (OSError, msgspec.DecodeError):
        return None
