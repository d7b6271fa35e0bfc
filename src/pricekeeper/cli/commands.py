"""The commands. Each prints what happened and what to do next; errors are one line."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from pricekeeper.bootstrap import open_services
from pricekeeper.cli import serving
from pricekeeper.errors import PriceKeeperError
from pricekeeper.settings import CONFIG, STORE, read_settings

EXIT_FAILED: Final = 1

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")
tables = typer.Typer(no_args_is_help=True, help="The store's tables.")
app.add_typer(tables, name="tables")

StoreOption = Annotated[
    str | None, typer.Option("--store", help=f"Where the data lives; default ${STORE}.")
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", help=f"The deployment file; default ${CONFIG}.")
]


@app.callback()
def pricekeeper() -> None:
    """Keep the LLM spend of many organisations and apps under control on Amazon Bedrock."""


@app.command()
def serve(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 8080,
    store: StoreOption = None,
    config: ConfigOption = None,
    workers: Annotated[int, typer.Option(help="How many processes.", min=1, max=64)] = 1,
    demo: Annotated[bool, typer.Option(help="Bring a demo organisation and a key for it.")] = False,
) -> None:
    """Run the service.

    [dim]Examples:[/dim]

    [dim]pricekeeper serve --demo[/dim]

    [dim]pricekeeper serve --host 0.0.0.0 --workers 2 --store dynamodb://eu-central-1[/dim]
    """
    serving.serve(
        host=host,
        port=port,
        store=store,
        config=config,
        workers=workers,
        demo=demo,
        console=Console(),
    )


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
        Console(stderr=True).print(
            f"[red]{error.code}[/red] {escape(str(error))}", soft_wrap=True, highlight=False
        )
        sys.exit(EXIT_FAILED)


def _environment(store: str | None) -> dict[str, str]:
    """The process's environment, with what the command line says instead."""
    environment = dict(os.environ)
    if store is not None:
        environment[STORE] = store
    return environment
