"""``spool``: what an app on this machine must still tell the service, and telling it now."""

from __future__ import annotations

import asyncio

import typer
from rich.text import Text

from pricekeeper.cli.backends import Where
from pricekeeper.cli.command import Output, client_command
from pricekeeper.clock import SystemClock

spool = typer.Typer(no_args_is_help=True, help="What an app must still tell the service.")


@client_command(spool, "show")
async def show_spool(_: Where) -> Output:
    """Show what waits to be told, and what the service has refused for good.

    The app is the one that $PRICEKEEPER_URL, $PRICEKEEPER_CLIENT_ID and $PRICEKEEPER_CLIENT_SECRET
    name; its files are in $PRICEKEEPER_SPOOL_DIR, or where it keeps them without it.

    [dim]pricekeeper spool show[/dim]
    """
    from pricekeeper.client import spool_command  # noqa: PLC0415
    from pricekeeper.client.configuration import KeeperSettings  # noqa: PLC0415

    answer = spool_command.look(KeeperSettings.read({}), SystemClock())
    return Output(answer, Text("\n".join(spool_command.picture_of_look(answer))))


@client_command(spool, "flush")
async def flush_spool(_: Where) -> Output:
    """Tell the service what apps that have ended have left; exit 1 if some is left still.

    What an app that runs has in its file is left to it.

    [dim]pricekeeper spool flush[/dim]
    """
    from pricekeeper.client import spool_command  # noqa: PLC0415
    from pricekeeper.client.configuration import KeeperSettings  # noqa: PLC0415

    given = KeeperSettings.read({})
    answer = await asyncio.to_thread(spool_command.tell_now, given, SystemClock())
    picture = Text("\n".join(spool_command.picture_of_telling(answer)))
    return Output(answer, picture, spool_command.code_of_telling(answer))
