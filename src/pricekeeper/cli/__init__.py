"""The command line. Without the extra ``server`` only ``spool`` works."""

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


def main() -> None:
    """Run a command."""
    if any(find_spec(name) is None for name in NEEDED):
        sys.exit(_run_without_server(sys.argv[1:]))
    from pricekeeper.cli.commands import main as run  # noqa: PLC0415 - it may not be installed

    run()


def _run_without_server(arguments: list[str]) -> int:
    if arguments[:1] == ["spool"]:
        from pricekeeper.client.spool_command import main as run  # noqa: PLC0415 - few need it

        return run(arguments[1:])
    sys.stderr.write(
        "Only the client is installed. To get the service and all commands:\n"
        "    pip install 'bedrock-price-keeper[server]'\n"
        "Without it, 'pricekeeper spool show' and 'pricekeeper spool flush' work.\n"
    )
    return 2
