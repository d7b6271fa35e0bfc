"""Events from several processes on one file: real workers, a real kill, a real end."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from http_fixtures import ENVIRONMENT, KEY, Api, Tenant, usage
from serving import running_server

PATIENCE_SECS = 20


@dataclass
class Stream:
    """A stream that is read with nothing but a socket."""

    connection: socket.socket
    text: str = ""
    last_id: str = ""
    names: list[str] = field(default_factory=list)
    data: list[Any] = field(default_factory=list)

    def read_until(self, name: str) -> Any:
        """Read on until there is an event of that name; its data."""
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            if self.names and self.names[-1] == name:
                return self.data[-1]
            received = self.connection.recv(65536)
            assert received, "the stream has ended"
            self._take(received.decode())
        raise AssertionError(f"no {name} came: {self.names}")

    def read_to_end(self) -> None:
        """Read on until the service ends the stream."""
        while received := self.connection.recv(65536):
            self._take(received.decode())

    def _take(self, text: str) -> None:
        *lines, self.text = (self.text + text).split("\n")
        for line in lines:
            key, _, value = line.strip().partition(": ")
            if key == "id":
                self.last_id = value
            elif key == "event":
                self.names.append(value)
            elif key == "data":
                self.data.append(json.loads(value))


@contextmanager
def listening(url: str, token: str, last_id: str = "") -> Iterator[Stream]:
    """Listen until the end of the block."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), PATIENCE_SECS) as connection:
        connection.sendall(
            f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Last-Event-ID: {last_id}\r\n\r\n".encode()
        )
        stream = Stream(connection)
        head = b""
        while b"id: " not in head or not head.endswith(b"\n\r\n"):
            head += connection.recv(65536)
        assert head.startswith(b"HTTP/1.1 200"), head
        stream._take(head.decode())
        yield stream


def record(tenant: Tenant) -> str:
    body = usage()
    reply = tenant.record(body)
    assert reply.status == 202
    request_id: str = body["request_id"]
    return request_id


@pytest.mark.slow
def test_two_workers_tell_each_others_listeners(tmp_path: Path) -> None:
    with running_server(tmp_path, "--workers", "2", environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        with ExitStack() as stack:
            streams = [
                stack.enter_context(listening(server.url, tenant.org_token)) for _ in range(8)
            ]
            for _ in range(4):
                request_id = record(tenant)
                for stream in streams:
                    told: list[str] = []
                    while request_id not in told:
                        event = stream.read_until("spend")
                        told = [one["request_id"] for one in event["records"]]
                        stream.names.clear()
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            for stream in streams:
                stream.read_to_end()
            assert server.process.wait(PATIENCE_SECS) == 0
            assert time.monotonic() - began < PATIENCE_SECS / 2
            assert {stream.names.count("reset") for stream in streams} == {0}


@pytest.mark.slow
def test_a_listener_goes_on_after_a_kill(tmp_path: Path) -> None:
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        with listening(server.url, tenant.org_token) as stream:
            first = record(tenant)
            assert stream.read_until("spend")["records"][0]["request_id"] == first
            assert tenant.acquire(11).status == 429
            assert stream.read_until("denied")["count"] == 1
            last_id = stream.last_id
            wait_for_denial(tenant)
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant.api = Api(server.url)
        with listening(server.url, tenant.org_token, last_id) as stream:
            second = record(tenant)
            event = stream.read_until("spend")
            assert [one["request_id"] for one in event["records"]] == [second]
            assert stream.names == ["spend"]
        assert wait_for_denial(tenant)["count"] == 1


def wait_for_denial(tenant: Tenant) -> dict[str, Any]:
    """The denial, once it is listed."""
    deadline = time.monotonic() + PATIENCE_SECS
    while time.monotonic() < deadline:
        rows = tenant.api.call("GET", f"{tenant.org}/denials", key=KEY).json["denials"]
        if rows:
            row: dict[str, Any] = rows[0]
            return row
    pytest.fail("the denial is not listed")
