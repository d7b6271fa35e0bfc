"""The command line: ``pricekeeper --help``."""

from pricekeeper.cli.commands import main

__all__ = ["main"]
