"""The stand-in for Bedrock, with what points the AWS SDK at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pricekeeper.standin import Running, Script, running

REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class Bedrock(Running):
    """A stand-in that answers; its ledger has what was billed, call by call."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which clients of the AWS SDK call the stand-in."""
        return {
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }


@contextmanager
def bedrock(script: Script | None = None) -> Iterator[Bedrock]:
    """A stand-in for Bedrock's runtime until the end of the block.

    ``script`` is what a call does whose prompt has no directive: see `pricekeeper.standin`.
    """
    with running(script) as standin:
        yield Bedrock(standin.url, standin.ledger)
