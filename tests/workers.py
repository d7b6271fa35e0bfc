"""Talking to each worker of a server: left to itself, the kernel may give all work to one."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from http_fixtures import Reply
from scraping import until
from serving import Server

PATIENCE_SECS = 3
"""The server replaces a worker that does not answer it for five seconds."""
ATTEMPTS_MAX = 20


def worker_pids(server: Server) -> list[int]:
    """The processes that serve: the server's children, but for multiprocessing's own helper."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="],  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    processes = [line.split(maxsplit=2) for line in listed.splitlines()]
    parent = str(server.process.pid)
    return [int(p[0]) for p in processes if p[1] == parent and "spawn_main" in p[2]]


@contextmanager
def only(worker: int, workers: list[int]) -> Iterator[None]:
    """Let one worker run and hold the others; shorter than the server has patience for that."""
    others = [pid for pid in workers if pid != worker]
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


class Connection:
    """A connection that stays with the worker that has accepted it."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_SECS)

    def is_accepted(self) -> bool:
        """Whether the worker that may run answers soon; then the connection is patient."""
        try:
            assert self.call("GET", "/healthz").status == 200
        except TimeoutError:
            return False
        self._connection.sock.settimeout(30)
        return True

    def call(self, method: str, path: str, body: Any = None, *, token: str = "") -> Reply:
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        received = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, received, answer.read())

    def close(self) -> None:
        self._connection.close()


def connect_to(pid: int, pids: list[int], server: Server) -> Connection:
    """A worker that still starts, on a busy machine, is asked again; the others run meanwhile."""
    for _ in range(ATTEMPTS_MAX):
        connection = Connection(server.url)
        with only(pid, pids):
            if connection.is_accepted():
                return connection
        connection.close()
    raise AssertionError(server.output())


@contextmanager
def connections_to_each(server: Server, workers: int, each: int) -> Iterator[list[Connection]]:
    """Open so many connections to each of so many workers."""
    until(lambda: len(worker_pids(server)) == workers, server.output)
    pids = worker_pids(server)
    opened: list[Connection] = []
    try:
        for pid in pids:
            # Each by itself, because all of them may take too long.
            opened.extend(connect_to(pid, pids, server) for _ in range(each))
        yield opened
    finally:
        for connection in opened:
            connection.close()
