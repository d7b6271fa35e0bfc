"""The service calls no address inside its own network, in any spelling."""

import asyncio
import socket
import ssl
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import aiohttp
import pytest

from alerts.conftest import LOOPBACK
from alerts.endpoint import Endpoint
from certificates import make_certificate
from pricekeeper.alerts.addresses import AddressNotAllowedError, Guard, GuardedResolver
from pricekeeper.alerts.webhook import HttpSender, one_attempt
from pricekeeper.errors import DeliveryError, InvalidValueError

PUBLIC = Guard()

SPECIAL = """
    0.0.0.0/8 0.0.0.0/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12
    192.0.0.0/24 192.0.0.0/29 192.0.0.8/32 192.0.0.9/32 192.0.0.10/32 192.0.0.170/32
    192.0.0.171/32 192.0.0.192/32 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24
    192.88.99.2/32 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
    224.0.0.0/4 240.0.0.0/4 255.255.255.255/32 168.63.129.16/32
    ::1/128 ::/128 ::/96 ::127.0.0.1/128 ::8.8.8.8/128 64:ff9b:1::/48 64:ff9b:1::808:808/128
    100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128 2001:1::2/128 2001:1::3/128
    2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28 2001:30::/28 2001:db8::/32
    2002::/16 2002:808:808::/48 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10
    ff00::/8 4000::/3 8000::/1 200::/7
""".split()  # noqa: SIM905 - 70 lines fewer
"""IANA's registries of special-purpose addresses, what is no unicast or reserved, and the host of
Azure's virtual machines."""
STANDS_FOR = ("::ffff:{}", "64:ff9b::{}", "2a00::5efe:{}", "2a00::200:5efe:{}", "2a00::300:5efe:{}")
"""Mapped, NAT64 and ISATAP: what an IPv6 address in front of an IPv4 address makes of it."""


def url_of(address: IPv4Address | IPv6Address) -> str:
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"https://{host}:8443/hook?token=1"


@pytest.mark.parametrize("block", SPECIAL)
def test_no_special_block_is_public(block: str) -> None:
    """Neither its first nor its last address, in any guise, alone or in a URL."""
    network = ip_network(block)
    for address in (network[0], network[-1]):
        guises = [ip_address(one.format(address)) for one in STANDS_FOR if network.version == 4]
        for one in (address, *guises):
            assert not PUBLIC.permits(one)
            with pytest.raises(InvalidValueError, match="public address"):
                PUBLIC.check_url(url_of(one))


@pytest.mark.parametrize("form", STANDS_FOR)
def test_an_address_that_stands_for_a_public_one_is_public(form: str) -> None:
    """In a network of IPv6 alone every name is at such an address."""
    assert PUBLIC.permits(ip_address(form.format("8.8.8.8")))
    if "5efe" not in form:
        assert LOOPBACK.permits(ip_address(form.format("127.0.0.1")))


@pytest.mark.parametrize("block", ["::/0", "0.0.0.0/0"])
def test_what_is_beside_a_special_block_is_public(block: str) -> None:
    """So that no block is larger here than in the registry: the neighbours on both sides."""
    found = [ip_network(one) for one in SPECIAL]
    special = [one for one in found if one.version == ip_network(block).version]
    beside = {network[0] - 1 for network in special if int(network[0])}
    beside |= {network[-1] + 1 for network in special if network[-1] != ip_network(block)[-1]}
    for address in beside:
        is_unicast = address.version == 4 or address in ip_network("2000::/3")
        is_free = not any(address in network for network in special)
        assert PUBLIC.permits(address) == (is_unicast and is_free), address


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "93.184.216.34"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert PUBLIC.permits(ip_address(address))
    PUBLIC.check_url(url_of(ip_address(address)))


NO_WEBHOOKS = """
    hooks.example.com http://hooks.example.com/ http://8.8.8.8/ http://localhost/ http://127.0.0.1/
    ftp://hooks.example.com/ file:///etc/passwd gopher://hooks.example.com/ https:// https:///path
    https://user:pass@hooks.example.com/ https://user@hooks.example.com/ https://hooks.example.com:0/
    https://hooks.example.com:99999/ https://hooks.example.com:no/ https://[::1/
    https://hooks.example.com\\@169.254.169.254/ https://2130706433/ https://0x7f000001/
    https://127.1/ https://10.0.0.0177./
""".split()  # noqa: SIM905


@pytest.mark.parametrize("url", ["", "https://hooks.example.com/ two", *NO_WEBHOOKS])
def test_what_is_no_address_for_a_webhook_is_refused(url: str) -> None:
    """Not https, no host, or credentials in it."""
    with pytest.raises(InvalidValueError):
        PUBLIC.check_url(url)


NAMES_OF_THIS_MACHINE = """
    localhost LOCALHOST. any.localhost localhost.localdomain localhost6 localhost6.localdomain6
    ip6-localhost ip6-loopback
""".split()  # noqa: SIM905


@pytest.mark.parametrize("host", NAMES_OF_THIS_MACHINE)
def test_names_of_this_machine_are_refused_at_once(host: str) -> None:
    for guard in (PUBLIC, Guard([ip_network("10.0.0.0/8")])):
        with pytest.raises(InvalidValueError, match="public address"):
            guard.check_url(f"https://{host}:8443/hook")
        with pytest.raises(InvalidValueError, match="public address"):
            guard.check_mail_server(f"smtps://{host}")
    LOOPBACK.check_url(f"https://{host}/")
    LOOPBACK.check_mail_server(f"smtps://{host}")


