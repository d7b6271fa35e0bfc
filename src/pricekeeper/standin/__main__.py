"""``python -m pricekeeper.standin [--port N]``: the stand-in as its own process."""

from __future__ import annotations

import argparse

from pricekeeper.standin.ledger import ENTRIES_MAX
from pricekeeper.standin.serving import serve


def main() -> None:
    """Print the URL and serve until a signal."""
    parser = argparse.ArgumentParser(
        "python -m pricekeeper.standin", description="A stand-in for Amazon Bedrock's runtime."
    )
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one")
    parser.add_argument(
        "--entries-max", type=int, default=ENTRIES_MAX, help="entries that the ledger keeps"
    )
    given = parser.parse_args()
    serve(given.port, entries_max=given.entries_max)


if __name__ == "__main__":
    main()
