"""The commands. Each prints what happened and what to do next; errors are one line."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Final

import typer
import uvicorn
from rich.console import Console
from rich.markup import escape

from pricekeeper.bootstrap import open_services
from pricekeeper.errors import PriceKeeperError
from pricekeeper.http import make_app
from pricekeeper.settings import STORE, read_settings

EXIT_FAILED: Final = 1

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")
tables = typer.Typer(no_args_is_help=True, help="The store's tables.")
app.add_typer(tables, name="tables")

StoreOption = Annotated[
    str | None, typer.Option("--store", help=f"Where the data lives; default ${STORE}.")
]


@app.callback()
def pricekeeper() -> None:
    """Keep the LLM spend of many organisations and apps under control on Amazon Bedrock."""


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8080,
    store: StoreOption = None,
) -> None:
    """Run the service.

    [dim]Example: pricekeeper serve --port 8080 --store sqlite:///data/pricekeeper.db[/dim]
    """
    settings = read_settings(_environment(store))
    Console().print(
        f"listening on http://{host}:{port}; try [bold]curl http://{host}:{port}/readyz"
    )
    uvicorn.run(make_app(settings), host=host, port=port, log_level="warning")


@tables.command("create")
def create_tables(store: StoreOption = None) -> None:
    """Create whatever tables are missing, and wait until they can be used.

    [dim]Example: pricekeeper tables create --store dynamodb://eu-central-1?prefix=prod-[/dim]
    """
    settings = read_settings(_environment(store))

    async def create() -> None:
        async with open_services(settings):
            pass

    asyncio.run(create())
    Console().print("the tables are there; next: [bold]pricekeeper serve")


def main() -> None:
    """Run a command; an error of ours becomes one line and exit code 1."""
    try:
        app()
    except PriceKeeperError as error:
        Console(stderr=True).print(f"[red]{error.code}[/red] {escape(str(error))}")
        sys.exit(EXIT_FAILED)


def _environment(store: str | None) -> dict[str, str]:
    """The process's environment, with what the command line says instead."""
    environment = dict(os.environ)
    if store is not None:
        environment[STORE] = store
    return environment
