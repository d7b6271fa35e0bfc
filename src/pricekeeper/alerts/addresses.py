"""Decides where alerts may be sent: only to public addresses, unless the deployment allows others.

Tenants choose addresses and the service calls them. So an address must be https and public in any
spelling: no loopback, private, link-local or metadata address outside of allowed networks. Plain
http is for loopback only. Names are checked at each request, when they are resolved. Redirects are
not followed.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from pricekeeper.errors import InvalidValueError
from pricekeeper.wire.bounds import URL_LENGTH_MAX

PORTS: Final = {"http": 80, "https": 443, "smtp": 587, "smtps": 465}
_LOCALHOST: Final = "localhost"
_NAMES_OF_LOOPBACK: Final = frozenset(
    {
        _LOCALHOST,
        "localhost.localdomain",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    }
)
"""Names in hosts files; names under ``.localhost`` are loopback too (RFC 6761)."""
Network: TypeAlias = IPv4Network | IPv6Network
_UNICAST: Final = (ip_network("0.0.0.0/0"), ip_network("2000::/3"))
"""Public, except `_SPECIAL`."""
_SPECIAL: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32",
            "169.254.0.0/16",
            "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24",
            "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15",
            "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
            "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
        ),
    )
)  # fmt: skip
"""IANA's special-purpose blocks, multicast, and Azure's public address of a virtual machine's host.
Python's own lists differ by version."""
_STANDS_FOR_IPV4: Final = (ip_network("::ffff:0:0/96"), ip_network("64:ff9b::/96"))
"""Mapped addresses and NAT64: a connection goes to the IPv4 address in the last four bytes."""
_ISATAP: Final = (0xFCFF_FFFF, 0x0000_5EFE)
"""Mask and value of the four bytes before the IPv4 address of an RFC 5214 tunnel."""
_Address: TypeAlias = IPv4Address | IPv6Address


class Guard:
    """Checks addresses."""

    def __init__(
        self, allowed: Sequence[Network] = (), topics: Collection[str] = frozenset()
    ) -> None:
        """``allowed``: callable networks that are not public. ``topics``: ARNs of SNS topics."""
        self._allowed = tuple(allowed)
        self.topics = frozenset(topics)

    def check_url(self, url: str) -> SplitResult:
        parts = self._check_host(url)
        is_plain = parts.scheme == "http" and self.allows_plain(parts.hostname or "")
        if parts.scheme != "https" and not is_plain:
            raise InvalidValueError("url", "must begin with https://")
        return parts

    def check_mail_server(self, url: str) -> SplitResult:
        parts = self._check_host(url)
        has_more = parts.path not in ("", "/") or parts.query or parts.fragment
        if parts.scheme not in ("smtp", "smtps") or has_more:
            raise InvalidValueError("url", "must be smtps://HOST, or smtp://HOST:587 for STARTTLS")
        return parts

    def allows_plain(self, host: str) -> bool:
        """Whether the host is an allowed loopback address, which needs no TLS."""
        literal = _literal(host)
        is_loopback = host == _LOCALHOST or (literal is not None and _reached(literal).is_loopback)
        return is_loopback and self._allows_loopback

    def _check_host(self, url: str) -> SplitResult:
        parts = _split(url)
        host = parts.hostname or ""
        literal = _literal(host)
        if literal is None and host.rstrip(".").rpartition(".")[2][:1].isdigit():
            raise InvalidValueError("url", "must have a host name or an IP address")
        is_inside = literal is not None and not self.permits(literal)
        if is_inside or (_is_loopback_name(host) and not self._allows_loopback):
            raise InvalidValueError(
                "url", "must be a public address, or in a network of PRICEKEEPER_ALERT_NETWORKS"
            )
        return parts

    def permits(self, address: _Address) -> bool:
        reached = _reached(address)
        is_allowed = any(address in one or reached in one for one in self._allowed)
        return is_allowed or _is_public(reached)

    @property
    def _allows_loopback(self) -> bool:
        return any(network.is_loopback for network in self._allowed)


class Server(NamedTuple):
    """The server that a URL names."""

    scheme: str
    host: str
    port: int


def server_of(url: str) -> Server:
    """The server of a checked URL, in one spelling."""
    parts = urlsplit(url)
    return Server(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme])


class AddressNotAllowedError(OSError):
    """None of a name's addresses may be called."""


class GuardedResolver(AbstractResolver):
    """Resolves names to addresses that may be called."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises `AddressNotAllowedError` if no address is allowed."""
        found = await self._resolver.resolve(host, port, family)
        allowed = [one for one in found if self._guard.permits(ip_address(one["host"]))]
        if not allowed:
            raise AddressNotAllowedError("no address of that name may be called")
        return allowed

    async def close(self) -> None: ...


def _split(url: str) -> SplitResult:
    if not 1 <= len(url) <= URL_LENGTH_MAX:
        raise InvalidValueError("url", f"must be a URL of at most {URL_LENGTH_MAX} characters")
    if not url.isascii():
        message = "must be ASCII: write the host as xn--..., and other characters as %.."
        raise InvalidValueError("url", message)
    if not url.isprintable():
        raise InvalidValueError("url", "must not contain line breaks or control characters")
    if " " in url or "\\" in url:
        raise InvalidValueError("url", "must not contain spaces or backslashes")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise InvalidValueError("url", "must be a URL such as https://hooks.example.com/alerts")
    if parts.username is not None or parts.password is not None:
        raise InvalidValueError("url", "must not contain a user or a password")
    return parts


def _is_loopback_name(host: str) -> bool:
    name = host.lower().removesuffix(".")
    return name in _NAMES_OF_LOOPBACK or name.endswith(f".{_LOCALHOST}")


def _literal(host: str) -> _Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _reached(address: _Address) -> _Address:
    """The address that a connection goes to: an IPv4 address for IPv6 forms of it."""
    stands_for = any(address in network for network in _STANDS_FOR_IPV4)
    return _last_four_bytes(address) if stands_for else address


def _is_public(address: _Address) -> bool:
    is_unicast = any(address in network for network in _UNICAST)
    if not is_unicast or any(address in network for network in _SPECIAL):
        return False
    mask, value = _ISATAP
    is_tunnel = address.version == 6 and int(address) >> 32 & mask == value  # noqa: PLR2004
    return not is_tunnel or _is_public(_last_four_bytes(address))


def _last_four_bytes(address: _Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFF_FFFF)
