"""The example for nginx works as the document shows it, also on the nginx of Debian 12 (1.22)."""

import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from certificates import Certificate, make_certificate
from free_port import free_port
from gateway.models import ARN
from gateway.scripts import call_and_stream
from gateway.world import App, World
from scraping import until
from snippets import GATEWAY_DOCUMENT, gateway_environment

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
HOST = "127.0.0.1"
OF_1_22 = {
    "server",
    "listen",
    "server_name",
    "ssl_certificate",
    "ssl_certificate_key",
    "client_max_body_size",
    "location",
    "proxy_pass",
    "proxy_http_version",
    "proxy_set_header",
    "proxy_request_buffering",
    "proxy_buffering",
    "proxy_read_timeout",
}
"""Directives of the example that nginx 1.22 knows. It does not know ``http2``, for one."""


def example() -> str:
    (block,) = re.findall(r"```nginx\n(.*?)```", GATEWAY_DOCUMENT.read_text("utf-8"), re.DOTALL)
    return str(block)


def test_the_example_has_only_directives_of_nginx_1_22() -> None:
    found = re.findall(r"^\s*([a-z0-9_]+)\s", example(), re.MULTILINE)
    assert set(found) <= OF_1_22
    assert "listen 443 ssl http2;" in example()


@contextmanager
def running_nginx(folder: Path, world: World, certificate: Certificate) -> Iterator[int]:
    """Nginx with the example, but for its port, its files and the service's address."""
    port = free_port()
    shown = example()
    for before, after in (
        ("listen 443", f"listen {HOST}:{port}"),
        ("/etc/ssl/keeper.crt", str(certificate.certificate_file)),
        ("/etc/ssl/keeper.key", str(certificate.key_file)),
        ("http://127.0.0.1:8080", world.url),
    ):
        assert before in shown
        shown = shown.replace(before, after)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\n"
        f"events {{}}\nhttp {{ access_log off;\n{places}{shown}}}\n",
        "utf-8",
    )
    command = [str(NGINX), "-p", str(folder), "-c", str(configuration), "-e", "stderr"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)  # noqa: S603 - the installed nginx
    try:
        until(lambda: is_listening(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text("utf-8")
        yield port
    finally:
        process.terminate()
        process.wait(20)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_a_signed_call_and_a_stream_pass_through_nginx(
    world: World, app: App, tmp_path: Path
) -> None:
    """The path arrives in its signed form (``%3A``, ``%2F``), and the front speaks HTTP/2."""
    certificate = make_certificate(tmp_path, HOST)
    environment = gateway_environment(
        world.url, app.client_id, app.secret, "", {"PATH": os.environ["PATH"]}
    )
    with running_nginx(tmp_path, world, certificate) as port:
        environment |= {
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": f"https://{HOST}:{port}/bedrock",
            "AWS_CA_BUNDLE": str(certificate.certificate_file),
        }
        assert call_and_stream("boto3_client.py", ARN, environment) == [[], []]
        offered = ssl.create_default_context(cafile=str(certificate.certificate_file))
        offered.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection((HOST, port), timeout=20) as raw,
            offered.wrap_socket(raw, server_hostname=HOST) as secured,
        ):
            assert secured.selected_alpn_protocol() == "h2"
    assert world.ledger.billed_calls == 2
    assert world.assert_equal(app) > 0
