"""The Bedrock stand-in for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pricekeeper.standin import Running, Script, running

REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class Bedrock(Running):
    """A running stand-in. Its ledger has the billed calls."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that send AWS SDK clients to it."""
        return {
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }


@contextmanager
def bedrock(script: Script | None = None) -> Iterator[Bedrock]:
    """Run a stand-in; ``script`` applies without a directive (see `pricekeeper.standin`)."""
    with running(script) as standin:
        yield Bedrock(standin.url, standin.ledger)
