"""``pricekeeper serve``, before it serves."""

import socket

from cli.conftest import Cli


def test_an_address_that_is_taken_is_told_before_anything_is_made(cli: Cli) -> None:
    """Secrets are shown once: not by a demo that can't serve afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("serve", "--demo", "--port", str(port))

    assert (done.code, done.out) == (2, "")
    assert f"port {port} (Address already in use); choose another" in done.err
    assert len(done.err.splitlines()) == 1
    assert list(cli.folder.iterdir()) == []
