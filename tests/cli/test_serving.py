"""``pricekeeper serve``, before it serves."""

import socket
from pathlib import Path

import pytest

from cli.conftest import Cli
from free_port import free_port
from pricekeeper.cli.demo_org import DEMO_KEY, DEMO_METRICS_TOKEN
from pricekeeper.cli.listening import is_loopback
from pricekeeper.http.server import server_config
from serving import running_server

ANYWHERE = "0.0.0.0"  # noqa: S104 - what is tried here
OWN_KEY = "a-key-of-thirty-two-characters--"


def test_an_address_that_is_taken_is_told_before_anything_is_made(cli: Cli) -> None:
    """Secrets are shown once: not by a demo that can't serve afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("serve", "--demo", "--port", str(port))

    assert (done.code, done.out) == (2, "")
    assert f"port {port} (Address already in use); choose another" in done.err
    assert len(done.err.splitlines()) == 1
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("host", [ANYWHERE, "::", "192.0.2.1"])
@pytest.mark.parametrize("by", ["--demo", "environment"])
def test_a_key_that_everybody_knows_is_not_for_others_to_try(cli: Cli, host: str, by: str) -> None:
    """It is good for the demo on loopback only; nothing is made before that, nothing is bound."""
    words = ["--demo"] if by == "--demo" else []
    if not words:
        cli.monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", DEMO_KEY)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that binding would be told first
        port = taken.getsockname()[1]
        done = cli("serve", *words, "--host", host, "--port", str(port))

    assert (done.code, done.out) == (2, "")
    assert "PRICEKEEPER_PROVISIONING_KEY: is the public one of the demo" in done.err
    assert "export PRICEKEEPER_PROVISIONING_KEY=$(openssl rand -hex 32)" in done.err
    assert len(done.err.splitlines()) == 1
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("where", ["service", "listener"])
def test_a_metrics_token_that_everybody_knows_is_not_for_others_either(
    cli: Cli, where: str
) -> None:
    """Wherever it would open them."""
    words: tuple[str, ...] = ("--demo", "--metrics-port", f"{ANYWHERE}:{free_port()}")
    if where == "service":
        words = ("--demo", "--host", ANYWHERE)
        cli.monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", OWN_KEY)
        cli.monkeypatch.setenv("PRICEKEEPER_METRICS_TOKEN", DEMO_METRICS_TOKEN)
    done = cli("serve", *words, "--port", str(free_port()))

    assert (done.code, done.out) == (2, "")
    assert "PRICEKEEPER_METRICS_TOKEN: is the public one of the demo" in done.err
    assert "export PRICEKEEPER_METRICS_TOKEN=$(openssl rand -hex 32)" in done.err
    assert list(cli.folder.iterdir()) == []


def test_a_metrics_port_that_is_taken_is_told_like_the_other(cli: Cli) -> None:
    """By the name of its setting, before anything is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--port", str(free_port()), "--metrics-port", str(port))
        done = cli("serve", "--demo", *words)

    assert (done.code, done.out) == (2, "")
    assert "PRICEKEEPER_METRICS_PORT" in done.err
    assert f"port {port} (Address already in use); choose another" in done.err
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "metrics: not served; set PRICEKEEPER_METRICS_PORT or PRICEKEEPER_METRICS_TOKEN"),
        ({"PRICEKEEPER_METRICS_TOKEN": "a-token-of-thirty-two-characters"},
         "/metrics, with $PRICEKEEPER_METRICS_TOKEN as bearer token"),
    ],
    ids=["nothing", "a token"],
)  # fmt: skip
def test_it_says_where_the_metrics_are(tmp_path: Path, given: dict[str, str], told: str) -> None:
    """And with what."""
    environment = {"PRICEKEEPER_PROVISIONING_KEY": OWN_KEY, **given}
    with running_server(tmp_path, environment=environment) as server:
        assert told in server.output()


def test_the_demo_may_be_shown_to_others_with_a_key_of_ones_own(tmp_path: Path) -> None:
    """Then it brings no metrics token: the demo's would be known to everybody."""
    environment = {"PRICEKEEPER_PROVISIONING_KEY": OWN_KEY}
    with running_server(tmp_path, "--demo", "--host", ANYWHERE, environment=environment) as server:
        assert "PRICEKEEPER_METRICS_TOKEN=" not in server.output()
        assert "metrics: not served" in server.output()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        (ANYWHERE, False),
        ("::", False),
        ("", False),
        ("10.1.2.3", False),
        ("::ffff:10.0.0.1", False),
        ("keeper.example.com", False),
    ],
)
def test_what_only_this_machine_can_reach(host: str, *, expected: bool) -> None:
    """By address, however it is written, or by the one name that everybody knows."""
    assert is_loopback(host) is expected


def test_a_proxy_is_believed_on_a_socket_for_both_kinds_of_addresses() -> None:
    """Where it listens on ``::``, an IPv4 proxy has a mapped address."""
    config = server_config(lambda: None, trusted_proxies="10.0.0.0/16,192.0.2.7,2001:db8::/32")
    assert config.forwarded_allow_ips == (
        "10.0.0.0/16,192.0.2.7/32,2001:db8::/32,::ffff:10.0.0.0/112,::ffff:192.0.2.7/128"
    )
    assert server_config(lambda: None, trusted_proxies="*").forwarded_allow_ips == "*"
    assert server_config(lambda: None).proxy_headers is False
