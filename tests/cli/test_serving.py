"""``pricekeeper serve``, before it serves."""

import socket

import pytest

from cli.conftest import Cli
from pricekeeper.cli.listening import is_loopback
from pricekeeper.cli.serving import server_config


def test_an_address_that_is_taken_is_told_before_anything_is_made(cli: Cli) -> None:
    """Secrets are shown once: not by a demo that can't serve afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("serve", "--demo", "--port", str(port))

    assert (done.code, done.out) == (2, "")
    assert f"port {port} (Address already in use); choose another" in done.err
    assert len(done.err.splitlines()) == 1
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 - that is the point
def test_the_demo_does_not_show_its_public_key_to_others(cli: Cli, host: str) -> None:
    """Everybody knows it, so it is good on loopback only; nothing is made, nothing is bound."""
    done = cli("serve", "--demo", "--host", host)
    assert (done.code, done.out) == (2, "")
    assert "PRICEKEEPER_PROVISIONING_KEY" in done.err
    assert "openssl rand -hex 32" in done.err
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("", False),
        ("10.1.2.3", False),
        ("keeper.example.com", False),
    ],
)
def test_what_only_this_machine_can_reach(host: str, *, expected: bool) -> None:
    """By address, or by the one name that everybody knows."""
    assert is_loopback(host) is expected


def test_a_proxy_is_believed_on_a_socket_for_both_kinds_of_addresses() -> None:
    """Where it listens on ``::``, an IPv4 proxy has a mapped address."""
    config = server_config(lambda: None, trusted_proxies="10.0.0.0/16,192.0.2.7,2001:db8::/32")
    assert config.forwarded_allow_ips == (
        "10.0.0.0/16,192.0.2.7/32,2001:db8::/32,::ffff:10.0.0.0/112,::ffff:192.0.2.7/128"
    )
    assert server_config(lambda: None, trusted_proxies="*").forwarded_allow_ips == "*"
    assert server_config(lambda: None).proxy_headers is False
