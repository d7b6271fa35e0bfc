"""All commands. They import what they need when they run, to keep ``--help`` quick."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pricekeeper.cli import (
    access,
    alerts,
    applying,
    audit,
    authorizations,
    clients,
    doctor,
    exporting,
    keys,
    ledger,
    prices,
    spend,
    upkeep,
    usage,
    watch,
)
from pricekeeper.cli.command import ConfigOption, Json, StoreOption, run_app
from pricekeeper.cli.exits import tell_unknown_settings
from pricekeeper.cli.options import option
from pricekeeper.cli.terminal import make_console
from pricekeeper.settings import CONFIG, METRICS_PORT, SERVE_ONLY, STORE
from pricekeeper.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # there are secrets among them
)


TELL_SETTINGS_THEMSELVES = ("doctor", "serve")
"""The doctor checks unknown settings; ``serve`` prints them."""


def _tell_version(wanted: bool) -> None:  # noqa: FBT001  # Typer's way
    if wanted:
        typer.echo(f"pricekeeper {__version__}")
        raise typer.Exit


@app.callback()
def pricekeeper(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        option("--version", "Print the version, and exit.", is_eager=True, callback=_tell_version),
    ] = False,
) -> None:
    """Control the LLM spend of organisations and apps on Amazon Bedrock.

    Commands work on the store (--store or $PRICEKEEPER_STORE), or on a running service
    (--url, with $PRICEKEEPER_ADMIN_KEY). Times are UTC. Exit codes: 0 done, 1 failed,
    2 usage, 3 not found, 4 refused, 5 unavailable.
    """
    del version
    if context.invoked_subcommand not in TELL_SETTINGS_THEMSELVES:
        tell_unknown_settings(make_console(stderr=True))


@app.command()
def serve(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 8080,
    metrics_port: Annotated[
        str | None,
        option(
            "--metrics-port [ADDRESS:]PORT",
            "A separate listener for metrics and health. Without ADDRESS: on 127.0.0.1.",
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    workers: Annotated[int, typer.Option(help="How many processes.", min=1, max=64)] = 1,
    demo: Annotated[bool, option("--demo", "Add a demo organisation and print its keys.")] = False,
    only: Annotated[
        Literal["api", "gateway"] | None,
        option("--only", "Serve one part. By default both, if there is an upstream."),
    ] = None,
) -> None:
    """Run the service, with the gateway to Bedrock if it has an upstream.

    [dim]pricekeeper serve --demo[/dim]

    [dim]pricekeeper serve --host 0.0.0.0 --workers 2 --store dynamodb://eu-central-1[/dim]
    """
    from pricekeeper.cli import serving  # noqa: PLC0415

    console = make_console()
    tell_unknown_settings(console)
    given = {STORE: store, CONFIG: config, METRICS_PORT: metrics_port, SERVE_ONLY: only}
    serving.serve(given, host, port, workers=workers, demo=demo, console=console)


@app.command("demo")
def run_demo(
    *,
    secs: Annotated[int, option("--secs", "How long the day takes.", min=2, max=600)] = 22,
    calls: Annotated[
        int, option("--calls", "How many model calls are made.", min=60, max=100_000)
    ] = 2_000,
    seed: Annotated[int, option("--seed", "Seed of the random traffic.")] = 1,
    keep: Annotated[str | None, option("--keep FOLDER", "Keep the store in this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Watch a simulated day of a company's Bedrock traffic in 22 seconds, on the real service.

    It uses only this machine, and removes its data at the end.

    [dim]pricekeeper demo[/dim]

    [dim]pricekeeper demo --secs 60 --calls 5000 --keep demo-data[/dim]
    """
    from pricekeeper.cli.demo import demonstrate  # noqa: PLC0415

    demonstrate(secs=secs, calls=calls, seed=seed, keep=keep, as_json=as_json)


app.add_typer(clients.orgs, name="org")
app.add_typer(clients.apps, name="app")
app.add_typer(keys.admin_keys, name="admin-keys")
app.add_typer(access.credentials, name="credentials")
app.add_typer(access.overrides, name="override")
app.add_typer(access.sessions, name="sessions")
app.add_typer(usage.usage, name="usage")
app.add_typer(usage.limits, name="limits")
app.add_typer(authorizations.authorizations, name="authorizations")
app.add_typer(alerts.alerts, name="alerts")
app.add_typer(prices.prices, name="prices")
app.add_typer(upkeep.tables, name="tables")
app.add_typer(keys.keys, name="keys")
app.add_typer(ledger.ledger, name="ledger")
app.add_typer(audit.audit, name="audit")
app.add_typer(upkeep.spool, name="spool")
app.add_typer(applying.top)
app.add_typer(spend.top)
app.add_typer(authorizations.top)
app.add_typer(access.top)
app.add_typer(upkeep.top)
app.add_typer(exporting.top)
app.add_typer(doctor.top)
app.add_typer(watch.top)


def main() -> None:
    """Run a command."""
    run_app(app)