@pytest.mark.parametrize("host", ["localhost.example.com", "mylocalhost", "ip6-localhost.example"])
def test_names_that_only_look_like_it_are_others(host: str) -> None:
    """What they are is seen when they are resolved."""
    PUBLIC.check_url(f"https://{host}/")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://\uff11\uff12\uff17.0.0.1/", "ASCII"),
        ("https://\u0661\u0662\u0667.0.0.1/", "ASCII"),
        ("https://hooks.exämple.com/", "xn--"),
        ("https://hooks.example.com/\r\nx: y", "line breaks"),
        ("https://hooks.example.com/\x00", "line breaks"),
        ("https://hooks.example.com/" + "x" * 2_048, "at most 2048 characters"),
    ],
)
def test_what_is_wrong_is_said(url: str, message: str) -> None:
    """A short address is not told that it is too long."""
    with pytest.raises(InvalidValueError, match=message) as refused:
        PUBLIC.check_url(url)
    assert ("2048" in refused.value.message) == (len(url) > 2_048)


@pytest.mark.parametrize("url", ["http://127.0.0.1:80/", "http://localhost/", "https://127.0.0.1/"])
def test_loopback_is_for_who_allows_it(url: str) -> None:
    """Plain http is for loopback alone, also where more is allowed."""
    LOOPBACK.check_url(url)
    with pytest.raises(InvalidValueError):
        LOOPBACK.check_url("http://10.0.0.1/")
    wide = Guard([ip_network("10.0.0.0/8")])
    wide.check_url("https://10.0.0.1/")
    for refused in ("http://10.0.0.1/", "http://127.0.0.1/"):
        with pytest.raises(InvalidValueError):
            wide.check_url(refused)


@pytest.mark.parametrize("name", ["localhost", "2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
async def test_a_name_is_looked_at_when_it_is_resolved(name: str) -> None:
    """Also a spelling that only the resolver takes for an address."""
    with pytest.raises(AddressNotAllowedError):
        await GuardedResolver(PUBLIC).resolve(name, 443)
    found = await GuardedResolver(LOOPBACK).resolve(name, 443, socket.AF_INET)
    assert {one["host"] for one in found} == {"127.0.0.1"}


async def said_to_listener(
    name: str, guard: Guard, told: str, trust: ssl.SSLContext | None = None
) -> list[bytes]:
    """Post to a listener on loopback, which must fail; returns what each connection brought."""
    came = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.read(1))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=trust)
    sender = HttpSender(guard)
    with pytest.raises(DeliveryError, match=told):
        await sender.post(f"https://{name}:{server.sockets[0].getsockname()[1]}/", b"{}", {})
    await sender.close()
    server.close()
    return came


@pytest.mark.parametrize(
    ("name", "guard", "told"),
    [
        ("localhost", PUBLIC, "public address"),
        ("localhost", Guard([ip_network("127.0.0.2/32")]), "its address is not allowed"),
        ("2130706433", PUBLIC, "a host name or an IP address"),
        ("127.1", PUBLIC, "a host name or an IP address"),
    ],
)
async def test_no_connection_is_made_to_what_is_not_allowed(
    name: str, guard: Guard, told: str
) -> None:
    """A real listener on loopback gets no connection, by the text or the resolved address."""
    assert await said_to_listener(name, guard, told) == []


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    """Alerts go to whom they are addressed to, or nowhere."""
    context = make_certificate(tmp_path, "127.0.0.1").server
    told = "its certificate is not valid"
    assert await said_to_listener("127.0.0.1", LOOPBACK, told, context) == []


async def test_what_was_allowed_once_is_looked_at_again(endpoint: Endpoint) -> None:
    """A channel from before the setting was narrowed is not called."""
    sender = HttpSender(PUBLIC)

    with pytest.raises(DeliveryError):
        await sender.post(endpoint.url, b"{}", {})

    assert endpoint.requests == []
    await sender.close()


async def test_an_error_says_nothing_of_the_address() -> None:
    """The path of a webhook is a secret."""
    sender = HttpSender(LOOPBACK)
    with pytest.raises(DeliveryError) as refused:
        await sender.post("http://127.0.0.1:9/a-secret-path?and=query", b"{}", {})
    assert "secret" not in str(refused.value)
    await sender.close()


@pytest.mark.parametrize(
    ("raised", "message", "is_refused"),
    [
        (InvalidValueError("url", "is not public"), "is not public", True),
        (TimeoutError(), "did not answer within 10 s", False),
        (ssl.SSLCertVerificationError(), "its certificate is not valid", False),
        (AddressNotAllowedError(), "can't be reached, or its address is not allowed", False),
        (ConnectionRefusedError(), "can't be reached, or its address is not allowed", False),
        (aiohttp.ServerDisconnectedError(), "the request failed: ServerDisconnectedError", False),
    ],
)
async def test_each_failure_of_an_attempt_has_its_message(
    raised: Exception, message: str, is_refused: bool
) -> None:
    with pytest.raises(DeliveryError) as failed:
        async with one_attempt():
            raise raised
    assert (str(failed.value), failed.value.is_refused) == (message, is_refused)
