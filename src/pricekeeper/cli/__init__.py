"""The command line: ``pricekeeper --help``.

It needs the extra ``server``. Whoever has installed the client alone is told so, and can look after
the client's spool.
"""

import sys
from importlib.util import find_spec
from typing import Final

__all__ = ["main"]

NEEDED: Final = (
    "apsw",
    "bcrypt",
    "botocore",
    "httptools",
    "joserfc",
    "prometheus_client",
    "rich",
    "structlog",
    "typer",
    "uvicorn",
    "yaml",
)
"""What the extra brings."""


def main() -> None:
    """Run a command; an error of ours becomes one line and its exit code."""
    if any(find_spec(name) is None for name in NEEDED):
        sys.exit(_run_without_server(sys.argv[1:]))
    from pricekeeper.cli.commands import main as run  # noqa: PLC0415 - it may not be installed

    run()


def _run_without_server(arguments: list[str]) -> int:
    if arguments[:1] == ["spool"]:
        from pricekeeper.client.spool_command import main as run  # noqa: PLC0415 - few need it

        return run(arguments[1:])
    sys.stderr.write(
        "the service and the command line are not installed, only the client is:\n"
        "    pip install 'bedrock-price-keeper[server]'\n"
        "Without them there is 'pricekeeper spool show' and 'pricekeeper spool flush'.\n"
    )
    return 2
